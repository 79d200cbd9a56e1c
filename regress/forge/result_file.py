"""The gate's JSON back into values, with nothing in it taken on trust."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from regress.errors import RecordError
from regress.result import RESULT_SCHEMA, CaseRow, GateResult, MetricRow, severity_rank
from regress.units import Unit

LARGEST_RESULT_BYTES = 64 * 2**20
"""A gate of ten thousand series writes about 10 MiB; more than this is no result of ours."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One judged metric with the case it belongs to."""

    case: CaseRow
    row: MetricRow


def read_result(content: bytes, where: str) -> GateResult:
    """The result in its JSON form; `where` (the file) is named in errors.

    Raises RecordError for anything that is not a result of this schema.
    """
    if len(content) > LARGEST_RESULT_BYTES:
        raise RecordError(f"{len(content)} bytes", where=where, accepted=f"at most {LARGEST_RESULT_BYTES} bytes")
    try:
        result = msgspec.json.decode(content, type=GateResult)
    except msgspec.DecodeError as error:
        raise RecordError(str(error), where=where, accepted="what --comm-regress-json writes",
                          next_step="`regress schema result` prints its JSON Schema") from None
    if result.schema != RESULT_SCHEMA:
        raise RecordError(f"schema {result.schema}", where=where, accepted=f"schema {RESULT_SCHEMA}",
                          next_step="use the comm-regress that wrote it")
    known = {unit.value for unit in Unit}
    for case in result.cases:
        for unit in [*(row.unit for row in case.metrics), *(row.unit for row in case.measured)]:
            if unit not in known:
                raise RecordError(f"unit {unit!r}", where=f"{where}: {case.case}", accepted=", ".join(sorted(known)))
    return result


def worst_rows(result: GateResult) -> list[Judged]:
    """Every judged metric of every case: by verdict, then those that fail the build, then by the size of the change."""
    rows = [Judged(case, row) for case in result.cases for row in case.metrics]
    return sorted(rows, key=lambda judged: (severity_rank(judged.row.verdict), judged.row.severity != "fail",
                                            -abs(judged.row.change or 0.0)))


def commit_fact(result: GateResult, name: str) -> str | None:
    """A text of the measured commit ("sha", "subject", "branch"), None where it is not known."""
    commit = result.run.get("commit")
    value = commit.get(name) if isinstance(commit, dict) else None
    return value if isinstance(value, str) else None


def run_fact(result: GateResult, name: str) -> str | None:
    """A text or number about the run ("id", "started_at", "launches") as text, None where it is not known."""
    value = result.run.get(name)
    return str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "" else None


def texts(finding: dict[str, object], *names: str) -> Iterator[str]:
    """The named texts of an explanation that are there."""
    for name in names:
        value = finding.get(name)
        if isinstance(value, str) and value:
            yield value
