"""`regress explain` as a function: its JSON, its comparison and its text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regress.errors import TraceInputError, UsageError
from regress.explain import explain, render_text
from tests.trace.made import kineto, kineto_rank, two_ranks
from tests.trace.samples import kineto_8_ranks, sample


def test_the_json_has_the_published_shape() -> None:
    found = json.loads(json.dumps(explain([sample("mps/pageable")]).to_json()))
    assert (found["ranks"], found["devices"], found["window"], found["steps"]) == (2, 1, "steps", 10)
    for metric in found["metrics"].values():
        assert {"value", "unit", "better"} <= metric.keys()
        assert metric["better"] in ("lower", "higher")
        assert isinstance(metric["value"], float)
    assert found["metrics"]["gpu_busy_ratio"]["by_rank"].keys() == {"0", "1"}
    assert "against" not in found["metrics"]["gpu_busy_ratio"]
    for finding in found["findings"]:
        assert finding.keys() - {"consequences"} == {"rule", "severity", "confidence", "evidence", "cause", "try"}
    assert all(isinstance(text, str) for text in found["warnings"])


def test_whole_capture_figures_stand_beside_the_windows() -> None:
    detail = explain([sample("nvlink/good")]).to_json()["rank_details"]
    assert isinstance(detail, list)
    first = detail[0]
    assert isinstance(first, dict)
    assert (first["kernels"], first["collectives"], first["last_to_arrive"]) == (3322, 41, 37)
    assert first["comm_seconds"] == 4_721_308 / 1e9


def test_a_metric_that_the_trace_cannot_give_is_absent() -> None:
    explained = explain([sample("mps/pageable")])
    assert explained.get("sm_active_ratio") is None
    assert "sm_active_ratio" not in json.dumps(explained.to_json()["metrics"])


def test_against_gives_the_change_of_each_metric() -> None:
    explained = explain([sample("nvlink/small_buckets")], [sample("nvlink/good")])
    metric = explained.get("collectives_per_step")
    assert metric is not None
    assert (metric.value, metric.against, metric.change) == (26.0, 4.0, 5.5)
    unchanged = explained.get("device_allocs_per_step")
    assert unchanged is not None
    assert (unchanged.against, unchanged.change) == (0.0, None)
    entry = explained.to_json()["metrics"]
    assert isinstance(entry, dict)
    assert {"against", "change"} <= set(str(entry["skew_seconds"]).replace("'", " ").split())


def test_two_tracers_are_never_compared(tmp_path: Path) -> None:
    export = two_ranks().write(tmp_path / "t.sqlite")
    files = [kineto(tmp_path / f"{r}.json", kineto_rank(r), distributedInfo={"rank": r, "world_size": 2})
             for r in (0, 1)]
    with pytest.raises(UsageError, match="nsys compared with one of kineto"):
        explain([export], files)


def test_a_comparison_says_what_makes_it_doubtful() -> None:
    explained = explain([sample("nvlink/micro")], [sample("nvlink/good")])
    assert any("over kernels here and over steps" in text for text in explained.warnings)


def test_no_trace_at_all_is_refused() -> None:
    with pytest.raises(TraceInputError, match="no trace was named"):
        explain([])


def test_the_text_names_metrics_sizes_findings_and_warnings() -> None:
    text = render_text(explain([sample("nvlink/small_buckets")], [sample("nvlink/good")]))
    lines = text.splitlines()
    assert lines[0] == "2 ranks on 2 GPUs, 10 steps; nsys 2025.3.2.0; ratios over step ranges"
    assert lines[2].split() == ["metric", "value", "against", "change", "by", "rank"]
    assert any(line.split()[:4] == ["collectives_per_step", "26", "4", "×6.50"] for line in lines)
    assert any(line.startswith("AllReduce  4.0MiB") for line in lines)
    assert any(line.startswith("CRITICAL small_collectives: a step makes 26 collectives") for line in lines)
    assert any(line.startswith("warning: the trace does not say which rank") for line in lines)
    assert all(line == line.rstrip() for line in lines)


def test_the_text_of_many_ranks_stays_short() -> None:
    text = render_text(explain(kineto_8_ranks()))
    assert "straggler: the others wait for rank 7" in text
    assert max(map(len, text.splitlines())) < 400


def test_reading_an_export_needs_no_nsys() -> None:
    assert explain([sample("public/nsys-ai_mock")], nsys=None).ranks == 1
