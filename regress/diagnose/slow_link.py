"""Bandwidth below what the link, or the curve's own neighbours, promise."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from regress.diagnose import MEDIUM, WARNING, Circumstances, Need, Rule
from regress.record import Diagnosis
from regress.trace.messages import MessageSize, message_sizes
from regress.units import Unit, format_size, format_value

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis

_ENOUGH = 20
_HOLE = 0.70
_BIG_BYTES = 64 << 20
_OF_NOMINAL = 0.50
_NVLINK = {"1.0": 20e9, "2.0": 25e9, "2.2": 25e9, "3.0": 25e9, "3.1": 25e9, "4.0": 25e9, "5.0": 50e9}
"""Bytes per second and direction of one NVLink (NVIDIA architecture white papers: P100, V100, A100, H100, B200)."""
_PCIE_LANE = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes per second and direction of one PCIe lane after its coding (PCI-SIG)."""


def nominal_rate(link: str) -> float | None:
    """Bytes per second and direction of a link class such as "NVLink 4.0 x18" or "PCIe 5 x16"; None if unknown."""
    nvlink = re.fullmatch(r"NVLink (\S+) x(\d+)", link)
    if nvlink and nvlink[1] in _NVLINK:
        return _NVLINK[nvlink[1]] * int(nvlink[2])
    pcie = re.fullmatch(r"PCIe (\d+) x(\d+)", link)
    if pcie and int(pcie[1]) in _PCIE_LANE:
        return _PCIE_LANE[int(pcie[1])] * int(pcie[2])
    return None


def _curves(analysis: Analysis) -> list[list[MessageSize]]:
    """Rows with a bandwidth, by operation and ranks, in order of size."""
    curves: dict[tuple[str, int], list[MessageSize]] = {}
    for row in message_sizes(analysis):
        if row.busbw_bytes_per_second is not None and row.size_bytes is not None and row.count >= _ENOUGH:
            curves.setdefault((row.operation, row.ranks), []).append(row)
    return [sorted(rows, key=lambda row: row.size_bytes or 0) for rows in curves.values()]


def _hole(curve: Sequence[MessageSize]) -> Diagnosis | None:
    """The deepest size whose bandwidth is well below both the smaller and the larger neighbour's."""
    depths = [(min(low.busbw_bytes_per_second or 0.0, high.busbw_bytes_per_second or 0.0), row)
              for low, row, high in zip(curve, curve[1:], curve[2:], strict=False)]
    found = [(usual, row) for usual, row in depths if (row.busbw_bytes_per_second or 0.0) < _HOLE * usual]
    if not found:
        return None
    usual, row = min(found, key=lambda one: (one[1].busbw_bytes_per_second or 0.0) / one[0])
    return Diagnosis(
        "slow_link", WARNING,
        {"operation": row.operation, "message_bytes": row.size_bytes, "channels": row.channels,
         "busbw_bytes_per_second": row.busbw_bytes_per_second, "neighbours_bytes_per_second": usual},
        f"{row.operation} of {format_size(row.size_bytes or 0)} reaches "
        f"{format_value(row.busbw_bytes_per_second, Unit.BYTES_PER_SECOND)}, less than both a smaller and a larger "
        f"message ({format_value(usual, Unit.BYTES_PER_SECOND)}): a hole in the curve, where the algorithm or protocol "
        "changes",
        "look up what NCCL chose for that size (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=TUNING), try another NCCL_PROTO or "
        "NCCL_ALGO with `regress tune`, and report it to NVIDIA with both logs", confidence=MEDIUM)


def _below(seen: Circumstances, curve: Sequence[MessageSize]) -> Diagnosis | None:
    """The largest message against the link's nominal rate."""
    facts = seen.environment.must_match if seen.environment is not None else {}
    rate = nominal_rate(str(facts.get("link_class")))
    row = curve[-1]
    if rate is None or facts.get("shared_gpu") or facts.get("node_count") not in (1, None):
        return None
    if (row.size_bytes or 0) < _BIG_BYTES or (row.busbw_bytes_per_second or 0.0) >= _OF_NOMINAL * rate:
        return None
    said = "" if seen.nccl is None or not seen.nccl.transports else (
        f"; NCCL connects the ranks over {', '.join(seen.nccl.transports)}")
    return Diagnosis(
        "slow_link", WARNING,
        {"operation": row.operation, "message_bytes": row.size_bytes, "channels": row.channels,
         "busbw_bytes_per_second": row.busbw_bytes_per_second, "nominal_bytes_per_second": rate,
         "link": str(facts.get("link_class"))},
        f"{row.operation} of {format_size(row.size_bytes or 0)} reaches "
        f"{format_value(row.busbw_bytes_per_second, Unit.BYTES_PER_SECOND)}, "
        f"{(row.busbw_bytes_per_second or 0.0) / rate:.0%} of the {format_value(rate, Unit.BYTES_PER_SECOND)} of "
        f"{facts.get('link_class')}, where two thirds to four fifths are usual{said}",
        "check `nvidia-smi nvlink -s` and `nvidia-smi topo -m`, PCIe ACS and IOMMU, and NCCL_P2P_DISABLE, "
        "NCCL_P2P_LEVEL, NCCL_MAX_NCHANNELS", confidence=MEDIUM)


def _examine(seen: Circumstances, against: Circumstances | None) -> list[Diagnosis]:
    curves = _curves(seen.analysis)
    found = [one for curve in curves for one in (_below(seen, curve), _hole(curve)) if one is not None]
    return found[:1]


RULE = Rule("slow_link", "bandwidth below the link's nominal rate, or a hole at one size of the curve",
            "rule of thumb: about 80 % of the unidirectional rate from 256 MiB (stas00/ml-engineering, network); two "
            "H200 over NVLink 4.0 x18 give 67 % (measured). Holes: NVIDIA/nccl#2441, #1469; aws-ofi-nccl#65",
            examine=_examine, needs=(Need.SIZES, Need.RANKS, Need.DEVICE, Need.DURATIONS))
