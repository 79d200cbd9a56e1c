"""Every other sink: against its real server where there is one here, else against its own parser."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import regress.publish as shelf
from regress.delivery import RefusedError, UnreachableError, WithheldError
from regress.delivery.series import branch_class, points
from regress.delivery.text import exposition
from regress.publish import Result, Sink
from regress.publish.file import FILE, FileOptions
from regress.publish.influx import INFLUX, InfluxOptions
from regress.publish.otlp import OTLP, OtlpOptions
from regress.publish.pushgateway import PUSHGATEWAY, PushgatewayOptions
from regress.publish.remote_write import REMOTE_WRITE, RemoteWriteOptions
from regress.publish.webhook import WEBHOOK, WebhookOptions, signature
from regress.record import Commit, run_from_json
from regress.shelf import variants
from tests import servers
from tests.history.factory import run
from tests.publish.factory import Fault, faulty_server, http_answer, result
from tests.servers import MetricsServer


def test_the_shelf_holds_them_all() -> None:
    assert {"remote_write", "pushgateway", "otlp", "influx", "file", "webhook"} <= set(variants(shelf, Sink))


def families(one: Result) -> set[str]:
    return {point.name for point in one.points()}


def test_names_are_base_units_and_the_commit_is_on_one_series() -> None:
    found = result().points()
    with_commit = [p.name for p in found if "commit" in dict(p.labels) or "run_id" in dict(p.labels)]
    assert with_commit == ["comm_regress_run_info"]
    assert all(re.fullmatch(r"[a-z_]+", p.name) for p in found)
    assert len({(p.name, p.labels) for p in found}) == len(found)
    assert {"comm_regress_allreduce_seconds", "comm_regress_baseline_allreduce_seconds",
            "comm_regress_limit_allreduce_seconds", "comm_regress_verdict_code"} <= families(result())
    bounded = {name for p in found for name, _ in p.labels} - {"commit", "run_id", "attempt", "branch_name",
                                                               "tool_version", "torch", "nccl", "driver"}
    assert bounded == {"repo", "branch", "gpu", "gpus", "host_class", "case", "workload", "dtype", "ranks", "device",
                       "timing", "message_bytes", "metric"}


@pytest.mark.parametrize(("branch", "main", "expected"), [
    ("main", True, "main"), ("release/1.2", False, "release"), ("v2.1", False, "release"), ("1.x", False, "release"),
    ("feat/release", False, "other"), ("user/alice/x", False, "other"), (None, False, "other")])
def test_branch_names_become_one_of_three_classes(branch: str | None, main: bool, expected: str) -> None:
    assert branch_class(replace(run(1), commit=Commit(branch=branch, main=main))) == expected


@given(st.text())
def test_any_branch_name_has_a_class(name: str) -> None:
    assert branch_class(replace(run(1), commit=Commit(branch=name))) in ("release", "other")


HOSTILE = st.text(min_size=1, max_size=40) | st.sampled_from(['a"b', "a\\", "a,b=c d", "a\nb", "é", "\x00", "a\r\nb"])


@given(HOSTILE, HOSTILE)
def test_hostile_names_survive_every_text_form(repository: str, driver: str) -> None:
    from prometheus_client.parser import text_string_to_metric_families as older_text

    base = run(1)
    strange = replace(base, environment=replace(base.environment, reported={"driver_version": driver}))
    found = points(strange, repository, [])
    text = exposition(found).decode()
    read = older_text(text)
    parsed = [sample for family in read for sample in family.samples]
    assert sorted((s.name, tuple(sorted(s.labels.items())), s.value) for s in parsed) \
        == sorted((p.name, p.labels, p.value) for p in found)
    lines = INFLUX.render(Result(strange, repository), InfluxOptions("http://x/write"))[0].body.decode()
    assert lines.count("\n") == len(Result(strange, repository).points())
    assert not any(re.search(r"[\x00-\x08\x0b-\x1f]", line) for line in lines.splitlines())


def test_the_text_is_valid_for_both_formats_and_for_promtool() -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

    one = result()
    text = FILE.render(one, FileOptions("x.prom"))[0].body
    read = openmetrics(text.decode())  # type: ignore[no-untyped-call]
    parsed = {family.name: family for family in read}
    assert set(parsed) == families(one)
    assert parsed["comm_regress_allreduce_seconds"].unit == "seconds"
    assert parsed["comm_regress_allreduce_seconds"].type == "gauge"
    checked = subprocess.run([str(servers.binary("promtool")), "check", "metrics"], input=text, capture_output=True,
                             check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_the_file_is_replaced_whole_and_readable_by_the_collector(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "comm.prom"
    options = FileOptions(str(target))
    for value in (0.001, 0.002):
        payload = FILE.render(result(value=value), options)[0]
        assert FILE.send(payload, options) == f"{target} written"
    assert b"} 0.0022\n" in target.read_bytes()
    assert target.read_bytes().endswith(b"# EOF\n")
    assert [p.name for p in target.parent.iterdir()] == ["comm.prom"]
    assert target.stat().st_mode & 0o777 == 0o644
    with pytest.raises(UnreachableError, match="cannot be written"):
        FILE.send(payload, FileOptions("/proc/nowhere/comm.prom"))
    with pytest.raises(UnreachableError, match="cannot be written"):
        FILE.send(payload, FileOptions("~no-such-user/comm.prom"))


def test_pushgateway_keeps_the_latest_run_of_each_group(gateway: MetricsServer) -> None:
    options = PushgatewayOptions(gateway.base, all_branches=True)
    one = result(value=0.001)
    later = Result(replace(result(value=0.002).run, run_id="later"), one.repository)
    for each in (one, later):
        payload = PUSHGATEWAY.render(each, options)[0]
        assert "repo@base64/" in payload.target
        PUSHGATEWAY.send(payload, options)
    with urllib.request.urlopen(f"{gateway.base}/metrics") as answer:  # noqa: S310 - this test's server
        text = answer.read().decode()
    mine = [line for line in text.splitlines() if f'repo="{one.repository}"' in line and not line.startswith("push_")]
    assert len(mine) == len(later.points())
    assert sum('run_id="later"' in line for line in mine) == 1
    value = next(line for line in mine if line.startswith("comm_regress_allreduce_seconds{"))
    assert 'job="comm_regress"' in value
    assert float(value.rsplit(" ", 1)[1]) == pytest.approx(0.0022)


def test_pushgateway_refuses_a_family_of_another_type_and_we_say_why() -> None:
    body = b"# TYPE comm_regress_run_info counter\ncomm_regress_run_info 1\n"
    with servers.pushgateway() as gateway:
        request = urllib.request.Request(f"{gateway.base}/metrics/job/other", data=body, method="PUT")  # noqa: S310
        urllib.request.urlopen(request).close()  # noqa: S310 - this test's server
        options = PushgatewayOptions(gateway.base)
        with pytest.raises(RefusedError, match=r"the server said 400 .*another type"):
            PUSHGATEWAY.send(PUSHGATEWAY.render(result(), options)[0], options)


def test_line_protocol_is_stored_with_its_own_time(victoria: MetricsServer) -> None:
    one = result(timedelta(days=40))
    options = InfluxOptions(f"{victoria.base}/write?db=perf&precision=ns")
    INFLUX.send(INFLUX.render(one, options)[0], options)
    urllib.request.urlopen(f"{victoria.base}/internal/force_flush").close()  # noqa: S310 - this test's server
    match = urllib.parse.quote(f'{{repo="{one.repository}"}}')
    with urllib.request.urlopen(f"{victoria.base}/api/v1/export?match[]={match}") as answer:  # noqa: S310
        stored = [json.loads(line) for line in answer.read().splitlines()]
    found = {(item["metric"].pop("__name__").removesuffix("_value"),
              tuple(sorted((k, v) for k, v in item["metric"].items() if k != "db"))):
             (item["timestamps"], item["values"]) for item in stored}
    expected = {(p.name, p.labels): ([p.time_ms], [pytest.approx(p.value)]) for p in one.points()}
    assert found == expected


def test_influxdb_itself_stores_what_is_written() -> None:
    one = result(timedelta(days=200))
    with servers.influxdb() as server:
        options = InfluxOptions(f"{server.base}/write?db=perf")
        INFLUX.send(INFLUX.render(one, options)[0], options)
        query = urllib.parse.urlencode({"db": "perf", "epoch": "ms",
                                        "q": 'SELECT * FROM "comm_regress_allreduce_seconds"'})
        with urllib.request.urlopen(f"{server.base}/query?{query}") as answer:  # noqa: S310 - this test's server
            series = json.load(answer)["results"][0]["series"][0]
        wrong = InfluxOptions(f"{server.base}/write?db=nosuch")
        with pytest.raises(RefusedError, match=r"404 .*database not found"):
            INFLUX.send(INFLUX.render(one, wrong)[0], wrong)
    [stored] = [dict(zip(series["columns"], row, strict=True)) for row in series["values"]]
    [point] = [point for point in one.points() if point.name == "comm_regress_allreduce_seconds"]
    assert stored == {"time": point.time_ms, "value": point.value} | dict(point.labels)


def test_influx_destinations_differ_by_database_and_hide_secrets() -> None:
    assert INFLUX.destination(InfluxOptions("http://u:p@h:8086/write?db=a&p=secret")) == "http://h:8086/write?db=a"
    assert INFLUX.destination(InfluxOptions("http://h/api/v2/write?org=o&bucket=b")) \
        == "http://h/api/v2/write?org=o&bucket=b"


def test_otlp_reaches_a_collector_with_names_units_and_times() -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    fault = Fault(http_answer("200 OK", b"", "application/x-protobuf"))
    one = result(timedelta(days=40))
    with faulty_server(fault) as base:
        options = OtlpOptions(f"{base}/v1/metrics")
        OTLP.send(OTLP.render(one, options)[0], options)
    head, _, body = fault.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/metrics HTTP/1.1")
    assert b"Content-Type: application/x-protobuf" in head
    metrics = ExportMetricsServiceRequest.FromString(body).resource_metrics[0].scope_metrics[0].metrics
    units = {metric.name: metric.unit for metric in metrics}
    assert units["comm_regress_allreduce_seconds"] == "s"
    assert units["comm_regress_verdict_code"] == "1"
    decoded = {(m.name, tuple((a.key, a.value.string_value) for a in p.attributes)): (p.time_unix_nano, p.as_double)
               for m in metrics for p in m.gauge.data_points}
    assert decoded == {(p.name, p.labels): (p.time_ms * 10**6, p.value) for p in one.points()}


def test_otlp_points_rejected_inside_a_success_are_an_error() -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

    said = ExportMetricsServiceResponse()
    said.partial_success.rejected_data_points = 3
    said.partial_success.error_message = "too old"
    with faulty_server(Fault(http_answer("200 OK", said.SerializeToString(), "application/x-protobuf"))) as base:
        options = OtlpOptions(f"{base}/v1/metrics")
        with pytest.raises(RefusedError, match="3 points were rejected: too old"):
            OTLP.send(OTLP.render(result(), options)[0], options)


def test_otlp_waits_for_a_process_that_has_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    options = OtlpOptions("http://127.0.0.1:9/v1/metrics")
    [payload] = OTLP.render(result(), options)
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2", None)
    with pytest.raises(WithheldError, match=r"otlp needs .*pip install 'comm-regress\[otlp\]'"):
        OTLP.send(payload, options)


def test_a_webhook_is_signed_and_the_same_delivery_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", "k3y")
    fault = Fault()
    one = result()
    with faulty_server(fault) as base:
        options = WebhookOptions(f"{base}/hook", secret_env="HOOK_SECRET")
        payload = WEBHOOK.render(one, options)[0]
        WEBHOOK.send(payload, options)
        WEBHOOK.send(payload, options)
    heads, bodies = zip(*(request.split(b"\r\n\r\n", 1) for request in fault.requests), strict=True)
    assert bodies[0] == bodies[1]
    content = json.loads(bodies[0])
    assert (content["event"], content["repository"]) == ("run", one.repository)
    assert run_from_json(json.dumps(content["run"]), "hook").run_id == one.run.run_id
    assert content["run"]["launches"][0]["outcomes"][0]["measurements"][0]["samples"] == []
    for head in heads:
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        assert headers["X-Comm-Regress-Delivery"] == f"{one.run.run_id}-1"
        moment, digest = re.fullmatch(r"t=(\d+),v1=([0-9a-f]{64})", headers["X-Comm-Regress-Signature"]).groups()  # type: ignore[union-attr]
        signed = f"{moment}.".encode() + bodies[0]
        assert hmac.compare_digest(digest, hmac.new(b"k3y", signed, hashlib.sha256).hexdigest())


def test_a_known_signature() -> None:
    assert signature("key", 1700000000, b"{}") \
        == "t=1700000000,v1=" + hmac.new(b"key", b"1700000000.{}", "sha256").hexdigest()


def test_a_secret_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOOK_SECRET", raising=False)
    options = WebhookOptions("http://127.0.0.1:9/hook", secret_env="HOOK_SECRET")
    with pytest.raises(WithheldError, match="environment variable HOOK_SECRET is not set"):
        WEBHOOK.send(WEBHOOK.render(result(), options)[0], options)
    monkeypatch.setenv("HOOK_SECRET", "two\nlines")
    with pytest.raises(WithheldError, match="not one line"):
        WEBHOOK.send(WEBHOOK.render(result(), options)[0], options)


def test_only_runs_of_the_main_branch_are_pushed_unless_told() -> None:
    topic = result(main=False)
    assert REMOTE_WRITE.render(topic, RemoteWriteOptions("http://x")) == ()
    assert PUSHGATEWAY.render(topic, PushgatewayOptions("http://x")) == ()
    assert INFLUX.render(topic, InfluxOptions("http://x")) == ()
    assert OTLP.render(topic, OtlpOptions("http://x")) == ()
    assert WEBHOOK.render(topic, WebhookOptions("http://x")) == ()
    assert FILE.render(topic, FileOptions("x")) == ()


def test_times_without_zone_and_with_z_are_utc() -> None:
    from regress.delivery.series import time_ms

    assert time_ms("2026-01-01T00:00:00Z") == time_ms("2026-01-01T00:00:00") == time_ms("2026-01-01T05:00:00+05:00")


