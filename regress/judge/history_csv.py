"""A history as CSV text into rows, with an error that names the line for whatever cannot be read."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from regress.errors import UsageError
from regress.units import Better

REQUIRED = ("timestamp", "commit", "metric", "value")
_ACCEPTED = "a header timestamp,commit,metric,value[,unit,better]; other columns are ignored"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one commit. time: seconds since the epoch, or any rising number. unit: as written, may be empty."""

    time: float
    commit: str
    metric: str
    value: float
    unit: str = ""
    better: Better = Better.LOWER


@dataclass(frozen=True, slots=True)
class CommitValues:
    """All figures of one commit, in order: the launches of one run."""

    commit: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class History:
    """One metric in one unit over commits, oldest first."""

    metric: str
    unit: str
    better: Better
    commits: tuple[CommitValues, ...]


def read_rows(text: str, where: str) -> tuple[Row, ...]:
    """The rows of a CSV text in the file's order; `where` (the file) is named in errors.

    timestamp: ISO 8601 (UTC where no zone is given) or a number. better: lower (default) or higher.
    Raises UsageError for a missing column, an empty field, a value that is not a finite number, an unknown direction.
    """
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")))
    header = [name.strip().lower() for name in reader.fieldnames or ()]
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise UsageError(f"no column {', '.join(missing)}" if header else "an empty file", where=f"{where}, line 1",
                         accepted=_ACCEPTED)
    reader.fieldnames = header
    rows = tuple(_row(fields, f"{where}, line {reader.line_num}") for fields in reader)
    if not rows:
        raise UsageError("a header and no rows", where=where, accepted="at least one row")
    return rows


def histories(rows: Sequence[Row]) -> tuple[tuple[History, ...], tuple[str, ...]]:
    """Rows by metric, oldest commit first, with warnings.

    A commit stands at its first timestamp; rows of a commit that was measured again later are launches all the same,
    so it counts once. A metric whose unit or direction changes is two histories: they are not compared.
    """
    grouped: dict[tuple[str, str, Better], dict[str, list[Row]]] = {}
    for row in sorted(rows, key=lambda item: item.time):
        grouped.setdefault((row.metric, row.unit, row.better), {}).setdefault(row.commit, []).append(row)
    made = tuple(History(metric, unit, better, tuple(
        CommitValues(commit, tuple(r.value for r in found)) for commit, found in commits.items()))
        for (metric, unit, better), commits in grouped.items())
    names = [history.metric for history in made]
    split = sorted({name for name in names if names.count(name) > 1})
    warnings = tuple(f"{name} is given in {names.count(name)} units or directions, which are not compared with each "
                     "other" for name in split)
    return made, warnings


def _row(fields: dict[str, str | None], where: str) -> Row:
    texts = {name: (fields.get(name) or "").strip() for name in (*REQUIRED, "unit", "better")}
    empty = [name for name in REQUIRED if not texts[name]]
    if empty:
        raise UsageError(f"no {', '.join(empty)}", where=where, accepted=_ACCEPTED)
    try:
        value = float(texts["value"])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"value {texts['value']!r}", where=where, accepted="a finite number",
                         next_step="leave out a row that was not measured")
    better = texts["better"].lower() or "lower"
    if better not in ("lower", "higher"):
        raise UsageError(f"better {texts['better']!r}", where=where, accepted="lower or higher")
    return Row(_time(texts["timestamp"], where), texts["commit"], texts["metric"], value, texts["unit"], Better(better))


def _time(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isfinite(number):
        return number
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise UsageError(f"timestamp {text!r}", where=where,
                         accepted="ISO 8601 such as 2026-01-31T12:00:00Z, or a number") from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)).timestamp()
