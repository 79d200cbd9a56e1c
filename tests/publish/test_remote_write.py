"""remote_write against real servers: what was pushed is read back with its value and its time."""

from __future__ import annotations

import json
import math
import urllib.parse
import urllib.request
from datetime import timedelta

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regress.delivery import RefusedError, UnreachableError, WithheldError
from regress.delivery.remote_write_form import snappy, write_request
from regress.delivery.series import Point
from regress.errors import PublishError
from regress.options import NamedPlace, build, schema_of
from regress.publish import Result
from regress.publish.remote_write import REMOTE_WRITE, RemoteWriteOptions
from tests import servers
from tests.history.factory import big_run
from tests.publish.factory import result
from tests.servers import MetricsServer


def options(server: MetricsServer) -> RemoteWriteOptions:
    return RemoteWriteOptions(server.write_url, query_url=server.base, verify_within=20.0)


def stored(server: MetricsServer, one: Result) -> dict[tuple[str, tuple[tuple[str, str], ...]], tuple[int, float]]:
    """Everything the server holds of that run's repository, by series."""
    moment = one.points()[0].time_ms / 1000 + 1
    selector = f'{{repo="{one.repository}"}}[5s]'
    query = urllib.parse.urlencode({"query": selector, "time": f"{moment:.3f}"})
    with urllib.request.urlopen(f"{server.base}/api/v1/query?{query}") as answer:  # noqa: S310 - this test's server
        found = json.load(answer)["data"]["result"]
    series = {}
    for item in found:
        # VictoriaMetrics keeps what is pushed twice twice, equal in time and value.
        assert len({tuple(pair) for pair in item["values"]}) == 1
        labels = {name: value for name, value in item["metric"].items() if name != "__name__"}
        at, value = item["values"][0]
        series[item["metric"]["__name__"], tuple(sorted(labels.items()))] = (round(at * 1000), float(value))
    return series


def push(server: MetricsServer, one: Result) -> None:
    payloads = REMOTE_WRITE.render(one, options(server))
    assert len(payloads) == 1
    REMOTE_WRITE.send(payloads[0], options(server))
    if server.kind == "victoria-metrics":
        # A value shows up to ten seconds later by itself.
        urllib.request.urlopen(f"{server.base}/internal/force_flush").close()  # noqa: S310 - this test's server


@pytest.mark.parametrize("age", [timedelta(minutes=1), timedelta(minutes=50), timedelta(hours=3), timedelta(days=20)])
def test_every_series_comes_back_with_value_and_time(metrics_server: MetricsServer, age: timedelta) -> None:
    one = result(age, value=0.1 + 0.2)
    push(metrics_server, one)
    assert REMOTE_WRITE.verify is not None
    assert "reads 4 at" in REMOTE_WRITE.verify(one, options(metrics_server))
    expected = {(p.name, p.labels): (p.time_ms, p.value) for p in one.points()}
    found = stored(metrics_server, one)
    assert found.keys() == expected.keys()
    for series, (at, value) in expected.items():
        assert found[series][0] == at
        # VictoriaMetrics keeps about 15 decimal digits.
        assert math.isclose(found[series][1], value, rel_tol=1e-14)
    assert len(expected) == 3 + 2 * 3 + 3  # the run; value, low, high of two metrics; baseline, limit, verdict


def test_two_hundred_series_are_one_request() -> None:
    [payload] = REMOTE_WRITE.render(Result(big_run(1, 200), "org/project"), RemoteWriteOptions("http://x"))
    message = WRITE_REQUEST()
    message.ParseFromString(bytes(cramjam.snappy.decompress_raw(payload.body)))
    assert sum(label.value == "comm_regress_allreduce_seconds" for series in message.timeseries
               for label in series.labels) == 200


def test_the_same_push_again_changes_nothing(metrics_server: MetricsServer) -> None:
    one = result()
    push(metrics_server, one)
    push(metrics_server, one)
    assert REMOTE_WRITE.verify is not None
    REMOTE_WRITE.verify(one, options(metrics_server))
    assert len(stored(metrics_server, one)) == len(one.points())


def test_verify_says_when_a_value_is_not_there(metrics_server: MetricsServer) -> None:
    absent = result()
    quick = RemoteWriteOptions(metrics_server.write_url, query_url=metrics_server.base, verify_within=0.0)
    assert REMOTE_WRITE.verify is not None
    with pytest.raises(PublishError, match=r"should read 4 at \d+ ms and reads nothing"):
        REMOTE_WRITE.verify(absent, quick)
    with pytest.raises(RefusedError, match="no query_url"):
        REMOTE_WRITE.verify(absent, RemoteWriteOptions(metrics_server.write_url))


def test_a_value_that_a_server_swallowed_is_found_out_by_verifying() -> None:
    """VictoriaMetrics answers 204 to a sample outside its retention and drops it."""
    with servers.victoria_metrics(retention="1") as server:
        old = result(timedelta(days=200))
        push(server, old)
        quick = RemoteWriteOptions(server.write_url, query_url=server.base, verify_within=1.0)
        assert REMOTE_WRITE.verify is not None
        with pytest.raises(PublishError, match=r"reads nothing.*retention"):
            REMOTE_WRITE.verify(old, quick)


@pytest.mark.parametrize(("window", "age"), [(None, timedelta(hours=3)), ("30d", timedelta(days=200))])
def test_too_old_is_a_refusal_that_names_the_setting(window: str | None, age: timedelta) -> None:
    with servers.prometheus(window) as server:
        push(server, result(timedelta(minutes=1)))
        with pytest.raises(RefusedError, match=r"storage\.tsdb\.out_of_order_time_window") as caught:
            push(server, result(age))
        assert "the server said" in caught.value.text


def test_a_server_without_the_receiver_is_told_apart() -> None:
    with servers.prometheus(receiver=False) as server, pytest.raises(RefusedError,
                                                                    match=r"--web\.enable-remote-write-receiver"):
        push(server, result())


def test_a_server_that_is_down() -> None:
    nobody = MetricsServer(f"http://127.0.0.1:{servers.free_port()}", "nobody")
    with pytest.raises(UnreachableError, match=r"no answer: .*[Cc]onnection refused"):
        push(nobody, result())


def test_only_the_main_branch_unless_told(prometheus: MetricsServer) -> None:
    topic = result(main=False)
    assert REMOTE_WRITE.render(topic, options(prometheus)) == ()
    assert len(REMOTE_WRITE.render(topic, RemoteWriteOptions("http://x", all_branches=True))) == 1


def test_a_url_with_a_password_is_not_used_and_not_shown() -> None:
    secret = RemoteWriteOptions("http://ada:hunter2@127.0.0.1/api/v1/write?token=t0k3n")
    with pytest.raises(WithheldError) as caught:
        REMOTE_WRITE.send(REMOTE_WRITE.render(result(), secret)[0], secret)
    assert "hunter2" not in caught.value.text
    assert "t0k3n" not in caught.value.text
    assert REMOTE_WRITE.destination(secret) == "http://127.0.0.1/api/v1/write"


def test_options_are_read_from_yaml_with_units() -> None:
    built = build(RemoteWriteOptions, {"url": "http://x", "http": {"timeout": "3s", "bearer_token_env": "TOKEN"}},
                  NamedPlace("publish[0]"))
    assert built.http.timeout == 3.0
    assert built.http.bearer_token_env == "TOKEN"
    assert schema_of(RemoteWriteOptions)["properties"]["http"]["properties"]["timeout"]["type"] == "string"


NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,20}", fullmatch=True)
POINTS = st.lists(st.builds(
    Point, NAMES.map(lambda n: f"comm_regress_{n}"),
    st.dictionaries(NAMES, st.text(min_size=1, max_size=30), max_size=5).map(lambda d: tuple(sorted(d.items()))),
    st.floats(allow_nan=False), st.integers(-(2**63), 2**63 - 1)), max_size=20)


@settings(max_examples=50, deadline=None)
@given(POINTS)
def test_the_encoder_agrees_with_protobuf(points: list[Point]) -> None:
    message = WRITE_REQUEST()
    message.ParseFromString(write_request(points))
    decoded = [({label.name: label.value for label in series.labels}, [(s.value, s.timestamp) for s in series.samples])
               for series in message.timeseries]
    assert decoded == [({"__name__": p.name} | dict(p.labels), [(p.value, p.time_ms)]) for p in points]
    assert [[label.name for label in series.labels] for series in message.timeseries] \
        == [sorted(["__name__", *(name for name, _ in p.labels)]) for p in points]


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=400) | st.integers(65530, 65600).map(bytes) | st.just(b"ab" * 200_000))
def test_the_framing_agrees_with_snappy(content: bytes) -> None:
    assert bytes(cramjam.snappy.decompress_raw(snappy(content))) == content


def write_request_class() -> type:
    """The message as protobuf itself builds it from the published description."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="remote.proto", package="prometheus", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, str | None]) -> None:
        added = file.message_type.add(name=name)
        for field_name, number, kind, of in fields:
            repeated = kinds.LABEL_REPEATED if of else kinds.LABEL_OPTIONAL
            added.field.add(name=field_name, number=number, type=kind, label=repeated,
                            type_name=f".prometheus.{of}" if of else None)

    message("Label", ("name", 1, kinds.TYPE_STRING, None), ("value", 2, kinds.TYPE_STRING, None))
    message("Sample", ("value", 1, kinds.TYPE_DOUBLE, None), ("timestamp", 2, kinds.TYPE_INT64, None))
    message("TimeSeries", ("labels", 1, kinds.TYPE_MESSAGE, "Label"), ("samples", 2, kinds.TYPE_MESSAGE, "Sample"))
    message("WriteRequest", ("timeseries", 1, kinds.TYPE_MESSAGE, "TimeSeries"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made: type = message_factory.GetMessageClass(pool.FindMessageTypeByName("prometheus.WriteRequest"))
    return made


WRITE_REQUEST = write_request_class()
