"""What is no usable trace ends in one line that names the file, with the status of its kind."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from regress.errors import EXIT_UNTRUSTED, EXIT_USAGE, RegressError, TraceInputError, TraceUnfitError
from regress.trace.nsys_privacy import scrub_sqlite
from regress.trace.read import read_timeline, read_traces
from tests.trace.made import ALL_REDUCE, Export, kineto, kineto_rank, two_ranks
from tests.trace.samples import sample

Made = Callable[[Path], list[Path]]


def _text(name: str, content: bytes) -> Made:
    def make(folder: Path) -> list[Path]:
        path = folder / name
        path.write_bytes(content)
        return [path]
    return make


def _cut(share: float) -> Made:
    def make(folder: Path) -> list[Path]:
        whole = sample("mps/micro").read_bytes()
        path = folder / "cut.sqlite"
        path.write_bytes(whole[:int(len(whole) * share)])
        return [path]
    return make


def _damaged(folder: Path) -> list[Path]:
    content = bytearray(sample("mps/micro").read_bytes())
    content[8192:200_000] = os.urandom(1) * (200_000 - 8192)
    (folder / "damaged.sqlite").write_bytes(content)
    return [folder / "damaged.sqlite"]


def _names_that_are_no_text(folder: Path) -> list[Path]:
    path = two_ranks().write(folder / "names.sqlite")
    path.write_bytes(path.read_bytes().replace(b"StringIds", b"String\xaa\xff\xfe"))
    return [path]


def _schema_that_is_no_text(folder: Path) -> list[Path]:
    """SQLite quotes the name in its complaint, and Python cannot decode that."""
    path = two_ranks().write(folder / "schema.sqlite")
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CREATE TABL\xaa"))
    return [path]


def _odd_values(statement: str) -> Made:
    """A good export in which a column holds what SQLite takes there and nsys never writes."""
    def make(folder: Path) -> list[Path]:
        path = two_ranks().write(folder / "odd.sqlite")
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(statement)
        return [path]
    return make


def _other_database(folder: Path) -> list[Path]:
    path = folder / "other.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE unrelated (a)")
    db.close()
    return [path]


def _no_kernels(folder: Path) -> list[Path]:
    made = Export()
    made.nvtx(10, 1, 2, "step")
    return [made.write(folder / "t.sqlite")]


def _every_table_and_no_kernel(folder: Path) -> list[Path]:
    """As `nsys export --lazy=false` leaves it: every table it knows, empty where nothing was traced."""
    path = _no_kernels(folder)[0]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end, graphId);"
                                 "CREATE TABLE GPU_METRICS (timestamp, typeId, metricId, value)")
    return [path]


def _graphs_only(folder: Path) -> list[Path]:
    made = Export()
    made.row("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", 'start,"end",graphId', 1, 2, 3)
    return [made.write(folder / "t.sqlite")]


def _no_nccl(folder: Path) -> list[Path]:
    made = Export()
    for pid in (10, 11):
        made.kernel(pid, 10_000, 20_000)
    return [made.write(folder / "t.sqlite")]


def _silent_rank(folder: Path) -> list[Path]:
    made = two_ranks()
    made.kernel(12, 10_000, 20_000)
    return [made.write(folder / "t.sqlite")]


def _lost_gpu_events(folder: Path) -> list[Path]:
    made = two_ranks()
    made.nvtx(12, 10_000, 20_000, "allreduce/4096")
    return [made.write(folder / "t.sqlite")]


def _ranks(*ranks: tuple[int, int], shift_us: float = 0.0) -> Made:
    def make(folder: Path) -> list[Path]:
        files = []
        for i, (rank, world) in enumerate(ranks):
            events = kineto_rank(rank, world)
            for event in events:
                event["ts"] = float(str(event["ts"])) + 1e12 + i * shift_us
            files.append(kineto(folder / f"f{i}.json", events, baseTimeNanoseconds=1_790_857_026_000_000_000,
                                distributedInfo={"rank": rank, "world_size": world}))
        return files
    return make


def _amd(folder: Path) -> list[Path]:
    return [kineto(folder / "amd.json", kineto_rank(0), deviceProperties=[{"id": 0, "name": "AMD Instinct MI300X"}])]


def _hip(folder: Path) -> list[Path]:
    events = kineto_rank(0)
    events[1]["name"] = "hipLaunchKernel"
    return [kineto(folder / "hip.json", events)]


def _mtia(folder: Path) -> list[Path]:
    return [kineto(folder / "mtia.json", [{"ph": "X", "cat": "mtia_ccp_events", "name": "k", "ts": 1, "dur": 1}])]


def _mixed_tracers(folder: Path) -> list[Path]:
    return [two_ranks().write(folder / "t.sqlite"), *_ranks((0, 2))(folder)]


def _twice(folder: Path) -> list[Path]:
    path = two_ranks().write(folder / "t.sqlite")
    return [path, path]


def _folder(folder: Path) -> list[Path]:
    return [folder]


INPUT: dict[str, tuple[Made, str]] = {
    "missing": (lambda folder: [folder / "absent.sqlite"], "no such file"),
    "folder": (_folder, "a folder"),
    "empty": (_text("e.sqlite", b""), "the file is empty"),
    "empty-json": (_text("e.json", b""), "empty"),
    "text": (_text("notes.txt", b"hello there"), "not a trace"),
    "renamed": (_text("notes.sqlite", b"hello there" * 20), "not an SQLite database"),
    "picture": (_text("a.bin", b"\x89PNG\r\n\x1a\n" + b"x" * 50), "not a trace"),
    "qdstrm": (_text("run.qdstrm", b"\1\2\3\4" * 10), "unfinished capture"),
    "report": (_text("run.nsys-rep", b"\1\2\3\4" * 10), "needs nsys"),
    "truncated": (_cut(0.6), "truncated"),
    "cut-header": (_cut(0.0001), "not an SQLite database"),
    "damaged": (_damaged, "damaged|cannot be read"),
    "names-no-text": (_names_that_are_no_text, "damaged database|cannot be read"),
    "schema-no-text": (_schema_that_is_no_text, "damaged database|cannot be read"),
    "id-null": (_odd_values("INSERT INTO StringIds (id, value) VALUES (NULL, 'a')"), "another type"),
    "id-text": (_odd_values("INSERT INTO StringIds (id, value) VALUES ('a', 'a')"), "another type"),
    "text-blob": (_odd_values("UPDATE StringIds SET value = x'00ff'"), "another type"),
    "start-text": (_odd_values("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon'"), "another type"),
    "start-blob": (_odd_values("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = x'00ff'"), "another type"),
    "start-endless": (_odd_values("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 9e999"), "another type"),
    "range-start-text": (_odd_values("UPDATE NVTX_EVENTS SET start = 'soon'"), "NVTX_EVENTS holds a value of"),
    "range-end-text": (_odd_values("UPDATE NVTX_EVENTS SET \"end\" = 'late'"), "NVTX_EVENTS holds a value of"),
    "range-thread-null": (_odd_values("UPDATE NVTX_EVENTS SET globalTid = NULL"), "NVTX_EVENTS holds a value of"),
    "range-text-blob": (_odd_values("UPDATE NVTX_EVENTS SET text = x'6e63636c416c6c526564756365'"), "another type"),
    "json-no-trace": (_text("c.json", b'{"a": [1, 2]}'), "no traceEvents"),
    "json-cut": (_text("c.json", b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1}, {"ph": "X", "na'), "truncated"),
    "json-garbage": (_text("c.json", b'{"traceEvents": [{"ph": "X", ]}'), "damaged"),
    "gzip-cut": (_text("c.json.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\3abc"), "damaged gzip"),
    "json-odd-event": (_text("c.json", b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": "soon"}]}'),
                       "none of torch.profiler"),
    "binary-json": (_text("c.json", b'{"traceEvents": [{"name": "\xff\xfe"}]}'), "damaged|not text"),
    "amd": (_amd, "AMD Instinct MI300X"),
    "hip": (_hip, "AMD devices"),
    "mtia": (_mtia, "MTIA devices"),
    "duplicate-rank": (_ranks((0, 2), (0, 2)), "rank 0 is in it and also in"),
    "mixed-worlds": (_ranks((0, 2), (1, 4)), "of a run with 4 ranks"),
    "rank-beyond-world": (_ranks((3, 2)), "rank 3 of a run with 2 ranks"),
    "other-day": (_ranks((0, 2), (1, 2), shift_us=3.6e9), "3600 s after"),
    "mixed-tracers": (_mixed_tracers, "different tracers"),
    "named-twice": (_twice, "named twice"),
}
UNFIT: dict[str, tuple[Made, str]] = {
    "other-database": (_other_database, "no GPU kernel"),
    "no-kernels": (_no_kernels, "no GPU kernel"),
    "tables-without-rows": (_every_table_and_no_kernel, "no GPU kernel in the trace.*--trace=cuda,nvtx"),
    "graphs-as-a-whole": (_graphs_only, "--cuda-graph-trace=node"),
    "no-nccl": (_no_nccl, "no communication kernel although 2 ranks"),
    "silent-rank": (_silent_rank, r"rank \d has kernels but no collective"),
    "gpu-events-lost": (_lost_gpu_events, "pid 12 ran collectives but shows no kernel"),
    "nothing-in-json": (_text("n.json", b'{"traceEvents": []}'), "neither a GPU kernel nor a collective"),
    "public-slice": (lambda _: [sample("public/nsys-ai_h100_2gpu_1s")], "no communication kernel although 2 ranks"),
}


def _fails(make: Made, kind: type[RegressError], folder: Path, pattern: str) -> RegressError:
    with pytest.raises(kind, match=pattern) as caught:
        read_traces(make(folder))
    assert "\n" not in caught.value.text
    return caught.value


@pytest.mark.parametrize("case", INPUT)
def test_input_that_cannot_be_read(case: str, tmp_path: Path) -> None:
    error = _fails(INPUT[case][0], TraceInputError, tmp_path, INPUT[case][1])
    assert error.exit_status == EXIT_USAGE


@pytest.mark.parametrize("case", UNFIT)
def test_traces_that_support_no_metric(case: str, tmp_path: Path) -> None:
    error = _fails(UNFIT[case][0], TraceUnfitError, tmp_path, UNFIT[case][1])
    assert error.exit_status == EXIT_UNTRUSTED


def test_a_locked_database_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regress.trace.export_db._BUSY_SECONDS", 0.05)
    path = two_ranks().write(tmp_path / "t.sqlite")
    writer = sqlite3.connect(path, isolation_level=None)
    try:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(TraceInputError, match=r"locked; .*wait for its writer"):
            read_traces([path])
    finally:
        writer.close()


@pytest.mark.parametrize("statement", [
    "UPDATE NVTX_EVENTS SET binaryData = NULL, jsonText = '{broken'",
    "UPDATE NVTX_EVENTS SET binaryData = NULL, jsonText = '" + '{"a":' * 100_000 + "'",
    """UPDATE NVTX_EVENTS SET binaryData = NULL, jsonText = '{"NCCL communicator ID": 99999999999999999999}'""",
    """UPDATE NVTX_EVENTS SET binaryData = NULL, jsonText = '{"No. of ranks": "²"}'""",
    'UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET "offset" = -40',
    'UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET "offset" = 9223372036854775807',
    "CREATE TABLE TARGET_INFO_GPU_METRICS AS SELECT 'x' AS typeId, 1 AS metricId, 'SMs Active' AS metricName",
], ids=["json", "nesting", "large", "digit", "before", "beyond", "metrics"])
def test_odd_values_beside_the_kernels_cost_no_kernel(statement: str, tmp_path: Path) -> None:
    (path,) = _odd_values(statement)(tmp_path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE GPU_METRICS (timestamp, typeId, metricId, value)")
    assert len(read_timeline(path).kernels) == 2 * 4 * 2


@pytest.mark.parametrize("make", [_names_that_are_no_text, _schema_that_is_no_text])
def test_scrub_refuses_a_database_whose_names_are_no_text(make: Made, tmp_path: Path) -> None:
    (path,) = make(tmp_path)
    before = path.read_bytes()
    with pytest.raises(TraceInputError, match="cannot take the environment out"):
        scrub_sqlite(path)
    assert path.read_bytes() == before


def test_an_unreadable_file_says_why(tmp_path: Path) -> None:
    path = tmp_path / "loop.json"
    path.symlink_to(path)
    with pytest.raises(TraceInputError):
        read_traces([path])


def test_a_report_goes_through_the_export_that_was_given(tmp_path: Path) -> None:
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"report")
    seen: list[Path] = []

    def export(source: Path, target: Path) -> None:
        seen.append(source)
        two_ranks().write(target)

    assert len(read_traces([report], export=export).lanes) == 2
    assert seen == [report]


def test_a_process_without_nccl_in_one_rank_is_fine(tmp_path: Path) -> None:
    made = Export()
    made.kernel(10, 10_000, 20_000, ALL_REDUCE)
    assert read_traces([made.write(tmp_path / "t.sqlite")]).matching.count == 0
