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
import multiprocessing
import os
import resource
import shutil
import sqlite3
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
DATA = ROOT / "tests" / "data" / "trace"
DEVICES = 8
COMM_EVERY = 12
_NAMES = ["ncclDevKernel_AllReduce_Sum_f32_RING_LL", "cudaLaunchKernel_v7000", "cuLaunchKernelEx", "ncclAllReduce",
          "step", *(f"void kernel_{i}<float>(float*, int)" for i in range(60))]
_NCCL, _LAUNCH, _LAUNCH_EX, _RANGE, _STEP = 1, 2, 3, 4, 5


def _pid(rank: int) -> int:
    return (1 << 48) | ((1000 + rank) << 24)


def _rows(kernels: int) -> Iterator[tuple[int, int, int, int]]:
    """rank, number on that rank, start, end: 20 µs kernels 2 µs apart; every twelfth is an all-reduce of 200 µs."""
    for number in range(kernels // DEVICES):
        for rank in range(DEVICES):
            start = 1_000_000 + number * 22_000 + rank * 300 + (number // COMM_EVERY) * 180_000
            yield rank, number, start, start + (200_000 if number % COMM_EVERY == 0 else 20_000)


def make_export(path: Path, kernels: int) -> None:
    """An export of that many kernels over 8 ranks, with launches, NCCL ranges with payload, and steps."""
    db = sqlite3.connect(path)
    db.executescript("""
        PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;
        CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
        INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.20.3'), ('EXPORT_PRODUCT_VERSION', '2025.3.2.0');
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, "end" INTEGER, deviceId INTEGER, contextId INTEGER,
            greenContextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER,
            shortName INTEGER, mangledName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER,
            blockY INTEGER, blockZ INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, "end" INTEGER, eventClass INTEGER, globalTid INTEGER,
            correlationId INTEGER, nameId INTEGER, returnValue INTEGER, callchainId INTEGER);
        CREATE TABLE NVTX_EVENTS (start INTEGER, "end" INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER,
            textId INTEGER, domainId INTEGER, jsonText TEXT, binaryData TEXT);
        CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER, schemaId INTEGER, idx INTEGER, name TEXT,
            "offset" INTEGER);
        INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (1, 16777221, 0, 'NCCL communicator ID', NULL),
            (1, 16777221, 1, 'Message size [bytes]', 8);""")
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", list(enumerate(_NAMES, 1)))
    db.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,1,0,?,?,?,?,?,?,2,1,1,288,1,1)", (
        (start, end, rank, 17 if number % COMM_EVERY == 0 else 7, number + 1, _pid(rank), name, name, name)
        for rank, number, start, end in _rows(kernels)
        for name in [_NCCL if number % COMM_EVERY == 0 else 6 + number % 60]))
    db.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,?,?,?,0,NULL)", (
        (start - 9_000, start - 4_000, _pid(rank) | 7, number + 1, _LAUNCH_EX if number % COMM_EVERY == 0 else _LAUNCH)
        for rank, number, start, _ in _rows(kernels)))
    db.executemany("INSERT INTO NVTX_EVENTS VALUES (?,?,59,NULL,?,?,1,NULL,?)", (
        (start - 10_000, start - 3_000, _pid(rank) | 7, _RANGE, struct.pack("<4Q2QQ", 1, 16777221, 24, 32, 99, 4 << 20, 0))
        for rank, number, start, _ in _rows(kernels) if number % COMM_EVERY == 0))
    db.executemany("INSERT INTO NVTX_EVENTS VALUES (?,?,59,NULL,?,?,0,NULL,NULL)", (
        (start - 10_000, start + 100_000, _pid(rank) | 7, _STEP)
        for rank, number, start, _ in _rows(kernels) if number % 1200 == 0))
    db.commit()
    db.close()


def fetch_alone(path: Path) -> float:
    """Seconds in which sqlite3 alone fetches the columns our reader reads, doing nothing with them."""
    queries = (
        'SELECT start, "end", globalPid, deviceId, streamId, shortName, correlationId, gridX FROM '
        "CUPTI_ACTIVITY_KIND_KERNEL", "SELECT start, globalTid, correlationId, nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME",
        'SELECT start, "end", eventType, globalTid, text, textId, binaryData, jsonText FROM NVTX_EVENTS')
    began = time.perf_counter()
    db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    for query in queries:
        cursor = db.execute(query)
        while cursor.fetchmany(10_000):
            pass
    db.close()
    return time.perf_counter() - began


def read_all(paths: list[Path]) -> tuple[float, dict[str, float]]:
    """Seconds in which we read, check, match, compute every metric and judge every rule; and the metrics."""
    from regress.explain import explain

    began = time.perf_counter()
    explained = explain(paths)
    return time.perf_counter() - began, {metric.name: metric.value for metric in explained.metrics}


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


def nsys_stats(path: Path) -> float | None:
    """Seconds of nsys's own kernel summary of that export, None where no nsys is at hand."""
    nsys = os.environ.get("REGRESS_NSYS") or shutil.which("nsys")
    if nsys is None:
        return None
    began = time.perf_counter()
    done = subprocess.run([nsys, "stats", "--report", "cuda_gpu_kern_sum", "--force-export=false", str(path)],
                          capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    return took if "ncclDevKernel" in done.stdout else None


def part_export(folder: Path, kernels: int) -> None:
    """Ours against sqlite3 alone and nsys stats; the best of three of each, taken in turn."""
    path = folder / "scaled.sqlite"
    make_export(path, kernels)
    ours, alone = [], []
    for _ in range(3):
        (took, metrics), peak = apart(read_all, [path])
        ours.append(took)
        alone.append(apart(fetch_alone, path)[0])
    print(f"export of {kernels:,} kernels and launches, {path.stat().st_size / 1e6:.0f} MB")
    print(f"  load and all metrics  {min(ours):.2f} s, peak {peak / 1e9:.2f} GB  ({len(metrics)} metrics)")
    print(f"  sqlite3 alone         {min(alone):.2f} s")
    print(f"  ratio                 {min(ours) / min(alone):.2f}  (at most 2.5)")
    stats = nsys_stats(path)
    if stats is None:
        print("  nsys stats            not at hand (set REGRESS_NSYS)")
    else:
        print(f"  nsys stats            {stats:.2f} s, {stats / min(ours):.1f} times ours  (at least 10)")


def part_memory(folder: Path, kernels: int) -> None:
    """Peak memory of a big export."""
    path = folder / "big.sqlite"
    make_export(path, kernels)
    (took, _), peak = apart(read_all, [path])
    print(f"export of {kernels:,} kernels and launches, {path.stat().st_size / 1e9:.2f} GB: {took:.1f} s, "
          f"peak {peak / 1e9:.2f} GB  (at most 1.5)")


def _dlrm(folder: Path) -> list[Path]:
    with tarfile.open(DATA / "public" / "param_dlrm_8rank_kineto.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return sorted(folder.rglob("*.json"))


def _hta(folder: Path) -> tuple[float, dict[int, float]]:
    from hta.trace_analysis import TraceAnalysis

    began = time.perf_counter()
    overlap = TraceAnalysis(trace_dir=str(folder)).get_comm_comp_overlap(visualize=False)
    took = time.perf_counter() - began
    return took, dict(zip(overlap["rank"].tolist(), overlap["comp_comm_overlap_pctg"].tolist(), strict=True))


def _ours_overlap(files: list[Path]) -> tuple[float, dict[int, float]]:
    from regress.trace.read import read_traces

    began = time.perf_counter()
    lanes = read_traces(files).lanes
    found = {lane.rank or 0: 100 * lane.in_trace.overlap_ns / lane.in_trace.comm_ns for lane in lanes}
    return time.perf_counter() - began, found


def part_hta(folder: Path) -> None:
    """HolisticTraceAnalysis beside ours: the same overlap, and the times."""
    files = _dlrm(folder)
    (ours, found), peak = apart(_ours_overlap, files)
    (everything, _), _ = apart(read_all, files)
    (theirs, expected), hta_peak = apart(_hta, files[0].parent)
    apart_by = max(abs(found[rank] - expected[rank]) for rank in expected)
    print(f"8 ranks of torch.profiler, {sum(f.stat().st_size for f in files) / 1e6:.1f} MB")
    print(f"  ours      load and overlap {ours:.3f} s, all metrics and rules {everything:.3f} s, peak {peak / 1e6:.0f} MB")
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
        (took, metrics), peak = apart(read_all, subset)
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
    (took, _), peak = apart(read_all, [path])
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
