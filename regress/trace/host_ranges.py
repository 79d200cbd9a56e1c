"""Texts of host ranges and marks that mean something, whichever tracer carries them.

Our workloads set `case:<case id>` around a case's measured part, `step` around a training step, `NAME/BYTES` around a
collective and the mark `comm_regress.rank=<rank>/<world size>`; torch.profiler adds `ProfilerStep#<n>`.
"""

from __future__ import annotations

import re

from regress.trace.timeline import ReadOptions

RANK_MARK = re.compile(r"comm_regress\.rank=(\d+)/(\d+)")
PROFILER_STEP = re.compile(r"ProfilerStep#\d+")
HOST_COMM_RANGE = re.compile(r"([a-z][a-z_]*)/(\d+)")
CASE_PREFIX = "case:"


def is_step(text: str, options: ReadOptions) -> bool:
    """Whether a range is one training step."""
    return text == options.step_range or PROFILER_STEP.fullmatch(text) is not None


def kept_by(text: str, options: ReadOptions) -> bool:
    """Whether a range is kept under its own name, to restrict an analysis to it."""
    return text.startswith(CASE_PREFIX) or text in options.keep
