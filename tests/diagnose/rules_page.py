"""docs/rules.md: what every rule looks for, and what each says of every sample; made from the code and the samples.

    python -m tests.diagnose.rules_page docs
"""

from __future__ import annotations

import lzma
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from regress.diagnose import Circumstances, Need, Rule, diagnose_run, missing, rules
from regress.errors import TraceUnfitError
from regress.record import Environment
from regress.reference import GENERATED, table
from regress.trace.nccl_log import parse_log
from regress.trace.read import read_traces
from tests.trace.samples import NSYS, kineto_8_ranks, sample

LOG = Path(__file__).parents[1] / "data" / "nsys" / "nccl-2.28.9-2gpu-rank0.log.xz"
DLRM = "public/param_dlrm_8rank_kineto"
PAIRS = (("nvlink/small_buckets", "nvlink/good"), ("mps/small_buckets", "mps/good"), ("mps/pageable", "mps/good"),
         ("mps/sync_loop", "mps/good"), ("mps/accum_sync", "mps/accum_no_sync"), ("mps/micro_1channel", "mps/micro"),
         ("sliced/straggler", "sliced/good"), ("mps/good", "mps/good"))
_MARKS = {"critical": "**C**", "warning": "W", "info": "i"}
SAID, SILENT, NOT_APPLICABLE = "fired", "·", ""


def _known(name: str) -> Circumstances:
    analysis = read_traces(list(kineto_8_ranks()) if name == DLRM else [sample(name)])
    if not name.startswith("nvlink/"):
        return Circumstances(analysis)
    # The one set whose NCCL log was kept: same machine, same NCCL.
    log = parse_log(lzma.decompress(LOG.read_bytes()).decode())
    facts: dict[str, str | int | float | bool | None] = {"link_class": "NVLink 4.0 x18", "node_count": 1}
    return Circumstances(analysis, log, (), environment=Environment(facts))


def cells(seen: Circumstances, against: Circumstances | None) -> dict[str, str]:
    """For each rule its mark on that run: by severity where it fired, · where not, empty where not applicable.

    A mark in brackets is a consequence of another finding.
    """
    found = diagnose_run(seen, against)
    marks = {one.rule: f"({_MARKS[one.severity]})" for cause in found for one in cause.consequences}
    marks |= {one.rule: _MARKS[one.severity] for one in reversed(found)}
    return {name: marks.get(name, NOT_APPLICABLE if missing(rule, seen, against) else SILENT)
            for name, rule in rules().items()}


def rows() -> Iterator[tuple[str, dict[str, str] | None]]:
    """Every sample, alone and against another; None where the trace itself is unfit."""
    for name in [*NSYS, DLRM]:
        try:
            yield f"`{name}`", cells(_known(name), None)
        except TraceUnfitError:
            yield f"`{name}`", None
    for name, other in PAIRS:
        now, before = _known(name), _known(other)
        if name == other:
            now = replace(now, cost_per_gpu_hour=1.0)
        yield f"`{name}` against `{other}`", cells(now, before)


def _described(rule: Rule) -> tuple[str, ...]:
    needs = ", ".join(need.value for need in rule.needs) or "any trace"
    return f"`{rule.name}`", rule.summary, needs, rule.source


def rules_page() -> str:
    """The whole page."""
    shelf = rules()
    names = list(shelf)
    numbers = {name: str(number) for number, name in enumerate(names, 1)}
    shown = [(name, *(["unfit: refused before any rule"] + [""] * (len(names) - 1) if found is None else
                      [found[rule] for rule in names])) for name, found in rows()]
    return "\n\n".join([
        "# Rules of diagnosis", GENERATED,
        "`regress explain TRACE` and the gate's traced launch apply these rules. A rule says what it saw in numbers, "
        "the likely cause and a change to try, with a severity (critical, warning, info) and a confidence: high where "
        "the cause itself was seen, medium where it is inferred, low where another is as likely. What follows from a "
        "cause stands beneath it and nowhere else. Findings come worst first: by severity, by what is new against the "
        "run compared with, and by the time they cost per step.",
        "A rule that lacks what it needs is not applicable, which is not the same as having found nothing.",
        table(("rule", "finds", "needs", "why, and what its thresholds rest on"), map(_described, shelf.values())),
        "## Rules on the samples",
        "Real traces with one planted fault each (see `tests/data/trace/README.md`), alone and against a healthy run. "
        "**C** critical, W warning, i info; in brackets: beneath another finding; · nothing found; empty: not "
        "applicable. NCCL's log is known for `nvlink/` only.",
        "Columns: " + ", ".join(f"{numbers[name]} `{name}`" for name in names) + ".",
        table(("sample", *(numbers[name] for name in names)), shown),
        "Rules that need NCCL's log of two runs, health or output of ranks are tested on made ones "
        "(`tests/diagnose/test_circumstances.py`); faults that gloo on the CPU can show are planted in real training "
        "steps (`tests/diagnose/test_planted.py`).",
    ]) + "\n"


def needs_of_all() -> set[Need]:
    """Every need that some rule declares."""
    return {need for rule in rules().values() for need in rule.needs}


def main(folder: Path) -> None:
    """Writes the page into a folder."""
    (folder / "rules.md").write_text(rules_page(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
