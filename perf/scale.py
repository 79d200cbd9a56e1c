"""One day of a fleet in the PostgreSQL schema and in VictoriaMetrics: figures for docs/scale.md, no bounds.

    python perf/scale.py [--runners 1000] [--series 200] [--commits 100] [--days 365]

A day is runners x commits runs of `series` values each, 20 million by default, loaded with COPY into an own cluster.
One runner also gets `days` days of its own, to ask for a series over a year. Needs what `.ci/install-servers` gets.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psycopg
import requests

from regress.delivery.remote_write_form import HEADERS, snappy, write_request
from regress.delivery.series import Point
from regress.history.store import open_history
from tests import servers

RUN = "run_id, attempt, started_at, commit_sha, branch, main, environment, verdict, partial, accepted, has_samples, " \
      "location, size_bytes, modified_ns, id"
WINDOW = """SELECT x.series, x.run, x.value, x.p25 FROM comm_regress_result x WHERE x.run IN (SELECT id FROM
    comm_regress_run WHERE environment = %s AND main = 1 ORDER BY started_at DESC LIMIT 50)"""
ONE_SERIES = """SELECT r.run_id, r.commit_sha, r.started_at, x.value FROM comm_regress_result x
    JOIN comm_regress_run r ON r.id = x.run WHERE x.series = 7 AND r.environment = %s ORDER BY r.started_at"""


def timed(action: Callable[[], object], repeats: int = 3) -> float:
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def run_line(key: int, runner: int, minute: int) -> str:
    day, rest = divmod(minute, 1440)
    month, day_of_month = divmod(day, 28)
    at = f"{2025 + month // 12}-{month % 12 + 1:02d}-{day_of_month + 1:02d}T{rest // 60:02d}:{rest % 60:02d}:00.000000Z"
    return f"r{key}\t1\t{at}\t{key:040x}\tmain\t1\trunner{runner:011d}\tpass\t0\t0\t0\tl{key}\t0\t0\t{key}\n"


def runs_of(arguments: argparse.Namespace) -> Iterator[tuple[int, int, int]]:
    """(key, runner, minute): first the year of runner 0, then one day of all the others, in order of time."""
    key = 0
    for number in range((arguments.days - 1) * arguments.commits):
        key += 1
        yield key, 0, number * 1440 // arguments.commits
    start = (arguments.days - 1) * 1440
    for commit in range(arguments.commits):
        for runner in range(arguments.runners):
            key += 1
            yield key, runner, start + commit * 1440 // arguments.commits


def load(link: psycopg.Connection[Any], arguments: argparse.Namespace) -> float:
    """Seconds to COPY every value, 500 runs at a time, as a fleet's writers would in sum."""
    tails = [f"\t1.0{s:03d}e-3\t1.0e-3\t1.1e-3\t1.0e-3\t1.0{s:03d}e-3\t1.1e-3\t5\t1.0e-3\tpass\n"
             for s in range(1, arguments.series + 1)]
    begin = time.perf_counter()
    columns = "series, run, value, low, high, p25, p50, p95, launches, baseline, verdict"
    with link.cursor() as cursor, cursor.copy(f"COPY comm_regress_result ({columns}) FROM STDIN") as to:
        for key, _, _ in runs_of(arguments):
            to.write("".join(f"{s}\t{key}{tail}" for s, tail in enumerate(tails, 1)))
    link.commit()
    return time.perf_counter() - begin


def size_mib(link: psycopg.Connection[Any], name: str) -> float:
    row = link.execute("SELECT sum(pg_total_relation_size(c.oid)), sum(pg_indexes_size(c.oid)) FROM pg_class c "
                       "WHERE relname LIKE %s AND relkind = 'r'", (name,)).fetchone()
    assert row is not None
    print(f"  size with indexes {float(row[0]) / 2**20:,.0f} MiB, of which indexes {float(row[1]) / 2**20:,.0f} MiB")
    return float(row[0]) / 2**20


def queries(link: psycopg.Connection[Any], runners: int) -> None:
    quiet, old = f"runner{runners // 2:011d}", "runner00000000000"
    for words, statement, environment in (
            ("judge's window: 50 runs, all series, one runner", WINDOW, quiet),
            ("one series over a year of one runner", ONE_SERIES, old),
            ("one series of a runner with one day", ONE_SERIES, quiet)):
        rows = len(link.execute(statement, (environment,)).fetchall())
        seconds = timed(lambda s=statement, e=environment: link.execute(s, (e,)).fetchall())  # type: ignore[misc]
        print(f"  {words}: {seconds * 1e3:.1f} ms, {rows} rows")


def postgres(arguments: argparse.Namespace) -> None:
    with servers.postgres() as url:
        open_history(url).close()
        with psycopg.connect(url) as link:
            link.execute("SET synchronous_commit = off")
            with link.cursor() as cursor, cursor.copy(f"COPY comm_regress_run ({RUN}) FROM STDIN") as to:
                for key, runner, minute in runs_of(arguments):
                    to.write(run_line(key, runner, minute))
            for s in range(1, arguments.series + 1):
                link.execute("INSERT INTO comm_regress_series (case_id, metric, unit, better) VALUES (%s, %s, %s, %s)",
                             (f"case{s}", "allreduce_seconds", "seconds", "lower"))
            link.commit()
            last = sum(1 for _ in runs_of(arguments))
            values = last * arguments.series
            print(f"{values:,} values of {last:,} runs")
            seconds = load(link, arguments)
            print(f"one table: loaded in {seconds:.0f} s, {values / seconds:,.0f} values/s")
            link.autocommit = True
            link.execute("ANALYZE")
            size_mib(link, "comm_regress_result")
            queries(link, arguments.runners)
            partitioned(link, arguments, last, values)


def partitioned(link: psycopg.Connection[Any], arguments: argparse.Namespace, last: int, values: int) -> None:
    """The same table cut by run key into twelve, as months are: keys grow with time."""
    link.execute("ALTER TABLE comm_regress_result RENAME TO whole")
    link.execute("CREATE TABLE comm_regress_result (LIKE whole INCLUDING DEFAULTS) PARTITION BY RANGE (run)")
    step = last // 12 + 1
    for month in range(12):
        link.execute(f"CREATE TABLE month{month} PARTITION OF comm_regress_result FOR VALUES "
                     f"FROM ({month * step}) TO ({(month + 1) * step})")
    link.execute("ALTER TABLE comm_regress_result ADD PRIMARY KEY (series, run)")
    link.execute("CREATE INDEX ON comm_regress_result (run, series, value)")
    link.autocommit = False
    seconds = load(link, arguments)
    link.autocommit = True
    print(f"twelve partitions: loaded in {seconds:.0f} s, {values / seconds:,.0f} values/s")
    link.execute("ANALYZE")
    size_mib(link, "month%")
    queries(link, arguments.runners)
    begin = time.perf_counter()
    link.execute("DROP TABLE month0")
    dropped = time.perf_counter() - begin
    begin = time.perf_counter()
    link.execute("DELETE FROM whole WHERE run < %s", (step,))
    print(f"  giving up the oldest twelfth: DROP of a partition {dropped * 1e3:.0f} ms, DELETE from one table "
          f"{time.perf_counter() - begin:.1f} s (and a VACUUM to come)")


def metric_of(base: str, name: str) -> float:
    with urllib.request.urlopen(f"{base}/metrics") as answer:  # noqa: S310 - our own server
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def victoria(arguments: argparse.Namespace) -> None:
    """One day of all runners by remote-write, one request a run and commit, times spread over the day before now."""
    with servers.victoria_metrics() as server, requests.Session() as session:
        start = metric_of(server.base, "process_resident_memory_bytes")
        now_ms = int(time.time() * 1000)
        begin = time.perf_counter()
        for commit in range(arguments.commits):
            at = now_ms - (arguments.commits - commit) * 86_400_000 // arguments.commits
            for runner in range(arguments.runners):
                points = [Point("comm_regress_allreduce_seconds", (("case", f"case{s}"), ("repo", f"r{runner}")),
                                1e-3 + s * 1e-6 + commit * 1e-7, at) for s in range(arguments.series)]
                session.post(server.write_url, data=snappy(write_request(points)), headers=HEADERS).raise_for_status()
        seconds = time.perf_counter() - begin
        count = arguments.commits * arguments.runners * arguments.series
        urllib.request.urlopen(f"{server.base}/internal/force_flush").close()  # noqa: S310 - our own server
        # Its own metrics are a few seconds old.
        time.sleep(6)
        print(f"VictoriaMetrics: {count:,} points in {seconds:.0f} s by one client ({count / seconds:,.0f}/s, encoding "
              "included)")
        print(f"  series {metric_of(server.base, 'vm_new_timeseries_created_total'):,.0f}, memory "
              f"{start / 2**20:.0f} -> {metric_of(server.base, 'process_resident_memory_bytes') / 2**20:.0f} MiB, disk "
              f"{metric_of(server.base, 'vm_data_size_bytes') / 2**20:.0f} MiB")
        query = f"{server.base}/api/v1/query_range?query=comm_regress_allreduce_seconds%7Brepo%3D%22r7%22%2Ccase%3D" \
                f"%22case7%22%7D&start={now_ms // 1000 - 86400}&end={now_ms // 1000}&step=600"
        print(f"  one series over the day: {timed(lambda: session.get(query).content) * 1e3:.1f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runners", type=int, default=1000)
    parser.add_argument("--series", type=int, default=200)
    parser.add_argument("--commits", type=int, default=100)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--victoria-commits", type=int, default=None, help="fewer commits for VictoriaMetrics")
    arguments = parser.parse_args()
    postgres(arguments)
    if arguments.victoria_commits is not None:
        arguments.commits = arguments.victoria_commits
    victoria(arguments)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
