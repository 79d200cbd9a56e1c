"""thresholds.yaml: what is accepted means what it says, and everything else is refused with place and remedy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regress.config import (
    Catalog,
    Config,
    WorkloadFacts,
    config_schema,
    load_config,
    matches,
    packaged_thresholds,
)
from regress.errors import ConfigError, RegressError
from regress.options import Effect, Form, option
from regress.record import TimingMode
from regress.units import Unit


@dataclass(frozen=True, slots=True)
class Limit:
    max: float | None = option(None, form=Form.METRIC, help="ceiling")
    min: float | None = option(None, form=Form.METRIC, help="floor")


@dataclass(frozen=True, slots=True)
class Shift:
    effect: Effect = option(Effect(0.1), form=Form.EFFECT, help="change that matters")
    statistic: str = option("p50", choices=("p25", "p50"), help="statistic of a launch")


@dataclass(frozen=True, slots=True)
class Buckets:
    bucket_cap_mb: float | None = option(None, help="bucket size")
    accumulation: int = option(1, help="micro-steps", minimum=1)


@dataclass(frozen=True, slots=True)
class FileSink:
    path: str = option(help="where to")


CATALOG = Catalog(
    {"allreduce": WorkloadFacts(True, Buckets, {"allreduce_seconds": Unit.SECONDS,
                                                "busbw_bytes_per_second": Unit.BYTES_PER_SECOND}),
     "allgather": WorkloadFacts(True, Buckets, {"allgather_seconds": Unit.SECONDS}),
     "ddp_step": WorkloadFacts(False, Buckets, {"step_seconds": Unit.SECONDS, "gpu_compute_ratio": Unit.RATIO,
                                                "collectives_per_step": Unit.COUNT})},
    {"limit": Limit, "shift": Shift}, {"file": FileSink})
ONE_CASE = "schema: 1\ncases:\n- workload: allreduce\n  sizes: [1MiB]\n"


def load(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    return load_config(path, CATALOG)


SIZES = "accepted: a size in powers of 1024 such as 4KiB or 25MiB (B, KiB, MiB, GiB, TiB)"
DURATIONS = "accepted: a duration such as 3us, 50ms or 2s (ns, us, ms, s, min, h)"
EFFECTS = "accepted: 10%, 3us or max(3us, 15%)"


@pytest.mark.parametrize(("text", "message"), [
    ("", "t.yaml: no mapping at the top; accepted: keys such as schema, gate, cases, metrics"),
    ("a: [", "t.yaml:1:5: not YAML: expected the node content, but found '<stream end>'; accepted: a YAML mapping"),
    ("schema: 1\ngaet: {}", "t.yaml:2: gaet: unknown key 'gaet'; accepted: cases, defaults, devices, gate, metrics, "
                            "overrides, publish, schema; did you mean 'gate'?"),
    ("schema: 1\ngate:\n  budget: 600", f"t.yaml:3: gate.budget: 600 has no unit; {DURATIONS}, more than 0"),
    ("schema: 1\ngate:\n  budget: 600x", f"t.yaml:3: gate.budget: '600x' is not a value in seconds; {DURATIONS}"),
    ("schema: 1\ncases:\n- workload: allreduce\n  sizes:\n  - 1MiB\n  - 16MB",
     f"t.yaml:6: cases[0].sizes[1]: '16MB' is not a value in bytes; {SIZES}; message sizes are powers of 1024: "
     "write MiB"),
    ("schema: 1\ncases:\n- workload: allreduc\n  sizes: [1MiB]",
     "t.yaml:3: cases[0].workload: 'allreduc'; accepted: allgather, allreduce, ddp_step; did you mean 'allreduce'?"),
    ("schema: 1\ncases:\n- workload: allreduce\n  sizes: [1MiB]\n  options: {bucket_cap: 1}",
     "t.yaml:5: cases[0].options.bucket_cap: unknown key 'bucket_cap'; accepted: accumulation, bucket_cap_mb; did you "
     "mean 'bucket_cap_mb'?"),
    ("schema: 1\ncases: []", "t.yaml:2: cases: []; accepted: at least 1 of them"),
    ("schema: 1\ncases:\n- workload: allreduce",
     "t.yaml:3: cases[0]: allreduce without sizes; accepted: sizes: [4KiB, 1MiB, ...]"),
    ("schema: 1\ncases:\n- workload: ddp_step\n  sizes: [1MiB]",
     "t.yaml:3: cases[0]: ddp_step is a training step and has no message size; accepted: no key sizes"),
    ("schema: 1\ncases:\n- workload: allreduce\n  sizes: [1MiB]\n  timing: graph",
     "t.yaml:3: cases[0]: timing: graph on the CPU; accepted: isolated or pipelined on the CPU; CUDA graphs need "
     "devices: [cuda]"),
    ("schema: 1\nmetrics:\n  allreduce_second: {max: 50ms}",
     "t.yaml:3: metrics.allreduce_second: unknown key 'allreduce_second'; accepted: allgather_seconds, "
     "allreduce_seconds, busbw_bytes_per_second, collectives_per_step, gpu_compute_ratio, step_seconds; did you mean "
     "'allreduce_seconds'?"),
    ("schema: 1\nmetrics:\n  allreduce_seconds: {max: 50}",
     f"t.yaml:3: metrics.allreduce_seconds.max: 50 has no unit; {DURATIONS}"),
    ("schema: 1\nmetrics:\n  allreduce_seconds:\n    maxx: 50ms",
     "t.yaml:4: metrics.allreduce_seconds.maxx: unknown key 'maxx'; accepted: effect, max, min, statistic; did you "
     "mean 'max'?"),
    ("schema: 1\nmetrics:\n  allreduce_seconds: {effect: 10}",
     "t.yaml:3: metrics.allreduce_seconds.effect: 10 has no unit; accepted: 10%, 3us or max(3us, 15%)"),
    ("schema: 1\nmetrics:\n  allreduce_seconds: {effect: '10'}",
     "t.yaml:3: metrics.allreduce_seconds.effect: '10' is not a change; accepted: 10%, or a floor and a percentage "
     "such as max(3us, 15%); write the percent sign"),
    ("schema: 1\nmetrics:\n  gpu_compute_ratio: {min: 0.85}",
     "t.yaml:3: metrics.gpu_compute_ratio.min: 0.85 has no unit; accepted: a percentage with its sign such as 85%"),
    (ONE_CASE + "metrics:\n  step_seconds: {max: 1s}",
     "t.yaml:6: metrics.step_seconds: no case of this file measures 'step_seconds'; accepted: allreduce_seconds, "
     "busbw_bytes_per_second"),
    ("schema: 2", "t.yaml:1: schema: 2; accepted: 1"),
    ("gate: {}", "t.yaml:1: 'schema' is a required property; add it, for example schema: 1"),
    ("schema: 1\nschema: 1", "t.yaml:2: key 'schema' is given twice; accepted: every key once; keep one of the two"),
    ("schema: 1\ngate: &a {}\ndevices: *a",
     "t.yaml:2: anchor or alias 'a'; accepted: plain YAML; write the value out"),
    ("schema: !!python/object:os.system 1",
     "t.yaml:1: tag 'tag:yaml.org,2002:python/object:os.system'; accepted: plain YAML, no tags"),
    ("schema: 1\ngate:\n  budget: -5min", f"t.yaml:3: gate.budget: '-5min'; {DURATIONS}, more than 0"),
    ("schema: 1\ngate: {launch_deadline: 0s}", f"t.yaml:2: gate.launch_deadline: '0s'; {DURATIONS}, more than 0"),
    ("schema: 1\ngate: {lock_wait: -1s}", f"t.yaml:2: gate.lock_wait: '-1s'; {DURATIONS}, at least 0"),
    ("schema: 1\ndevices:\n  cpu:\n    case_duration: -1ms",
     f"t.yaml:4: devices.cpu.case_duration: '-1ms'; {DURATIONS}, more than 0"),
    ("schema: 1\ngate: {budget: 1e999h}", f"t.yaml:2: gate.budget: '1e999h' is too large a number; {DURATIONS}"),
    ("schema: 1\ngate: {cost_per_gpu_hour: .inf}",
     "t.yaml:2: gate.cost_per_gpu_hour: inf; accepted: a finite number of at most 1.79769e+308"),
    ("schema: 1\ngate: {cost_per_gpu_hour: .nan}",
     "t.yaml:2: gate.cost_per_gpu_hour: nan; accepted: a finite number of at most 1.79769e+308"),
    ("schema: 1\ngate: {window: 1.0e+30}",
     "t.yaml:2: gate.window: 1e+30; accepted: a finite number of at most 2.14748e+09"),
    ("schema: 1\ngate: {window: 20.5}", "t.yaml:2: gate.window: 20.5; accepted: integer"),
    ("schema: 1\ncases:\n- workload: allreduce\n  sizes: [1e999B]",
     f"t.yaml:4: cases[0].sizes[0]: '1e999B' is too large a number; {SIZES}"),
    ("schema: 1\ncases:\n- workload: allreduce\n  sizes: [1e30TiB]",
     f"t.yaml:4: cases[0].sizes[0]: '1e30TiB' is not a whole, positive number of bytes below 8 EiB; {SIZES}"),
    (ONE_CASE + "  options: {bucket_cap_mb: .inf}",
     "t.yaml:5: cases[0].options.bucket_cap_mb: inf; accepted: a finite number of at most 1.79769e+308"),
    ("schema: 1\nmetrics:\n  allreduce_seconds: {effect: -10%}",
     f"t.yaml:3: metrics.allreduce_seconds.effect: '-10%' is below 0; {EFFECTS}; a change counts in both directions: "
     "write it without its sign"),
    ("schema: 1\nmetrics:\n  allreduce_seconds: {effect: 'max(-3us, 10%)'}",
     f"t.yaml:3: metrics.allreduce_seconds.effect: 'max(-3us, 10%)' is below 0; {EFFECTS}; a change counts in both "
     "directions: write it without its sign"),
    ("schema: 1\nmetrics:\n  allreduce_seconds: {effect: 'max(15%, 10%)'}",
     "t.yaml:3: metrics.allreduce_seconds.effect: 'max(15%, 10%)' is the larger of two of one kind; "
     f"{EFFECTS}; write the larger one alone"),
    ("schema: 1\nmetrics:\n  allreduce_seconds: {effect: 'max(3us, 5us)'}",
     "t.yaml:3: metrics.allreduce_seconds.effect: 'max(3us, 5us)' is the larger of two of one kind; "
     f"{EFFECTS}; write the larger one alone"),
    ("schema: 1\ngate: {window: 0}", "t.yaml:2: gate.window: 0; accepted: at least 1"),
    ("schema: 1\ngate: {confirm: 3}", "t.yaml:2: gate.confirm: 3; accepted: boolean"),
    ("schema: 1\npublish: [{sink: fiel}]", "t.yaml:2: publish[0].sink: 'fiel'; accepted: file; did you mean 'file'?"),
    ("schema: 1\npublish: [{sink: file}]", "t.yaml:2: publish[0]: 'path' is a required property"),
    ("schema: 1\noverrides: [{cases: '*', metrics: {allreduce_seconds: {max: 85%}}}]",
     f"t.yaml:2: overrides[0].metrics.allreduce_seconds.max: '85%' is not a value in seconds; {DURATIONS}"),
])
def test_a_mistake_is_named_with_place_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text)
    assert str(refused.value).replace(f"{tmp_path}/", "") == message
    assert refused.value.exit_status == 4


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: No such file or directory; accepted: a readable thresholds"):
        load_config(tmp_path / "nowhere.yaml", CATALOG)
    (tmp_path / "latin.yaml").write_bytes(b"schema: \xff")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        load_config(tmp_path / "latin.yaml", CATALOG)
    (tmp_path / "big.yaml").write_text("# " + "x" * 1_000_001)
    with pytest.raises(ConfigError, match="accepted: at most 1000000 bytes"):
        load_config(tmp_path / "big.yaml", CATALOG)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(["schema", "gate", "cases", "metrics", "workload", "sizes", "x"]), inner,
                        max_size=3), max_leaves=12))
def test_any_document_is_loaded_or_refused_in_our_own_words(tmp_path_factory: pytest.TempPathFactory,
                                                            document: object) -> None:
    import yaml

    path = tmp_path_factory.mktemp("any") / "t.yaml"
    path.write_text(yaml.safe_dump(document))
    try:
        load_config(path, CATALOG)
    except RegressError as error:
        assert error.exit_status == 4
        assert str(path) in str(error)


def test_what_people_write_becomes_policies_in_base_units(tmp_path: Path) -> None:
    config = load(tmp_path, ONE_CASE + """
defaults: {effect: 7%}
metrics:
  allreduce_seconds: {max: 50ms, effect: "max(3us, 15%)", statistic: p25}
overrides:
- cases: "allreduce[1MiB-*-4xcuda]"
  metrics: {allreduce_seconds: {effect: 50%}}
""")
    (two,), (four,) = config.plan("cuda", 2), config.plan("cuda", 4)
    assert config.policy(two, "allreduce_seconds") == {"limit": Limit(max=0.05),
                                                       "shift": Shift(Effect(0.15, 3e-6), "p25")}
    assert config.policy(four, "allreduce_seconds")["shift"] == Shift(Effect(0.5), "p25")
    assert config.policy(two, "busbw_bytes_per_second")["shift"] == Shift(Effect(0.07))
    assert config.names(two, "allreduce_seconds")
    assert not config.names(two, "busbw_bytes_per_second")


@pytest.mark.parametrize("pattern", ["allreduce[4KB-*]", "allredoce[1MiB-*]", "allgather*", "allreduce[[]1MiB*"])
def test_an_override_that_fits_no_case_is_an_error(tmp_path: Path, pattern: str) -> None:
    text = ONE_CASE + f"overrides:\n- cases: {pattern!r}\n  metrics: {{allreduce_seconds: {{max: 1ms}}}}\n"
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert f"{pattern!r} fits no case of this file" in str(caught.value)
    assert "overrides[0]" in str(caught.value)
    assert "called like allreduce[1MiB-float32-1xcpu]; `regress run --list`" in str(caught.value)


@pytest.mark.parametrize("pattern", ["*", "allreduce[1MiB-*-48xcuda]", "*2x8xcuda*", "*cpu]", "allreduce[*-3xcpu]"])
def test_an_override_for_another_machine_is_none(tmp_path: Path, pattern: str) -> None:
    load(tmp_path, ONE_CASE + f"overrides:\n- cases: {pattern!r}\n  metrics: {{allreduce_seconds: {{max: 1ms}}}}\n")


def test_whole_numbers_are_whole_however_they_are_written(tmp_path: Path) -> None:
    config = load(tmp_path, "schema: 1\ngate: {window: 20.0, keep_samples: 5.0}\ndevices: {cpu: {launches: 3.0}}\n"
                            "cases:\n- workload: allreduce\n  sizes: [1MiB]\n  ranks: [2.0]\n")
    [case] = config.plan("cpu", 4)
    for number in (config.gate.window, config.gate.keep_samples, config.devices.cpu.launches, case.world_size):
        assert type(number) is int
    assert case.id == "allreduce[1MiB-float32-2xcpu]"


def test_an_option_that_is_the_default_makes_no_other_case(tmp_path: Path) -> None:
    config = load(tmp_path, "schema: 1\ncases:\n- workload: ddp_step\n"
                            "- workload: ddp_step\n  options: {bucket_cap_mb: null, accumulation: 1.0}\n"
                            "- workload: ddp_step\n  options: {bucket_cap_mb: 25, accumulation: 2.0}\n")
    assert [case.id for case in config.plan("cuda", 2)] == [
        "ddp_step[float32-2xcuda]", "ddp_step[float32-2xcuda-accumulation=2-bucket_cap_mb=25]"]


def test_two_sizes_never_have_one_name(tmp_path: Path) -> None:
    config = load(tmp_path, "schema: 1\ncases:\n- workload: allreduce\n  sizes: [1000000B, 1000050B, 1.5KiB]\n")
    assert [case.id for case in config.plan("cpu", 2)] == [
        "allreduce[1000000B-float32-2xcpu]", "allreduce[1000050B-float32-2xcpu]", "allreduce[1.5KiB-float32-2xcpu]"]


def test_cases_come_from_sizes_dtypes_and_ranks_once_each(tmp_path: Path) -> None:
    config = load(tmp_path, "schema: 1\ncases:\n- workload: allreduce\n  sizes: [4KiB, 1MiB]\n"
                            "  dtypes: [float32, bfloat16]\n  devices: [cuda]\n  timing: graph\n"
                            "- workload: allreduce\n  sizes: [4KiB]\n  devices: [cuda]\n  timing: graph\n"
                            "- workload: ddp_step\n  ranks: [2, 8]\n  options: {bucket_cap_mb: 0.25}\n")
    assert [case.id for case in config.plan("cuda", 8)] == [
        "allreduce[4KiB-float32-8xcuda-graph]", "allreduce[1MiB-float32-8xcuda-graph]",
        "allreduce[4KiB-bfloat16-8xcuda-graph]", "allreduce[1MiB-bfloat16-8xcuda-graph]",
        "ddp_step[float32-2xcuda-bucket_cap_mb=0.25]", "ddp_step[float32-8xcuda-bucket_cap_mb=0.25]"]
    assert [case.timing for case in config.plan("cpu", 2)] == [TimingMode.STEP, TimingMode.STEP]


def test_sections_that_are_left_out_come_from_the_packaged_file(tmp_path: Path) -> None:
    default = load_config(None, CATALOG)
    mine = load(tmp_path, "schema: 1\ngate: {budget: 5min}\n")
    assert mine.gate.budget == 300.0
    assert mine.plan("cpu", 2) == default.plan("cpu", 2)
    assert mine.devices == default.devices


def test_the_packaged_file_is_the_one_at_the_top() -> None:
    top = Path(__file__).resolve().parents[2] / "thresholds.yaml"
    assert packaged_thresholds().resolve() == top


@pytest.mark.parametrize(("pattern", "fits"), [
    ("allreduce[4KiB-*]", True), ("allreduce*", True), ("*", True), ("allreduce[4KiB-float32-2xcpu]", True),
    ("allgather*", False), ("allreduce[1MiB-*]", False), ("allreduce", False)])
def test_brackets_in_a_pattern_stand_for_themselves(pattern: str, fits: bool) -> None:
    assert matches("allreduce[4KiB-float32-2xcpu]", pattern) is fits


def test_every_key_of_the_schema_has_its_help() -> None:
    def undescribed(schema: dict[str, object], path: str) -> list[str]:
        found = []
        properties = schema.get("properties")
        for name, inner in (properties.items() if isinstance(properties, dict) else ()):
            if not inner.get("description") and "properties" not in inner and "const" not in inner \
                    and "enum" not in inner and "items" not in inner:
                found.append(f"{path}.{name}")
            found += undescribed(inner, f"{path}.{name}")
        return found

    assert undescribed(config_schema(CATALOG), "") == []
