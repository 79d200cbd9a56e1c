"""Texts of host ranges and marks that mean something, whichever tracer carries them.

Our workloads set `case:<case id>` around a case's measured part, `step` around a training step, `NAME/BYTES` around a
collective (`all_reduce/4096`; ranges such as `batch/3` look alike and are none) and the mark
`comm_regress.rank=<rank>/<world size>`; torch.profiler adds `ProfilerStep#<n>`.
"""

from __future__ import annotations

import re

from regress.trace.names import OPERATIONS, operation
from regress.trace.timeline import ReadOptions

RANK_MARK = re.compile(r"comm_regress\.rank=(\d+)/(\d+)")
PROFILER_STEP = re.compile(r"ProfilerStep#\d+")
CASE_PREFIX = "case:"
_NAME_AND_BYTES = re.compile(r"([a-z][a-z0-9_]*)/([0-9]{1,18})")
_EVERYDAY = frozenset(("Broadcast", "Send", "Recv", "Reduce", "Gather", "Scatter", "Barrier"))
"""Operations whose names are words of other trades too: they count where they stand alone, as in `reduce/4096`."""


def is_step(text: str, options: ReadOptions) -> bool:
    """Whether a range is one training step."""
    return text == options.step_range or PROFILER_STEP.fullmatch(text) is not None


def kept_by(text: str, options: ReadOptions) -> bool:
    """Whether a range is kept under its own name, to restrict an analysis to it."""
    return text.startswith(CASE_PREFIX) or text in options.keep


def host_collective(text: str) -> tuple[int, int] | None:
    """Operation (index into `names.OPERATIONS`) and bytes of a range around a collective, None for any other range."""
    found = _NAME_AND_BYTES.fullmatch(text)
    if found is None:
        return None
    word = found[1].replace("_", "")
    code = operation(word)
    alone = word in (OPERATIONS[code].lower(), "bcast")
    return (code, int(found[2])) if code and (alone or OPERATIONS[code] not in _EVERYDAY) else None
