"""What NCCL chose otherwise than in the run compared with."""

from __future__ import annotations

from regress.diagnose import CRITICAL, INFO, WARNING, Circumstances, Need, Rule, follows
from regress.record import Diagnosis
from regress.trace.messages import message_sizes
from regress.units import exact_size

_SLOWER = 0.10
_ENOUGH = 5


def _slower(seen: Circumstances, against: Circumstances) -> dict[str, float]:
    """Relative change of transfer by "operation size", for sizes seen often enough in both traces."""
    before = {f"{row.operation} {exact_size(row.size_bytes or 0)}": row for row in message_sizes(against.analysis)}
    found = {}
    for row in message_sizes(seen.analysis):
        what = f"{row.operation} {exact_size(row.size_bytes or 0)}"
        if what in before and before[what].transfer_seconds and min(row.count, before[what].count) >= _ENOUGH:
            found[what] = row.transfer_seconds / before[what].transfer_seconds - 1
    return found


def _why(seen: Circumstances, against: Circumstances) -> str:
    """Settings and versions that differ between the logs, and NVLS that came or went."""
    now, old = seen.nccl, against.nccl
    if now is None or old is None:
        return ""
    said = []
    if now.versions != old.versions and now.versions and old.versions:
        said.append(f"NCCL {', '.join(old.versions)} became {', '.join(now.versions)}")
    mine, theirs = dict(now.settings), dict(old.settings)
    said += [f"{name} is {mine.get(name, 'unset')} and was {theirs.get(name, 'unset')}"
             for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)]
    return "; ".join(said)


def _nvls(seen: Circumstances) -> int | None:
    log = seen.nccl
    counts = [] if log is None else [one.channels for one in log.channel_counts if one.kind == "nvls"]
    return max(counts, default=None)


def _examine(seen: Circumstances, against: Circumstances | None) -> list[Diagnosis]:
    if against is None:
        return []
    now, before = seen.chosen, against.chosen
    changed = {what: (before[what], now[what]) for what in now if what in before and now[what] != before[what]}
    nvls, nvls_before = _nvls(seen), _nvls(against)
    lost = nvls == 0 and bool(nvls_before)
    if not changed and not lost:
        return []
    slower = _slower(seen, against)
    worst = max(changed, key=lambda what: slower.get(what, -1.0), default="")
    change = slower.get(worst)
    grave = change is not None and change >= _SLOWER
    why = _why(seen, against)
    old, new = changed.get(worst, ("", ""))
    said = f"NCCL runs {worst} as {new}, where it was {old}" if worst else "NCCL found no NVLS channels"
    return [Diagnosis(
        "algorithm_change", CRITICAL if grave else WARNING if lost or change is None else INFO,
        {"what": worst or None, "now": new or None, "before": old or None, "sizes_changed": len(changed),
         "transfer_change": change, "nvls_channels": nvls, "nvls_channels_before": nvls_before},
        said + (f" (transfer {change:+.0%})" if change is not None else "")
        + (f"; {len(changed) - 1} other sizes changed too" if len(changed) > 1 else "")
        + ("; NVLS is gone" if lost else "") + (f". {why}" if why else ""),
        "set back what changed, or pin it for one run with NCCL_ALGO or NCCL_PROTO to see whether it is the cause; "
        "NVLS needs fabric manager and NCCL_NVLS_ENABLE, and 2.27 and 2.28 lose it without an error")]


RULE = Rule("algorithm_change", "NCCL chose another algorithm, protocol or number of channels at some size",
            "NCCL's own log (subsystem TUNING): a kernel's name does not say what ran (NVIDIA/nccl#2223). Most known "
            "regressions of NCCL are such a change (NVIDIA/nccl#1112, #1876, #1801)",
            examine=_examine, needs=(Need.BEFORE, Need.CHOICES), explains=follows("transfer_change", "slow_link"))
