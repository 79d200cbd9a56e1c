"""Clocks, memory, links and other users of the machine while it was measured."""

from __future__ import annotations

from regress.diagnose import CRITICAL, INFO, MEDIUM, WARNING, Circumstances, Need, Rule
from regress.measure.fitness import Level, assess
from regress.record import Diagnosis

_SEVERITY: dict[Level, str] = {"invalid": CRITICAL, "inconclusive": WARNING, "warn": INFO}


def _examine(seen: Circumstances, against: Circumstances | None) -> list[Diagnosis]:
    notes = assess(seen.health)
    if not notes:
        return []
    level, first = notes[0]
    others = [text for _, text in notes[1:]]
    return [Diagnosis(
        "machine_health", _SEVERITY[level], {"level": level, "notes": len(notes), "first": first},
        f"the machine itself: {first}" + (f"; {'; '.join(others)}" if others else ""),
        "measure again on an idle, cool machine before looking for the cause in the code; `regress doctor` says what "
        "to change", confidence=MEDIUM)]


RULE = Rule("machine_health", "clocks, memory errors, links or foreign load on the machine during the run",
            "NVML at 10 Hz and the host's counters while launches ran; bounds as the gate judges health by them",
            examine=_examine, needs=(Need.HEALTH,))
