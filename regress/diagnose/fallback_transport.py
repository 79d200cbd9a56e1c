"""GPUs of one machine that do not talk to each other directly."""

from __future__ import annotations

from collections.abc import Iterator

from regress.diagnose import CRITICAL, HIGH, MEDIUM, WARNING, Circumstances, Need, Rule, follows
from regress.record import Diagnosis
from regress.trace.nccl_log import NcclLog

_SWITCHES = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_NET_DISABLE_INTRA")


def _one_host(log: NcclLog) -> bool:
    """Whether all ranks ran on one host that NCCL knows to be one: a host id of their own makes it see several."""
    return len({member.host for member in log.members}) == 1 and "NCCL_HOSTID" not in dict(log.settings)


def _reasons(log: NcclLog) -> Iterator[str]:
    yield from (f"{name}={value} is set" for name, value in log.settings if name in _SWITCHES)
    yield from (text for text in log.problems if "P2P" in text or "peer" in text or "IPC" in text)


def _examine(seen: Circumstances, against: Circumstances | None) -> list[Diagnosis]:
    log = seen.nccl
    if log is None or not log.links or not _one_host(log):
        return []
    network = sorted(kind for kind in log.transports if kind.startswith("NET/"))
    memory = sorted(kind for kind in log.transports if kind.startswith("SHM/"))
    if not network and not memory:
        return []
    reasons = list(_reasons(log))
    links = sum(link.transport in (*network, *memory) for link in log.links)
    through = "the network, though they are in one machine" if network else "host memory"
    return [Diagnosis(
        "fallback_transport", CRITICAL if network else WARNING,
        {"transports": ", ".join(log.transports), "connections": links, "of_connections": len(log.links),
         "reason": reasons[0] if reasons else None},
        f"{links} of {len(log.links)} connections between GPUs go through {through} ({', '.join(network or memory)})"
        + (f": {reasons[0]}" if reasons else ", and NCCL's log does not say why"),
        "unset the variable" if reasons and reasons[0].endswith("is set") else
        "check `nvidia-smi topo -p2p r`, PCIe ACS and IOMMU, /dev/shm of the container, and that all GPUs are visible "
        "to every rank", confidence=HIGH if network else MEDIUM)]


RULE = Rule("fallback_transport", "GPUs of one machine are connected through host memory or sockets, not directly",
            "transports in NCCL's log (P2P, SHM, NET). NCCL_P2P_DISABLE=1 makes two H200 ten times slower from 16 MiB "
            "(measured); on some cards host memory is the faster way (NVIDIA/nccl#1817), so that is only a warning",
            examine=_examine, needs=(Need.NCCL_LOG,), explains=follows("slow_link", "transfer_change"))
