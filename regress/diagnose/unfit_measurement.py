"""A trace whose durations mean less than they seem to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regress.diagnose import WARNING, Rule
from regress.record import Diagnosis

if TYPE_CHECKING:
    from regress.trace.analysis import Analysis


def _check(analysis: Analysis, against: Analysis | None) -> list[Diagnosis]:
    found = []
    if analysis.health.time_sliced:
        found.append(Diagnosis(
            "unfit_measurement", WARNING, {"reason": "time_sliced", "ranks": len(analysis.lanes),
                                           "devices": analysis.devices},
            f"{len(analysis.lanes)} ranks take turns on {analysis.devices} GPU: durations are multiples of a time "
            "slice, so only counts and order mean anything",
            "give each rank a GPU of its own, or start the CUDA multi-process service"))
    if analysis.health.missing_ranks:
        missing = analysis.health.missing_ranks
        found.append(Diagnosis(
            "unfit_measurement", WARNING, {"reason": "missing_ranks", "missing": len(missing), "first": missing[0]},
            f"{len(missing)} ranks have no trace, so who was waited for is unknown",
            "name the traces of all ranks"))
    return found


RULE = Rule("unfit_measurement", "durations in this trace cannot be taken at face value",
            "ranks of one GPU leave a collective a slice (2 ms) apart when sliced, within 80 µs side by side "
            "(measured)", _check)
