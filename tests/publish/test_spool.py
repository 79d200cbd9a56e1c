"""What cannot be sent is kept, bounded, tried again with pauses, in order, and never costs a verdict."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regress.delivery import Payload, RefusedError, UnreachableError, WithheldError
from regress.errors import PublishError
from regress.options import option
from regress.publish import Result, Sink
from regress.publish.remote_write import REMOTE_WRITE, RemoteWriteOptions
from regress.publish.spool import Configured, Spool, pause, verified
from regress.publishing import describe
from tests import servers
from tests.publish.factory import Fault, faulty_server, http_answer, result


@dataclass
class Wire:
    """A destination that fails as told and remembers what it took."""

    error: PublishError | None = None
    took: list[bytes] = field(default_factory=list)
    tried: int = 0


@dataclass(frozen=True)
class WireOptions:
    place: str = option("here", help="where")


def sink_to(wire: Wire, size: int = 10, place: str = "here") -> Configured:
    def render(one: Result, options: WireOptions) -> tuple[Payload, ...]:
        return (Payload(one.run.run_id.encode().ljust(size), "text/plain", one.run.run_id, headers={"X-A": "b"}),)

    def send(payload: Payload, options: WireOptions) -> str:
        wire.tried += 1
        if wire.error is not None:
            raise wire.error
        assert payload.headers == {"X-A": "b"}
        wire.took.append(payload.body.strip())
        return "sent"

    return Sink("wire", "for tests", WireOptions, render, send, lambda o: o.place), WireOptions(place)


def down(asked: float | None = None) -> UnreachableError:
    error = UnreachableError("down", where="wire")
    error.retry_after_seconds = asked
    return error


def name(one: Result) -> bytes:
    return one.run.run_id.encode()


def test_what_is_sent_leaves_nothing_behind(tmp_path: Path) -> None:
    wire, one = Wire(), result()
    [delivery] = Spool(tmp_path / "spool").publish([sink_to(wire)], one, 1000.0)
    assert (delivery.sink, delivery.sent, delivery.kept, delivery.problems) == ("wire", ("sent",), 0, ())
    assert wire.took == [name(one)]
    assert not (tmp_path / "spool").exists()


def test_a_failed_push_is_kept_and_sent_first_next_time(tmp_path: Path) -> None:
    wire, spool = Wire(down()), Spool(tmp_path)
    first, second, third = result(), result(), result()
    [delivery] = spool.publish([sink_to(wire)], first, 1000.0)
    assert (delivery.sent, delivery.kept) == ((), 1)
    assert delivery.problems == (f"wire: down; kept in {tmp_path}",)
    wire.error = None
    [delivery] = spool.publish([sink_to(wire)], second, 1010.0)
    assert (delivery.sent, delivery.kept) == ((), 2)
    assert wire.took == []  # the first one is not due before a minute has passed, and nothing overtakes it
    assert describe((delivery,)) == [
        "wire: kept for here: 2 payloads; `regress publish sinks` tries at once"]
    [delivery] = spool.publish([sink_to(wire)], third, 1071.0)
    assert wire.took == [name(first), name(second), name(third)]
    assert (delivery.kept, delivery.problems) == (0, ())
    assert describe((delivery,)) == []
    assert spool.waiting() == ([], [])


def test_pauses_grow_and_the_server_is_heard(tmp_path: Path) -> None:
    wire, spool = Wire(down()), Spool(tmp_path)
    configured = [sink_to(wire)]
    spool.publish(configured, result(), 0.0)
    waits = []
    now = 0.0
    for _ in range(5):
        [(_, kept)] = spool.waiting()[0]
        waits.append(kept.not_before - now)
        tried = wire.tried
        spool.retry(configured, kept.not_before - 1)
        assert wire.tried == tried
        now = kept.not_before
        spool.retry(configured, now)
        assert wire.tried == tried + 1
    assert waits == [60, 120, 240, 480, 960]
    wire.error = down(asked=9000)
    spool.retry(configured, now + 1e6)
    [(_, kept)] = spool.waiting()[0]
    assert kept.not_before == now + 1e6 + 9000
    assert kept.attempts == 7
    spool.retry(configured, now, at_once=True)
    assert wire.tried == 8


@given(st.integers(1, 10_000), st.none() | st.floats(0, 1e9))
def test_no_pause_is_longer_than_a_day(attempts: int, asked: float | None) -> None:
    assert 60 <= pause(attempts, asked) <= 24 * 3600
    assert pause(attempts + 1, asked) >= pause(attempts, asked)


def test_a_refusal_is_not_kept_and_says_how_to_go_on(tmp_path: Path) -> None:
    wire, one = Wire(RefusedError("the server said 400 no", where="wire")), result()
    [delivery] = Spool(tmp_path).publish([sink_to(wire)], one, 0.0)
    assert delivery.kept == 0
    assert delivery.problems == (f"wire: the server said 400 no; not tried again: once that is mended, "
                                 f"`regress publish sinks {one.run.run_id}`",)


def test_a_payload_refused_later_makes_way_for_the_rest(tmp_path: Path) -> None:
    wire, spool = Wire(down()), Spool(tmp_path)
    configured = [sink_to(wire)]
    for number in range(3):
        spool.publish(configured, result(), float(number))
    wire.error = RefusedError("too old", where="wire")
    [delivery] = spool.retry(configured, 1e6)
    assert (delivery.kept, len(delivery.problems), wire.tried) == (0, 3, 4)


def test_what_cannot_be_sent_from_here_waits_untouched_for_who_can(tmp_path: Path) -> None:
    wire, spool = Wire(WithheldError("environment variable TOKEN is not set", where="wire")), Spool(tmp_path)
    first, second = result(), result()
    for now, one in ((1000.0, first), (1001.0, second)):
        [delivery] = spool.publish([sink_to(wire)], one, now)
        assert "wire: environment variable TOKEN is not set" in delivery.problems[0]
        assert f"kept in {tmp_path}" in delivery.problems[0]
    before = sorted((path.name, path.read_bytes()) for path in tmp_path.glob("*.json"))
    assert len(before) == 2
    for at_once in (False, True):
        [delivery] = spool.retry([sink_to(wire)], 1002.0, at_once)
        assert delivery.kept == 2
        assert delivery.problems == (f"wire: environment variable TOKEN is not set; 2 payloads kept in {tmp_path}",)
    assert sorted((path.name, path.read_bytes()) for path in tmp_path.glob("*.json")) == before
    wire.error = None
    [delivery] = spool.retry([sink_to(wire)], 1002.0)  # nothing was tried, so there is no pause
    assert (wire.took, delivery.kept) == ([name(first), name(second)], 0)


def test_a_payload_of_a_server_that_was_down_outlives_a_process_without_the_secret(tmp_path: Path) -> None:
    wire, spool = Wire(down()), Spool(tmp_path)
    spool.publish([sink_to(wire)], result(), 1000.0)
    [(_, kept)], _ = spool.waiting()
    wire.error = WithheldError("environment variable TOKEN is not set", where="wire")
    spool.retry([sink_to(wire)], 1e6, at_once=True)
    assert spool.waiting()[0][0][1] == kept


def test_the_spool_is_bounded_and_names_what_it_dropped(tmp_path: Path) -> None:
    wire, spool = Wire(down()), Spool(tmp_path, most_bytes=40_000)
    results = [result() for _ in range(6)]
    said = [spool.publish([sink_to(wire, size=10_000)], one, float(number))[0].problems
            for number, one in enumerate(results)]
    assert any("the spool is full" in text and "regress publish sinks --since" in text for text in said[-1])
    kept = [item.run_id for _, item in spool.waiting()[0]]
    assert kept == [one.run.run_id for one in results[-len(kept):]]
    assert 1 <= len(kept) < 6
    assert sum(path.stat().st_size for path in tmp_path.glob("*.json")) <= 40_000


def test_a_full_disk_costs_the_copy_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    one = result()
    [delivery] = Spool(tmp_path).publish([sink_to(Wire(down()))], one, 0.0)
    assert any("No space left on device" in text and f"regress publish sinks {one.run.run_id}" in text
               for text in delivery.problems)
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == []


def test_a_spool_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    [delivery] = Spool(tmp_path / "file").publish([sink_to(Wire(down()))], result(), 0.0)
    assert any("does not take it" in text for text in delivery.problems)


def test_damaged_files_are_named_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "0-wire-x.json").write_text("{cut")
    deliveries = Spool(tmp_path).retry([sink_to(Wire())], 0.0)
    assert "is no spooled payload and was left alone" in deliveries[-1].problems[0]
    assert (tmp_path / "0-wire-x.json").read_text() == "{cut"


def test_payloads_of_a_sink_that_is_gone_are_kept_and_said(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.publish([sink_to(Wire(down()), place="old")], result(), 0.0)
    deliveries = spool.retry([sink_to(Wire(), place="new")], 1e6)
    assert deliveries[-1].destination == "old"
    assert deliveries[-1].kept == 1
    assert "no longer configured" in deliveries[-1].problems[0]
    assert len(spool.waiting()[0]) == 1


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_two_gates_never_send_the_same_payload(tmp_path: Path) -> None:
    wire, spool = Wire(down()), Spool(tmp_path)
    configured = [sink_to(wire)]
    spool.publish(configured, result(), 0.0)
    wire.error = None
    with locked(tmp_path):
        [delivery] = spool.retry(configured, 1e6)
    assert (delivery.sent, delivery.kept, wire.took) == ((), 1, [])
    [delivery] = spool.retry(configured, 1e6)
    assert len(wire.took) == 1


def test_no_secret_lies_in_the_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from regress.delivery.http import HttpOptions

    monkeypatch.setenv("PUSH_TOKEN", "s3cr3t")
    options = RemoteWriteOptions(f"http://127.0.0.1:{servers.free_port()}/api/v1/write?key=t0k3n",
                                 http=HttpOptions(bearer_token_env="PUSH_TOKEN"))
    [delivery] = Spool(tmp_path).publish([(REMOTE_WRITE, options)], result(), 0.0)
    assert delivery.kept == 1
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"s3cr3t" not in content
    assert b"t0k3n" not in content
    assert "t0k3n" not in " ".join(delivery.problems)


def test_a_week_of_failed_pushes_arrives_with_its_true_times(tmp_path: Path) -> None:
    """Down for a while, then a real server with an out-of-order window: nothing is lost and every time is its own."""
    spool = Spool(tmp_path)
    fault = Fault(http_answer("503 Service Unavailable"))
    port_results = [result(timedelta(days=day)) for day in (7, 3, 1)]
    with servers.prometheus() as server:
        working = RemoteWriteOptions(server.write_url, query_url=server.base)
        with faulty_server(fault) as broken_base:
            broken = Sink("remote_write", "", RemoteWriteOptions, REMOTE_WRITE.render,
                          lambda payload, _: REMOTE_WRITE.send(payload, RemoteWriteOptions(broken_base)),
                          REMOTE_WRITE.destination)
            for number, one in enumerate(port_results):
                spool.publish([(broken, working)], one, float(number))
        assert len(spool.waiting()[0]) == 3
        [delivery] = spool.retry([(REMOTE_WRITE, working)], 1e6)
        assert (len(delivery.sent), delivery.kept, delivery.problems) == (3, 0, ())
        for one in port_results:
            assert list(verified([(REMOTE_WRITE, working)], one)) == [f"remote_write {server.write_url}"]
