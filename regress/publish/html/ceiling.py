"""The nominal rate of the link between the GPUs, one direction, from the facts of an environment."""

from __future__ import annotations

import re

from regress.record import Case, Environment

NVLINK_RATE = {"1": 20e9, "2": 25e9, "3": 25e9, "4": 25e9, "5": 50e9}
"""Bytes per second, link and direction, by NVLink generation: NVIDIA's data sheets give P100 80 GB/s over 4 links,
V100 150 over 6, A100 300 over 12, H100 450 over 18 and B200 900 over 18, each way."""

PCIE_LANE_RATE = {"3": 8e9 * 128 / 130 / 8, "4": 16e9 * 128 / 130 / 8, "5": 32e9 * 128 / 130 / 8,
                  "6": 64e9 * 242 / 256 / 8}
"""Bytes per second, lane and direction: PCI-SIG's transfer rates times the encoding (128b/130b; 242 of 256 bytes in a
FLIT from generation 6 on)."""

_LINK = re.compile(r"(NVLink|PCIe) (\d)(?:\.\d)? x(\d+)")


def nominal_bytes_per_second(environment: Environment, case: Case) -> float | None:
    """The ceiling of busbw without in-switch reduction; None over the network, for one GPU, or where facts are missing.

    NVLink counts only where every pair of the GPUs is joined by it (`topology_class`): the slowest path sets the pace.
    """
    link, topology = environment.must_match.get("link_class"), environment.must_match.get("topology_class")
    match = _LINK.fullmatch(link) if isinstance(link, str) else None
    if match is None or case.ranks_per_node != case.world_size or topology in (None, "single"):
        return None
    kind, generation, width = match.groups()
    if (kind == "NVLink") != (topology == "NVLink"):
        return None
    rate = (NVLINK_RATE if kind == "NVLink" else PCIE_LANE_RATE).get(generation)
    return None if rate is None else rate * int(width)
