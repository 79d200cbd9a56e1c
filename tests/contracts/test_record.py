"""Records: validated when made, and the same after a trip through JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regress.errors import RecordError
from regress.record import (
    Case,
    CaseOutcome,
    Commit,
    Environment,
    Launch,
    Measurement,
    RankResult,
    Run,
    TimingMode,
    Verdict,
    quantile,
    run_from_json,
    run_schema,
    to_json,
)
from regress.units import Better, Unit

CASE = Case("allreduce", "float32", 2, "cuda", TimingMode.ISOLATED, 16 * 2**20)
durations = st.floats(min_value=0, max_value=1e6, allow_nan=False)


def run_with(samples: tuple[float, ...]) -> Run:
    measurement = Measurement("allreduce_seconds", Unit.SECONDS, Better.LOWER, samples[0], samples)
    launch = Launch(0, "head", 1, "2026-01-01T00:00:00+00:00", 2.0, 1.5, (CaseOutcome(CASE, (measurement,)),))
    return Run("r1", "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:09+00:00", Commit("abc", main=True),
               Environment({"gpu": "H200", "count": 2, "mig": None}, {"nccl": "2.28.9"}), (launch,), Verdict.PASS)


@pytest.mark.parametrize(("case", "shown"), [
    (CASE, "allreduce[16MiB-float32-2xcuda]"),
    (Case("allgather", "bfloat16", 8, "cuda", TimingMode.GRAPH, 4096), "allgather[4KiB-bfloat16-8xcuda-graph]"),
    (Case("allreduce", "float32", 16, "cuda", TimingMode.PIPELINED, 4096, 8),
     "allreduce[4KiB-float32-2x8xcuda-pipelined]"),
    (Case("ddp_step", "float32", 2, "cpu", TimingMode.STEP, options=(("bucket_cap_mb", 0.25),)),
     "ddp_step[float32-2xcpu-bucket_cap_mb=0.25]"),
])
def test_a_case_prints_as_its_identity(case: Case, shown: str) -> None:
    assert case.id == shown
    assert hash(case) == hash(Case(case.workload, case.dtype, case.world_size, case.device, case.timing,
                                   case.message_size_bytes, case.ranks_per_node, case.options))


@pytest.mark.parametrize("changes", [
    {"world_size": 0}, {"device": "rocm"}, {"message_size_bytes": 0}, {"ranks_per_node": 3}, {"workload": ""},
    {"options": (("b", 1), ("a", 1))}, {"options": (("a", 1), ("a", 2))},
])
def test_a_case_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    facts: dict[str, Any] = {"workload": "allreduce", "dtype": "float32", "world_size": 2, "device": "cuda",
                             "timing": TimingMode.ISOLATED}
    with pytest.raises(RecordError, match="accepted"):
        Case(**(facts | changes))


@given(st.lists(durations, min_size=1, max_size=20))
def test_a_run_survives_json_bit_for_bit_and_in_order(samples: list[float]) -> None:
    run = run_with(tuple(samples))
    again = run_from_json(to_json(run), "memory")
    assert again == run
    assert again.launches[0].outcomes[0].measurements[0].samples == tuple(samples)


@given(st.lists(durations, min_size=1, max_size=20))
def test_a_stored_run_fits_the_published_schema(samples: list[float]) -> None:
    jsonschema.validate(json.loads(to_json(run_with(tuple(samples)))), run_schema())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e-9])
def test_a_measurement_refuses_what_is_no_duration(bad: float) -> None:
    for value, samples in ((bad, ()), (1.0, (1.0, bad))):
        with pytest.raises(RecordError, match="measurement step_seconds"):
            Measurement("step_seconds", Unit.SECONDS, Better.LOWER, value, samples)


@pytest.mark.parametrize(("change", "message"), [
    ({"schema": 99}, "f.json: schema 99; accepted: schema 1 to 1; a newer comm-regress wrote it: upgrade to read it"),
    ({"schema": "x"}, "f.json: schema 'x'; accepted: schema 1 to 1; this is not a comm-regress run"),
    ({"verdict": "maybe"}, "f.json: Invalid enum value 'maybe' - at `$.verdict`; accepted: a run as `regress history "
                           "export` writes it"),
])
def test_a_foreign_run_is_named(change: dict[str, Any], message: str) -> None:
    data = json.loads(to_json(run_with((1.0,)))) | change
    with pytest.raises(RecordError) as refused:
        run_from_json(json.dumps(data), "f.json")
    assert str(refused.value) == message
    assert refused.value.exit_status == 10


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"schema": 1}'])
def test_what_is_no_run_is_an_error_and_not_a_crash(text: bytes) -> None:
    with pytest.raises(RecordError, match=r"^f\.json: "):
        run_from_json(text, "f.json")


def test_unknown_units_and_nan_in_a_stored_file_are_refused() -> None:
    stored = to_json(run_with((1.0,)))
    for before, after in ((b'"seconds"', b'"fortnights"'), (b'"value":1.0', b'"value":NaN'),
                          (b'"value":1.0', b'"value":-3.0')):
        with pytest.raises(RecordError):
            run_from_json(stored.replace(before, after), "f.json")


def test_only_the_must_match_set_makes_the_fingerprint() -> None:
    first = Environment({"a": 1, "b": 2}, {"nccl": "2.28"})
    assert first.fingerprint == Environment({"b": 2, "a": 1}, {"nccl": "2.29"}).fingerprint
    assert first.fingerprint != Environment({"a": 1, "b": 3}).fingerprint
    assert len(first.fingerprint) == 16


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_quantile_is_the_linear_one(values: list[float], q: float) -> None:
    numpy = pytest.importorskip("numpy")
    assert quantile(sorted(values), q) == pytest.approx(float(numpy.quantile(values, q)), rel=1e-9, abs=1e-9)


def test_statistics_outlive_their_samples() -> None:
    whole = Measurement("step_seconds", Unit.SECONDS, Better.LOWER, 2.0, (1.0, 2.0, 3.0))
    pruned = Measurement("step_seconds", Unit.SECONDS, Better.LOWER, 2.0, (), whole.statistics)
    assert pruned.statistic("p50") == whole.statistic("p50") == 2.0
    assert pruned.statistic("p25") == 1.5
    assert pruned.statistic("n") == 3.0
    assert pruned.statistic("value") == 2.0
    assert pruned.statistic("p99") is None


@pytest.mark.parametrize("changes", [{"rank": 2}, {"rank": -1}, {"seconds": {"warp": (1.0,)}},
                                     {"seconds": {"isolated": (-1.0,)}}, {"seconds": {"isolated": (math.nan,)}}])
def test_a_rank_cannot_hand_in_nonsense(changes: dict[str, Any]) -> None:
    facts: dict[str, Any] = {"rank": 0, "world_size": 2, "case": CASE}
    with pytest.raises(RecordError, match=r"of allreduce\[16MiB-float32-2xcuda\]"):
        RankResult(**(facts | changes))
