"""What the dumps of the ranks say about a hang: who is in which collective, and who is missing."""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from regress.measure import flight_recorder
from regress.measure.evidence import KEPT_GATES, keep_evidence
from regress.measure.flight_recorder import MOST_BYTES, ask, read_dump, summary, wait_for
from regress.measure.launch import LaunchResult
from regress.measure.plain_pickle import read_plain
from tests.measure.dumps import document, entry, leave


def test_a_rank_that_never_entered(tmp_path: Path) -> None:
    leave(tmp_path, 0, *(entry(number) for number in range(1, 17)), entry(17, ended=False))
    leave(tmp_path, 1, *(entry(number) for number in range(1, 17)))
    assert summary(tmp_path, 2) == ("flight recorder: gloo:all_reduce #17 of 4KiB float32 in group 0 (default_pg): "
                                    "rank 0 in it, rank 1 never entered (last there: #16)")


def test_nccl_queues_many_and_the_first_is_the_one_that_stands(tmp_path: Path) -> None:
    def nccl(number: int, *, ended: bool) -> dict[str, Any]:
        return entry(number, name="nccl:_all_gather_base", ended=ended, dtype="BFloat16", output_sizes=[[4096]],
                     group=("0", "default_pg"))

    leave(tmp_path, 0, nccl(1, ended=True), nccl(2, ended=False), nccl(3, ended=False), ranks="[0, 1, 2]")
    leave(tmp_path, 1, nccl(1, ended=True), nccl(2, ended=False), nccl(3, ended=False), ranks="[0, 1, 2]")
    leave(tmp_path, 2, nccl(1, ended=True), ranks="[0, 1, 2]")
    assert summary(tmp_path, 3) == (
        "flight recorder: nccl:_all_gather_base #2 of 8KiB bfloat16 in group 0 (default_pg): "
        "ranks 0, 1 in it, rank 2 never entered (last there: #1)")


def test_a_call_of_nccls_that_was_retired_by_its_timeout_has_not_ended(tmp_path: Path) -> None:
    leave(tmp_path, 0, entry(1, name="nccl:all_reduce", ended=False, retired=True, state="started"))
    leave(tmp_path, 1, entry(1, name="nccl:all_reduce", ended=False, retired=True, state="started"))
    assert summary(tmp_path, 2) == (
        "flight recorder: nccl:all_reduce #1 of 4KiB float32 in group 0 (default_pg): ranks 0, 1 in it, nobody is "
        "missing, so what stands still is a transport or a GPU")


def test_ranks_that_called_different_collectives(tmp_path: Path) -> None:
    leave(tmp_path, 0, entry(5, ended=False))
    leave(tmp_path, 1, entry(5, ended=False, name="gloo:broadcast", elements=4))
    assert summary(tmp_path, 2) == (
        "flight recorder: in group 0 (default_pg) ranks called different collectives: rank 0 in gloo:all_reduce #5 of "
        "4KiB float32, rank 1 in gloo:broadcast #5 of 16B float32")


def test_a_rank_that_is_past_it_one_without_a_dump_and_one_that_forgot(tmp_path: Path) -> None:
    leave(tmp_path, 0, entry(5, ended=False))
    leave(tmp_path, 1, entry(5), entry(6))
    leave(tmp_path, 2, entry(900, group=("1", "comm-regress control"), record=5000))
    assert summary(tmp_path, 4, silent=[3]) == (
        "flight recorder: gloo:all_reduce #5 of 4KiB float32 in group 0 (default_pg): rank 0 in it, rank 1 finished "
        "it, of ranks 2, 3 nothing is known\n"
        "flight recorder: no dump within 5 s from rank 3: a call there holds Python's interpreter, or the process is "
        "stopped")


def test_members_of_a_group_are_those_that_torch_names(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        other = entry(1, group=("7", "pair"), record=int(rank == 0))
        leave(tmp_path, rank, *([entry(1, ended=False)] if rank == 0 else []), other, ranks="[0, 2]")
    text = summary(tmp_path, 3)
    assert text is not None
    assert text.endswith("rank 0 in it, rank 2 never entered (nothing there yet)")


def test_the_collective_that_began_first_comes_first_and_not_all_are_shown(tmp_path: Path) -> None:
    calls = [entry(1, group=(str(number), f"g{number}"), ended=False, elements=0, name="gloo:barrier", record=number,
                   time_created_ns=100 - number) for number in range(6)]
    leave(tmp_path, 0, *calls)
    text = summary(tmp_path, 1)
    assert text is not None
    lines = text.splitlines()
    assert lines[0].startswith("flight recorder: gloo:barrier #1 in group 5 (g5): rank 0 in it")
    assert lines[-1] == "flight recorder: and 2 more groups with a collective under way"
    assert len(lines) == 5


def test_point_to_point_has_no_missing_ranks(tmp_path: Path) -> None:
    leave(tmp_path, 0, entry(0, name="nccl:send 0->1", ended=False, is_p2p=True, p2p_seq_id=3, record=0))
    leave(tmp_path, 1)
    assert summary(tmp_path, 2) == ("flight recorder: nccl:send 0->1 #3 of 4KiB float32 in group 0 (default_pg): "
                                    "rank 0 in it")


def test_nothing_under_way_is_said_too(tmp_path: Path) -> None:
    leave(tmp_path, 0, entry(1))
    leave(tmp_path, 1, entry(1))
    text = summary(tmp_path, 2)
    assert text is not None
    assert text.startswith("flight recorder: no recorded collective is under way on ranks 0, 1: ")


def test_a_recorder_that_is_off_and_how_to_turn_it_on(tmp_path: Path) -> None:
    leave(tmp_path, 0)
    leave(tmp_path, 1)
    text = summary(tmp_path, 2)
    assert text is not None
    assert text.startswith("flight recorder: empty: ")
    assert "TORCH_FR_BUFFER_SIZE=2000" in text


def test_without_a_dump_nothing_is_said(tmp_path: Path) -> None:
    assert summary(tmp_path, 2) is None


def test_two_dumps_of_a_rank_are_one_and_the_later_state_counts(tmp_path: Path) -> None:
    paths = [leave(tmp_path, 0, entry(1, ended=False), name="all.json"),
             leave(tmp_path, 0, entry(1), entry(2, ended=False), name="nccl.json")]
    assert [(call.number, call.done) for call in read_dump(paths).collectives] == [(1, True), (2, False)]


def test_what_the_watchdog_wrote_by_itself_is_read(tmp_path: Path) -> None:
    """torch writes pickle there: protocol 2, plain data."""
    for rank, ended in ((0, False), (1, True)):
        calls: list[dict[str, Any]] = [{**entry(1, ended=True), "frames": [], "duration_ms": 0.25},
                                       *([] if ended else [entry(2, ended=False, process_group=("0", "default_pg"))])]
        (tmp_path / f"flight-timeout-rank{rank}").write_bytes(pickle.dumps(document(*calls), protocol=2))
    text = summary(tmp_path, 2)
    assert text is not None
    assert text.endswith("rank 0 in it, rank 1 never entered (last there: #1)")


def test_torchs_own_pickle_and_json_say_the_same(tmp_path: Path) -> None:
    import torch
    import torch.distributed as dist

    c10d: Any = torch._C._distributed_c10d
    if not hasattr(c10d, "_dump_fr_trace"):
        pytest.skip(f"torch {torch.__version__} records no gloo group")
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    try:
        dist.all_reduce(torch.ones(300, dtype=torch.float64))
        # gloo's own thread marks a call as ended a moment after it has returned: both dumps are to show it so.
        deadline = time.monotonic() + 60
        while not json.loads(c10d._dump_fr_trace_json())["entries"][-1]["retired"]:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        (tmp_path / "flight-timeout-rank0").write_bytes(c10d._dump_fr_trace())
        (tmp_path / "rank0.flight.all.json").write_bytes(c10d._dump_fr_trace_json())
    finally:
        dist.destroy_process_group()
    dumps = [read_dump([path]) for path in flight_recorder.dump_files(tmp_path, 0)]
    assert len(dumps) == 2
    assert dumps[0] == dumps[1]
    assert dumps[0].problems == ()
    assert dumps[0].collectives[-1].done
    assert dumps[0].collectives[-1].text == "gloo:all_reduce #1 of 2.3KiB float64"


@pytest.mark.parametrize("content", [
    pickle.dumps(os.system), pickle.dumps(Path("/")), pickle.dumps({1, 2}), b"cos\nsystem\n(S'true'\ntR.", b"", b"\x80",
    b"\x80\x02}", b"\x80\x02a.", b"\x80\x02(.", b"\x80\x02h\x07.", b"\x80\x02}]]s.", b"\x80\x02}(K\x01u.",
    b"\x80\x02X\xff\xff\xff\x7fab."])
def test_pickle_that_is_damaged_or_more_than_plain_data_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        read_plain(content)


def test_pickle_runs_nothing(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    (tmp_path / "flight-timeout-rank0").write_bytes(pickle.dumps({"version": "2.10", "entries": [Bomb()]}, protocol=2))
    text = summary(tmp_path, 1)
    assert text is not None
    assert text.startswith("flight recorder: flight-timeout-rank0 cannot be read (GLOBAL is no plain data")
    assert not (tmp_path / "ran").exists()


def test_plain_data_comes_back_and_a_container_is_there_once_only() -> None:
    value: dict[str, Any] = {"a": [1, -5, 2**40, 1.5, "x", None, True], "b": ((), (1,), (1, 2), (1, 2, 3, 4)), "c": {}}
    for protocol in (2, 3):
        assert read_plain(pickle.dumps(value, protocol=protocol)) == value
    twice: list[Any] = [1]
    assert read_plain(pickle.dumps([twice, twice], protocol=2)) == [[1], None]
    twice.append(twice)
    assert read_plain(pickle.dumps(twice, protocol=2)) == [1, None]


@pytest.mark.parametrize(("content", "words"), [
    (b"", "cannot be read"), (b'{"version": "2.10", "entries": [{"record_id": 0, "profi', "cannot be read"),
    (b'{"entries": []}', "version"), (b'{"version": "2.10", "entries": [{}]}', "record_id"),
    (b"[" * 200_000, "cannot be read"), (b'{"version": "2.10", "x": ' + b"[" * 200_000, "cannot be read")])
def test_a_damaged_dump_is_a_line_beside_the_others(tmp_path: Path, content: bytes, words: str) -> None:
    leave(tmp_path, 0, entry(1, ended=False))
    (tmp_path / "rank1.flight.all.json").write_bytes(content)
    text = summary(tmp_path, 2)
    assert text is not None
    first, second = text.splitlines()
    assert first.endswith("rank 0 in it, of rank 1 nothing is known")
    assert second.startswith("flight recorder: rank1.flight.all.json cannot be read (")
    assert words in second


def test_a_dump_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "rank0.flight.all.json"
    with path.open("wb") as stream:
        stream.truncate(MOST_BYTES + 1)
    assert read_dump([path]).problems == ("rank0.flight.all.json cannot be read (larger than 32MiB)",)


def test_hostile_names_stay_one_short_printable_line(tmp_path: Path) -> None:
    leave(tmp_path, 0, entry(1, name="gloo:\x1b[31m\n" + "x" * 500, group=("0", "\r\x00" + "d" * 500),
                             dtype="\x07" * 500, ended=False))
    text = summary(tmp_path, 1)
    assert text is not None
    assert text.isprintable()
    assert len(text) < 400


def test_sizes_without_end_and_types_nobody_knows(tmp_path: Path) -> None:
    huge = (1 << 62) - 1
    leave(tmp_path, 0, entry(1, ended=False, input_sizes=[[huge] * 64], output_sizes=[[huge, 0] * 32], name="gloo:a"))
    leave(tmp_path, 1, entry(1, ended=False, dtype="QUInt9", name="gloo:b"))
    text = summary(tmp_path, 2)
    assert text is not None
    assert "rank 0 in gloo:a #1 float32, rank 1 in gloo:b #1 QUInt9" in text


def test_a_rank_that_does_not_listen_is_not_waited_for(tmp_path: Path) -> None:
    assert not ask(tmp_path, 0)
    os.mkfifo(tmp_path / "rank1.flight.pipe")
    assert not ask(tmp_path, 1), "nobody reads it"
    assert wait_for(tmp_path, [], 60) == []
    assert wait_for(tmp_path, [1], 0.0) == [1]


def test_a_rank_that_listens_is_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "rank0.flight.pipe"
    os.mkfifo(pipe)
    asked = threading.Event()

    def listen() -> None:
        with pipe.open("rb"):
            asked.set()
        (tmp_path / "rank0.flight.done").touch()

    thread = threading.Thread(target=listen)
    thread.start()
    while not ask(tmp_path, 0):
        pass
    assert wait_for(tmp_path, [0], 60) == []
    assert asked.is_set()
    thread.join()


def result(evidence: tuple[str, ...]) -> LaunchResult:
    return LaunchResult(3, "head", 1, "", (), (), 1.0, 1.0, "too late", evidence=evidence)


def test_evidence_is_kept_and_named(tmp_path: Path) -> None:
    dump = leave(tmp_path, 1, entry(1))
    log = tmp_path / "logs" / "run" / "attempt_0" / "1" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("stacks")
    kept = keep_evidence(result((str(dump), str(log))), tmp_path / "hangs" / "gate")
    target = tmp_path / "hangs" / "gate" / "launch003-head"
    assert kept.error == f"too late\nkept for looking closer: {target}"
    assert {path.name for path in target.iterdir()} == {"rank1.flight.all.json", "rank1.stderr.log"}
    assert json.loads((target / dump.name).read_text())["version"] == "2.10"
    assert (tmp_path / "hangs" / ".gitignore").read_text() == "*\n"


def test_a_launch_that_did_not_hang_is_left_alone(tmp_path: Path) -> None:
    plain = result(())
    assert keep_evidence(plain, tmp_path / "hangs" / "gate") is plain
    assert list(tmp_path.iterdir()) == []


def test_evidence_that_cannot_be_kept_is_said(tmp_path: Path) -> None:
    (tmp_path / "hangs").write_text("in the way")
    kept = keep_evidence(result((str(tmp_path / "hangs"),)), tmp_path / "hangs" / "gate")
    assert kept.error is not None
    assert "what it left could not be kept in " in kept.error


def test_only_the_latest_hangs_stay(tmp_path: Path) -> None:
    dump = leave(tmp_path, 0, entry(1))
    for number in range(KEPT_GATES + 2):
        folder = tmp_path / "hangs" / f"gate{number}"
        keep_evidence(result((str(dump),)), folder)
        os.utime(folder, (number, number))
    names = {path.name for path in (tmp_path / "hangs").iterdir() if path.is_dir()}
    assert len(names) == KEPT_GATES
    assert "gate0" not in names
    assert f"gate{KEPT_GATES + 1}" in names
