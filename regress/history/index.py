"""The index over runs: one schema and one set of statements for SQLite and PostgreSQL.

Everything in the index comes from stored runs and can be made again from them at any time. Statements are written in
the SQL that both engines share, with `:name` parameters; `Database` hides how each engine runs them.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from regress.errors import RecordError
from regress.history.runs import Entry, Problem, utc
from regress.record import SEVEREST_FIRST, CaseOutcome, Measurement, Run, run_from_json, to_json

SCHEMA = "3"
"""Another value than the stored one means: drop everything and build the index again."""

# Cut out of our own encoding, which is several times faster than building the run again. Inside a JSON text every
# quote is escaped, so that nothing a warning or a commit's subject says can look like this.
_SAMPLES = re.compile(rb'"samples":\[[^\]]*\]')

Bound = str | int | float | bytes | None
Row = tuple[Any, ...]

TABLES = ("meta", "run", "slim", "series", "result", "problem")
_DDL = (
    "CREATE TABLE IF NOT EXISTS comm_regress_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS comm_regress_run (id {key}, run_id TEXT NOT NULL, attempt BIGINT NOT NULL,
       started_at TEXT NOT NULL, commit_sha TEXT, branch TEXT, main BIGINT NOT NULL, environment TEXT NOT NULL,
       verdict TEXT NOT NULL, partial BIGINT NOT NULL, accepted BIGINT NOT NULL, has_samples BIGINT NOT NULL,
       location TEXT NOT NULL UNIQUE, size_bytes BIGINT NOT NULL, modified_ns BIGINT NOT NULL,
       UNIQUE (run_id, attempt))""",
    "CREATE INDEX IF NOT EXISTS comm_regress_run_window ON comm_regress_run (environment, main, started_at)",
    "CREATE INDEX IF NOT EXISTS comm_regress_run_time ON comm_regress_run (started_at)",
    "CREATE TABLE IF NOT EXISTS comm_regress_slim (run BIGINT PRIMARY KEY, content {blob} NOT NULL)",
    """CREATE TABLE IF NOT EXISTS comm_regress_series (id {key}, case_id TEXT NOT NULL, metric TEXT NOT NULL,
       unit TEXT NOT NULL, better TEXT NOT NULL, UNIQUE (case_id, metric))""",
    """CREATE TABLE IF NOT EXISTS comm_regress_result (series BIGINT NOT NULL, run BIGINT NOT NULL,
       value DOUBLE PRECISION NOT NULL, low DOUBLE PRECISION NOT NULL, high DOUBLE PRECISION NOT NULL,
       p25 DOUBLE PRECISION, p50 DOUBLE PRECISION, p95 DOUBLE PRECISION, launches BIGINT NOT NULL,
       baseline DOUBLE PRECISION, verdict TEXT, PRIMARY KEY (series, run)){clustered}""",
    "CREATE INDEX IF NOT EXISTS comm_regress_result_run ON comm_regress_result (run, series, value)",
    """CREATE TABLE IF NOT EXISTS comm_regress_problem (location TEXT PRIMARY KEY, reason TEXT NOT NULL,
       size_bytes BIGINT NOT NULL, modified_ns BIGINT NOT NULL)""",
)
_INSERT_RUN = """INSERT INTO comm_regress_run (run_id, attempt, started_at, commit_sha, branch, main, environment,
    verdict, partial, accepted, has_samples, location, size_bytes, modified_ns)
    VALUES (:run_id, :attempt, :started_at, :commit_sha, :branch, :main, :environment, :verdict, :partial, :accepted,
    :has_samples, :location, :size_bytes, :modified_ns) ON CONFLICT DO NOTHING"""
_INSERT_SERIES = """INSERT INTO comm_regress_series (case_id, metric, unit, better)
    VALUES (:case_id, :metric, :unit, :better) ON CONFLICT DO NOTHING"""
_INSERT_RESULT = """INSERT INTO comm_regress_result
    (series, run, value, low, high, p25, p50, p95, launches, baseline, verdict)
    VALUES (:series, :run, :value, :low, :high, :p25, :p50, :p95, :launches, :baseline, :verdict)
    ON CONFLICT DO NOTHING"""


class Connection(Protocol):
    """Statements inside one transaction."""

    def rows(self, statement: str, values: Mapping[str, Bound] | None = None) -> list[Row]:
        """Run one statement and return what it yields."""

    def many(self, statement: str, values: Sequence[Mapping[str, Bound]]) -> int:
        """Run one statement for each set of values, which may hold more than it needs; returns the rows changed."""


class Database(Protocol):
    """One engine. `types` fills the few places where the engines' DDL differs."""

    types: Mapping[str, str]

    def reading(self) -> AbstractContextManager[Connection]:
        """A transaction that only reads."""

    def writing(self) -> AbstractContextManager[Connection]:
        """A transaction that writes: all of it or nothing. One at a time on SQLite."""

    def close(self) -> None:
        """Let go of the engine."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which runs are meant; all where None.

    main_only: runs of the main branch, and those without a commit, which are of no branch. since and before: ISO 8601,
    since included, before excluded. accepted: only runs that were accepted when they were made, and these, as
    (run id, attempt).
    """

    environment: str | None = None
    main_only: bool = False
    since: str | None = None
    before: str | None = None
    id_prefix: str | None = None
    accepted: Collection[tuple[str, int]] | None = None

    def clause(self, where: str = "window") -> tuple[str, dict[str, Bound]]:
        """SQL conditions on the run table (alias r) and their values."""
        parts, values = ["1 = 1"], dict[str, Bound]()
        if self.environment is not None:
            parts.append("r.environment = :environment")
            values["environment"] = self.environment
        if self.main_only:
            parts.append("(r.main = 1 OR r.commit_sha IS NULL)")
        for name, sign, moment in (("since", ">=", self.since), ("before", "<", self.before)):
            if moment is not None:
                parts.append(f"r.started_at {sign} :{name}")
                values[name] = time_key(moment, where)
        if self.id_prefix is not None:
            # Not LIKE and no range: neither means the same under every collation.
            parts.append("substr(r.run_id, 1, :id_length) = :id_prefix")
            values.update(id_prefix=self.id_prefix, id_length=len(self.id_prefix))
        if self.accepted is not None:
            marked = {f"marked{place}": f"{run_id}/{attempt}"
                      for place, (run_id, attempt) in enumerate(sorted(self.accepted))}
            listed = ", ".join(f":{name}" for name in marked)
            parts.append(f"(r.accepted = 1 OR r.run_id || '/' || r.attempt IN ({listed}))" if listed
                         else "r.accepted = 1")
            values.update(marked)
        return " AND ".join(parts), values


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as the index knows it, without its measurements."""

    key: int
    run_id: str
    attempt: int
    started_at: str
    commit: str | None
    location: str
    accepted: bool
    has_samples: bool


def time_key(moment: str, where: str) -> str:
    """UTC with microseconds: a text that sorts as time."""
    return utc(moment, where).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def create(connection: Connection, types: Mapping[str, str]) -> bool:
    """Make the tables; returns whether the index was of another schema and is now empty."""
    connection.rows(_DDL[0])
    if meta(connection, "schema") == SCHEMA:
        return False
    for table in reversed(TABLES):
        connection.rows(f"DROP TABLE IF EXISTS comm_regress_{table}")
    for statement in _DDL:
        connection.rows(statement.format_map(types))
    set_meta(connection, "schema", SCHEMA)
    return True


def meta(connection: Connection, name: str) -> str | None:
    """A value the index keeps about itself."""
    found = connection.rows("SELECT value FROM comm_regress_meta WHERE name = :name", {"name": name})
    return str(found[0][0]) if found else None


def set_meta(connection: Connection, name: str, value: str) -> None:
    """Remember a value about the index itself."""
    connection.rows("INSERT INTO comm_regress_meta (name, value) VALUES (:name, :value) "
                    "ON CONFLICT (name) DO UPDATE SET value = excluded.value", {"name": name, "value": value})


def clear(connection: Connection) -> None:
    """Empty the index, as before the first run."""
    for table in TABLES[1:]:
        connection.rows(f"DELETE FROM comm_regress_{table}")
    connection.rows("DELETE FROM comm_regress_meta WHERE name <> 'schema'")


def known(connection: Connection) -> dict[str, Entry]:
    """What the index has seen of each location, readable or not."""
    found = connection.rows("SELECT location, size_bytes, modified_ns FROM comm_regress_run "
                            "UNION ALL SELECT location, size_bytes, modified_ns FROM comm_regress_problem")
    return {str(name): Entry(str(name), int(size), int(modified)) for name, size, modified in found}


def forget(connection: Connection, locations: Iterable[str]) -> None:
    """Take these locations out of the index."""
    values: list[Mapping[str, Bound]] = [{"location": location} for location in locations]
    if not values:
        return
    for table in ("slim", "result"):
        connection.many(f"DELETE FROM comm_regress_{table} WHERE run IN "
                        "(SELECT id FROM comm_regress_run WHERE location = :location)", values)
    for table in ("run", "problem"):
        connection.many(f"DELETE FROM comm_regress_{table} WHERE location = :location", values)


class SeriesKeys:
    """The keys of all series, good for one transaction: a rebuild elsewhere gives others."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[tuple[Bound, Bound], int] = {}

    def of(self, results: Sequence[Mapping[str, Bound]]) -> list[int]:
        """The key of each result's series; series that are new are added, in the order of the results."""
        wanted = [(values["case_id"], values["metric"]) for values in results]
        if not self._known.keys() >= set(wanted):
            self._read()
            added = [values for values, place in zip(results, wanted, strict=True) if place not in self._known]
            if added:
                self._connection.many(_INSERT_SERIES, added)
                self._read()
        return [self._known[place] for place in wanted]

    def _read(self) -> None:
        found = self._connection.rows("SELECT id, case_id, metric FROM comm_regress_series")
        self._known = {(case, metric): int(key) for key, case, metric in found}


def put(connection: Connection, run: Run, entry: Entry, series: SeriesKeys | None = None) -> Problem | None:
    """Index a run that is stored at `entry`; a run that is already indexed stays as it is.

    series: shared by all runs of one transaction. Returns the problem when another location holds the same run id and
    attempt.
    """
    identity: dict[str, Bound] = {"run_id": run.run_id, "attempt": run.attempt}
    connection.rows(_INSERT_RUN, identity | _run_values(run, entry))
    key, location = connection.rows("SELECT id, location FROM comm_regress_run "
                                    "WHERE run_id = :run_id AND attempt = :attempt", identity)[0]
    if location != entry.name:
        problem = Problem(entry.name, f"holds run {run.run_id} attempt {run.attempt}, as {location} does")
        put_problem(connection, problem, entry)
        return problem
    slim = zlib.compress(_SAMPLES.sub(b'"samples":[]', to_json(run)), 1)
    connection.rows("INSERT INTO comm_regress_slim (run, content) VALUES (:run, :content) ON CONFLICT DO NOTHING",
                    {"run": key, "content": slim})
    results = list(_results(run, int(key)))
    keys = (series or SeriesKeys(connection)).of(results)
    for values, found in zip(results, keys, strict=True):
        values["series"] = found
    connection.many(_INSERT_RESULT, results)
    return None


def put_problem(connection: Connection, problem: Problem, entry: Entry) -> None:
    """Remember that a location is no readable run, so that it is not read again until it changes."""
    connection.rows("INSERT INTO comm_regress_problem (location, reason, size_bytes, modified_ns) "
                    "VALUES (:location, :reason, :size, :modified) ON CONFLICT DO NOTHING",
                    {"location": problem.location, "reason": problem.reason, "size": entry.size_bytes,
                     "modified": entry.modified_ns})


def problems(connection: Connection) -> list[Problem]:
    """The locations that are no readable runs."""
    found = connection.rows("SELECT location, reason FROM comm_regress_problem ORDER BY location")
    return [Problem(str(location), str(reason)) for location, reason in found]


def run_rows(connection: Connection, window: Window, limit: int | None = None, *,
             oldest_first: bool = False) -> list[RunRow]:
    """The runs of a window by time, newest first unless told otherwise; at most `limit` of them."""
    condition, values = window.clause()
    turn = "ASC" if oldest_first else "DESC"
    bound = "" if limit is None else f" LIMIT {int(limit)}"
    found = connection.rows(
        "SELECT r.id, r.run_id, r.attempt, r.started_at, r.commit_sha, r.location, r.accepted, r.has_samples "
        f"FROM comm_regress_run r WHERE {condition} "
        f"ORDER BY r.started_at {turn}, r.run_id {turn}, r.attempt {turn}{bound}",
        values)
    return [RunRow(row[0], row[1], row[2], row[3], row[4], row[5], bool(row[6]), bool(row[7])) for row in found]


def slim_run(connection: Connection, row: RunRow) -> Run:
    """The run without raw samples, from the index alone; RecordError where its copy there is damaged."""
    found = connection.rows("SELECT content FROM comm_regress_slim WHERE run = :run", {"run": row.key})
    try:
        plain = zlib.decompress(bytes(found[0][0]))
    except zlib.error as error:
        raise RecordError(f"damaged in the index: {error}", where=row.location) from error
    return run_from_json(plain, row.location)


def _run_values(run: Run, entry: Entry) -> dict[str, Bound]:
    has_samples = any(m.samples for launch in run.launches for o in launch.outcomes for m in o.measurements)
    return {"started_at": time_key(run.started_at, entry.name), "commit_sha": run.commit.sha,
            "branch": run.commit.branch, "main": int(run.commit.main),
            "environment": run.environment.fingerprint, "verdict": run.verdict.value, "partial": int(run.partial),
            "accepted": int(run.accepted is not None), "has_samples": int(has_samples), "location": entry.name,
            "size_bytes": entry.size_bytes, "modified_ns": entry.modified_ns}


def _results(run: Run, key: int) -> Iterator[dict[str, Bound]]:
    """One row for each metric of each case, folded over launches by the median, in an order all writers share.

    Head launches count; a metric that only profiled launches give is folded over those. Base launches never count.
    The shared order keeps concurrent writers on a server from waiting for each other in a circle.
    """
    gathered: dict[tuple[str, str], dict[str, list[Measurement]]] = {}
    for launch in run.launches:
        for outcome in launch.outcomes if launch.role in ("head", "traced") else ():
            _gather(gathered, launch.role, outcome)
    opinions: dict[tuple[str, str], tuple[int, float | None]] = {}
    for finding in run.findings:
        place = (finding.case, finding.metric)
        rank, baseline = opinions.get(place, (len(SEVEREST_FIRST) - 1, None))
        opinions[place] = (min(rank, SEVEREST_FIRST.index(finding.verdict)),
                           finding.baseline if baseline is None else baseline)
    for place in sorted(gathered):
        by_role = gathered[place]
        measured = by_role.get("head") or by_role["traced"]
        values = [m.value for m in measured]
        opinion = opinions.get(place)
        yield {"run": key, "case_id": place[0], "metric": place[1], "unit": measured[0].unit.value,
               "better": measured[0].better.value, "value": _median(values), "low": min(values), "high": max(values),
               "p25": _statistic(measured, "p25"), "p50": _statistic(measured, "p50"),
               "p95": _statistic(measured, "p95"), "launches": len(values),
               "baseline": opinion[1] if opinion else None,
               "verdict": SEVEREST_FIRST[opinion[0]].value if opinion else None}


def _statistic(measured: Sequence[Measurement], name: str) -> float | None:
    if len(measured) == 1:
        return measured[0].statistics.get(name)
    return _median([found for m in measured if (found := m.statistics.get(name)) is not None])


def _gather(gathered: dict[tuple[str, str], dict[str, list[Measurement]]], role: str, outcome: CaseOutcome) -> None:
    case = outcome.case.id
    for measurement in outcome.measurements:
        gathered.setdefault((case, measurement.metric), {}).setdefault(role, []).append(measurement)


def _median(values: list[float]) -> float | None:
    if len(values) < 2:
        return values[0] if values else None
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
