"""How fast traces are read, against what a reader cannot beat and what others need, on this machine.

    python perf/trace_reading.py export [--kernels 1000000]   scaled nsys export: ours / sqlite3 alone / nsys stats
    python perf/trace_reading.py memory [--kernels 10000000]  peak memory of reading a big export
    python perf/trace_reading.py hta                          HolisticTraceAnalysis beside ours on the 8-rank set
    python perf/trace_reading.py ranks [--ranks 512]          many ranks, one file each
    python perf/trace_reading.py json [--gigabytes 2]         one huge torch.profiler file

Every part runs in a process of its own, so peak memory is that of the part. Prints one line a figure.
"""

from __future__ import annotations

import argparse
import gc
import json
import lzma
import multiprocessing
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from regress.explain import explain  # noqa: E402
from regress.trace.read import read_traces  # noqa: E402

DATA = ROOT / "tests" / "data" / "trace"
DEVICES = 8
KERNELS_PER_TURN = 3322
"""Kernels of one rank in the sample that is scaled: ten DDP steps on two H200 (tests/data/trace/nvlink/good)."""
_TURN_NS = 200_000_000
_TURN_IDS = 1_000_000
_LAUNCHES = "nameId IN (SELECT id FROM StringIds WHERE value LIKE 'cu%Launch%')"
_FETCHED = (
    'SELECT start, "end", globalPid, deviceId, streamId, shortName, correlationId, gridX '
    "FROM CUPTI_ACTIVITY_KIND_KERNEL",
    f"SELECT start, globalTid, correlationId, nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE {_LAUNCHES}",
    'SELECT start, "end", globalPid, deviceId, bytes, copyKind, srcKind, dstKind FROM CUPTI_ACTIVITY_KIND_MEMCPY',
    'SELECT start, "end", eventType, globalTid, text, textId, binaryData, jsonText FROM NVTX_EVENTS')
"""What our reader reads, row for row."""


def make_export(path: Path, kernels: int) -> None:
    """The sample over and over: its two ranks become eight, and its ten steps follow one another until it is enough."""
    path.write_bytes(lzma.decompress((DATA / "nvlink" / "good.sqlite.xz").read_bytes()))
    turns = -(-kernels // (DEVICES * KERNELS_PER_TURN))
    db = sqlite3.connect(path)
    db.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;")
    low, = db.execute("SELECT MIN(globalPid) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
    step, = db.execute("SELECT MAX(globalPid) - MIN(globalPid) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
    places = [(turn, pair) for turn in range(turns) for pair in range(DEVICES // 2)]
    db.execute("CREATE TEMP TABLE places (turn INTEGER, pair INTEGER)")
    db.executemany("INSERT INTO places VALUES (?, ?)", places)
    db.execute("DELETE FROM DIAGNOSTIC_EVENT")
    db.execute("DELETE FROM NVTX_EVENTS WHERE eventType <> 59")
    for table, owner in (("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"), ("CUPTI_ACTIVITY_KIND_MEMCPY", "globalPid"),
                         ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid"), ("NVTX_EVENTS", "globalTid")):
        moved = {"start": f"start + turn * {_TURN_NS}", "end": f'"end" + turn * {_TURN_NS}',
                 owner: f"{owner} + pair * 2 * {step}", "correlationId": f"correlationId + turn * {_TURN_IDS}",
                 "deviceId": "deviceId + pair * 2"}
        columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
        chosen = ", ".join(moved.get(name, f'"{name}"') for name in columns)
        db.execute(f"CREATE TEMP TABLE one AS SELECT * FROM {table} WHERE {owner} >= {low}")
        db.execute(f"DELETE FROM {table}")
        db.execute(f"INSERT INTO {table} SELECT {chosen} FROM places CROSS JOIN one ORDER BY turn")
        db.execute("DROP TABLE one")
    db.commit()
    db.close()


def fetch_alone(path: Path) -> tuple[float, float]:
    """Wall and CPU seconds in which sqlite3 alone fetches the rows and columns our reader reads, unused."""
    began, cpu = time.perf_counter(), time.process_time()
    db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    for query in _FETCHED:
        cursor = db.execute(query)
        while cursor.fetchmany(10_000):
            pass
    db.close()
    return time.perf_counter() - began, time.process_time() - cpu


def read_all(paths: list[Path]) -> tuple[float, float, dict[str, float]]:
    """Wall and CPU seconds in which we read, check, match, compute every metric and judge every rule; the metrics."""
    began, cpu = time.perf_counter(), time.process_time()
    values = {metric.name: metric.value for metric in explain(paths).metrics}
    return time.perf_counter() - began, time.process_time() - cpu, values


def peak_bytes() -> int:
    """Most memory this process, or the biggest of its children, has held."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) * 1024


def apart(call: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
    """The call's result in a fresh process, and the peak memory there."""
    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_apart, args=(send, call, arguments))
    process.start()
    result: tuple[Any, int] = receive.recv()
    process.join()
    return result


def _apart(send: Any, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    result = call(*arguments)
    send.send((result, peak_bytes()))


def nsys_stats(path: Path) -> tuple[float, float] | None:
    """Wall and CPU seconds of nsys's own kernel summary of that export, None where no nsys is at hand."""
    nsys = os.environ.get("REGRESS_NSYS") or shutil.which("nsys")
    if nsys is None:
        return None
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([nsys, "stats", "--report", "cuda_gpu_kern_sum", "--force-export=false", str(path)],
                          capture_output=True, text=True, check=False)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (took, cpu) if "ncclDevKernel" in done.stdout else None


def part_export(folder: Path, kernels: int) -> None:
    """Ours against sqlite3 alone and nsys stats; the best of three of each, taken in turn."""
    path = folder / "scaled.sqlite"
    make_export(path, kernels)
    ours, alone = [], []
    for _ in range(3):
        (*took, metrics), peak = apart(read_all, [path])
        ours.append(took)
        alone.append(apart(fetch_alone, path)[0])
    (wall, cpu), (wall_alone, cpu_alone) = ([min(column) for column in zip(*times, strict=True)]
                                            for times in (ours, alone))
    print(f"export of {kernels:,} kernels and launches, {path.stat().st_size / 1e6:.0f} MB")
    print(f"  load and all metrics  {wall:.2f} s ({cpu:.2f} s CPU), peak {peak / 1e9:.2f} GB, {len(metrics)} metrics")
    print(f"  sqlite3 alone         {wall_alone:.2f} s ({cpu_alone:.2f} s CPU)")
    print(f"  ratio                 {wall / wall_alone:.2f}, CPU {cpu / cpu_alone:.2f}  (at most 2.5)")
    stats = nsys_stats(path)
    if stats is None:
        print("  nsys stats            not at hand (set REGRESS_NSYS)")
    else:
        print(f"  nsys stats            {stats[0]:.2f} s ({stats[1]:.2f} s CPU): {stats[0] / wall:.1f} times ours, "
              f"CPU {stats[1] / cpu:.1f}  (at least 10)")


def part_memory(folder: Path, kernels: int) -> None:
    """Peak memory of a big export."""
    path = folder / "big.sqlite"
    make_export(path, kernels)
    (took, _, _), peak = apart(read_all, [path])
    print(f"export of {kernels:,} kernels and launches, {path.stat().st_size / 1e9:.2f} GB: {took:.1f} s, "
          f"peak {peak / 1e9:.2f} GB  (at most 1.5)")


def _dlrm(folder: Path) -> list[Path]:
    with tarfile.open(DATA / "public" / "param_dlrm_8rank_kineto.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return sorted(folder.rglob("*.json"))


def _hta(folder: Path) -> tuple[float, dict[int, float]]:
    from hta.trace_analysis import TraceAnalysis  # noqa: PLC0415 - only this part needs it, and it is slow to import

    began = time.perf_counter()
    overlap = TraceAnalysis(trace_dir=str(folder)).get_comm_comp_overlap(visualize=False)
    took = time.perf_counter() - began
    return took, dict(zip(overlap["rank"].tolist(), overlap["comp_comm_overlap_pctg"].tolist(), strict=True))


def _ours_overlap(files: list[Path]) -> tuple[float, dict[int, float]]:
    began = time.perf_counter()
    lanes = read_traces(files).lanes
    found = {lane.rank or 0: 100 * lane.in_trace.overlap_ns / lane.in_trace.comm_ns for lane in lanes}
    return time.perf_counter() - began, found


def part_hta(folder: Path) -> None:
    """HolisticTraceAnalysis beside ours: the same overlap, and the times."""
    files = _dlrm(folder)
    (ours, found), peak = apart(_ours_overlap, files)
    (everything, _, _), _ = apart(read_all, files)
    (theirs, expected), hta_peak = apart(_hta, files[0].parent)
    apart_by = max(abs(found[rank] - expected[rank]) for rank in expected)
    print(f"8 ranks of torch.profiler, {sum(f.stat().st_size for f in files) / 1e6:.1f} MB")
    print(f"  ours      load and overlap {ours:.3f} s, all metrics and rules {everything:.3f} s, "
          f"peak {peak / 1e6:.0f} MB")
    print(f"  HTA       load and overlap {theirs:.3f} s, peak {hta_peak / 1e6:.0f} MB: {theirs / ours:.1f} times ours  "
          "(at least 10)")
    print(f"  overlap   differs by at most {apart_by:.3f} percentage points")


def part_ranks(folder: Path, ranks: int) -> None:
    """Many ranks made from eight: each file gets its own rank."""
    texts = [path.read_text() for path in _dlrm(folder / "source")]
    files = []
    for rank in range(ranks):
        path = folder / f"rank{rank}.json"
        path.write_text(texts[rank % 8].replace(f'"rank": {rank % 8}', f'"rank": {rank}').replace(
            '"world_size": 8', f'"world_size": {ranks}'))
        files.append(path)
    for count in (ranks // 4, ranks):
        subset = files if count == ranks else [
            Path(shutil.copy(path, folder / f"part{i}.json")) for i, path in enumerate(files[:count])]
        if count != ranks:
            for path in subset:
                path.write_text(path.read_text().replace(f'"world_size": {ranks}', f'"world_size": {count}'))
        (took, _, metrics), peak = apart(read_all, subset)
        print(f"{count} ranks, {sum(p.stat().st_size for p in subset) / 1e6:.0f} MB: {took:.2f} s, "
              f"{took / count * 1e3:.1f} ms a rank, peak {peak / 1e6:.0f} MB a process; "
              f"skew {metrics['skew_seconds'] * 1e6:.0f} µs, transfer {metrics['transfer_seconds'] * 1e6:.1f} µs")


def part_json(folder: Path, gigabytes: float) -> None:
    """One huge file: the eight ranks' events of rank 0, over and over, later and later."""
    document = json.loads(_dlrm(folder)[0].read_text())
    events = [event for event in document.pop("traceEvents") if isinstance(event.get("ts"), int)]
    span = max(e["ts"] for e in events) - min(e["ts"] for e in events) + 100_000
    path, written, turn = folder / "huge.json", 0, 0
    with path.open("w") as file:
        file.write(json.dumps(document)[:-1] + ', "traceEvents": [\n')
        while written < gigabytes * 1e9:
            for event in events:
                event["ts"] += span
            text = ",\n".join(map(json.dumps, events))
            written += file.write(("" if turn == 0 else ",\n") + text)
            turn += 1
        file.write("]}")
    (took, _, _), peak = apart(read_all, [path])
    size = path.stat().st_size
    print(f"one torch.profiler file of {size / 1e9:.2f} GB, {turn * len(events):,} events: {took:.1f} s, "
          f"{size / took / 1e6:.0f} MB/s, peak {peak / 1e9:.2f} GB")


def main() -> None:
    """Run the asked part in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["export", "memory", "hta", "ranks", "json"])
    parser.add_argument("--kernels", type=int)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    options = parser.parse_args()
    gc.collect()
    with tempfile.TemporaryDirectory(prefix="trace-reading-") as name:
        folder = Path(name)
        if options.part == "export":
            part_export(folder, options.kernels or 1_000_000)
        elif options.part == "memory":
            part_memory(folder, options.kernels or 10_000_000)
        elif options.part == "hta":
            part_hta(folder)
        elif options.part == "ranks":
            part_ranks(folder, options.ranks)
        else:
            part_json(folder, options.gigabytes)


if __name__ == "__main__":
    main()
