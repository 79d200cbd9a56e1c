"""The files under docker/: well-formed, consistent with the sinks, and their queries run on a real Prometheus.

Grafana itself is not run here: what it makes of the dashboard beyond its queries is not tested.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from regress.delivery.series import VERDICT_CODES
from regress.publish.remote_write import REMOTE_WRITE, RemoteWriteOptions
from tests import servers
from tests.publish.factory import result
from tests.servers import MetricsServer

DOCKER = Path(__file__).resolve().parents[2] / "docker"
BOARD: dict[str, Any] = json.loads((DOCKER / "grafana" / "dashboards" / "comm-regress.json").read_text())
METRICS = {f"{prefix}{metric}" for prefix in ("", "low_", "high_", "baseline_", "limit_") for metric in (
    "allreduce_seconds", "allgather_seconds", "busbw_bytes_per_second", "step_seconds", "gpu_compute_ratio",
    "gpu_busy_ratio", "sm_active_ratio", "exposed_comm_ratio", "overlap_ratio")} | {
    "verdict_code", "run_verdict_code", "run_info", "run_end_timestamp_seconds"}


def texts(value: object) -> Iterator[tuple[str, str]]:
    """Every (key, text) in the dashboard."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, str):
                yield key, inner
            else:
                yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)


def expressions() -> list[str]:
    return [text for key, text in texts(BOARD) if key == "expr"]


def test_panels_have_unique_ids_and_do_not_overlap() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [(x, y) for panel in panels for g in [panel["gridPos"]] for x in range(g["x"], g["x"] + g["w"])
             for y in range(g["y"], g["y"] + g["h"])]
    assert len(cells) == len(set(cells))
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 and panel["description"] for panel in panels)


def test_every_variable_that_is_used_is_declared() -> None:
    declared = {item["name"] for item in BOARD["templating"]["list"]} | {"__interval", "__range"}
    used = {name for _, text in texts(BOARD) for name in re.findall(r"\$(\w+)", text)} - {"__all"}
    assert used == declared


def test_every_metric_that_is_drawn_is_one_that_sinks_push() -> None:
    drawn = {name for text in expressions() for name in re.findall(r"comm_regress_(\w+)", text)}
    assert drawn <= METRICS
    assert {"run_info", "verdict_code", "baseline_allreduce_seconds", "limit_allreduce_seconds"} <= drawn


def test_sparse_series_are_always_looked_back_for() -> None:
    for text in expressions():
        assert re.search(r"(last_over_time|max_over_time)\(", text), text


def test_verdicts_are_mapped_back_to_the_same_words() -> None:
    expected = {str(code): verdict.value for verdict, code in VERDICT_CODES.items()}
    mappings = [m for panel in BOARD["panels"] for m in panel["fieldConfig"]["defaults"].get("mappings", [])]
    for panel in BOARD["panels"]:
        for override in panel["fieldConfig"]["overrides"]:
            mappings += [m for p in override["properties"] if p["id"] == "mappings" for m in p["value"]]
    assert len(mappings) == 2
    for mapping in mappings:
        assert {code: shown["text"] for code, shown in mapping["options"].items()} == expected


def test_change_points_and_runs_are_annotations() -> None:
    notes = {item["name"]: item for item in BOARD["annotations"]["list"]}
    assert "== 4" in notes["Change points: slower"]["expr"]
    assert "== 1" in notes["Change points: faster"]["expr"]
    assert "{{commit}}" in notes["Runs"]["titleFormat"]


@pytest.fixture(scope="module")
def filled() -> Iterator[tuple[MetricsServer, float]]:
    """A server with five runs an hour apart, and the time of the latest."""
    with servers.prometheus() as server:
        options = RemoteWriteOptions(server.write_url)
        runs = [result(timedelta(hours=hour)) for hour in (5, 4, 3, 2, 1)]
        for one in runs:
            REMOTE_WRITE.send(REMOTE_WRITE.render(one, options)[0], options)
        yield server, runs[-1].points()[0].time_ms / 1000


@pytest.mark.parametrize("text", sorted(set(expressions())))
def test_queries_run_on_a_real_server(filled: tuple[MetricsServer, float], text: str) -> None:
    server, moment = filled
    for name, value in (("$repo", ".*"), ("$branch", "main"), ("$gpu", ".*"), ("$case", ".*"), ("$lookback", "1d"),
                        ("$__range", "1d"), ("$__interval", "1h")):
        text = text.replace(name, value)
    query = urllib.parse.urlencode({"query": text, "time": f"{moment + 60:.3f}"})
    with urllib.request.urlopen(f"{server.base}/api/v1/query?{query}") as answer:  # noqa: S310 - this test's server
        found = json.load(answer)["data"]["result"]
    measured = re.search(r"all(reduce|gather)_seconds|verdict_code\{[^}]*\}\[1[dh]\]\)+( == 4)?$|run_info", text)
    absent = re.search(r"(baseline|limit)_allgather", text)
    assert bool(found) == bool(measured and not absent), text


def test_the_table_of_runs_names_each_commit_with_its_time(filled: tuple[MetricsServer, float]) -> None:
    server, moment = filled
    text = BOARD["panels"][1]["targets"][0]["expr"]
    text = re.sub(r"\{[^{}]*\}", "", text.replace("$__range", "1d"))
    query = urllib.parse.urlencode({"query": text, "time": f"{moment + 60:.3f}"})
    with urllib.request.urlopen(f"{server.base}/api/v1/query?{query}") as answer:  # noqa: S310 - this test's server
        found = json.load(answer)["data"]["result"]
    assert len({item["metric"]["commit"] for item in found}) == 5
    assert abs(float(found[0]["value"][1]) / 1000 - moment) < 1


def promtool(*words: str) -> str:
    done = subprocess.run([str(servers.binary("promtool")), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_alert_rules_fire_when_they_should_and_not_before(tmp_path: Path) -> None:
    rules = DOCKER / "prometheus"
    assert "4 rules found" in promtool("check", "rules", str(rules / "rules.yml"))
    assert "SUCCESS" in promtool("test", "rules", str(rules / "rules_test.yml"))
    shutil.copy(rules / "rules.yml", tmp_path)
    settings = (rules / "prometheus.yml").read_text().replace("/etc/prometheus/", f"{tmp_path}/")
    (tmp_path / "prometheus.yml").write_text(settings)
    assert "is valid" in promtool("check", "config", str(tmp_path / "prometheus.yml"))


def test_alert_rules_name_only_series_that_sinks_push() -> None:
    text = (DOCKER / "prometheus" / "rules.yml").read_text()
    expressions_only = [rule["expr"] for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    assert {name for text in expressions_only for name in re.findall(r"comm_regress_(\w+)", text)} <= METRICS


def test_compose_keeps_ports_on_this_host_and_history_for_years() -> None:
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    services = compose["services"]
    assert {"prometheus", "victoria", "grafana"} <= set(services)
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (DOCKER / source).exists(), volume
    assert "--storage.tsdb.retention.time=5y" in services["prometheus"]["command"]
    assert "--web.enable-remote-write-receiver" in services["prometheus"]["command"]
    assert "-retentionPeriod=5y" in services["victoria"]["command"]
    assert ":?" in services["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"]
    window = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())["storage"]["tsdb"]
    assert window == {"out_of_order_time_window": "30d"}


def test_grafana_finds_its_source_and_dashboard() -> None:
    provisioning = DOCKER / "grafana" / "provisioning"
    source = yaml.safe_load((provisioning / "datasources" / "metrics.yaml").read_text())["datasources"][0]
    assert {text for key, text in texts(BOARD) if key == "uid"} == {source["uid"], BOARD["uid"]}
    provider = yaml.safe_load((provisioning / "dashboards" / "comm-regress.yaml").read_text())["providers"][0]
    mounts = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]["grafana"]["volumes"]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in mounts
