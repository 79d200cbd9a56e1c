from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.user_step import StepContext, load
from regress.errors import UsageError

CONTEXT = StepContext(0, 0, 2, torch.device("cpu"), torch.float32, 7, {"accumulation": 1})


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    name = f"mine_{request.node.name.partition('[')[0]}"
    (tmp_path / f"{name}.py").write_text("""
class Step:
    samples_per_step = 64
    def __call__(self):
        return 0.5
    def parameters(self):
        return []
class Odd(Step):
    samples_per_step = -1
class Listed(Step):
    parameters = [1]
def build(context):
    assert context.world_size == 2 and context.options["accumulation"] == 1
    return Step()
def plain(context):
    return lambda: None
def nothing(context): pass
def odd(context): return Odd()
def listed(context): return Listed()
value = 3
""")
    (tmp_path / f"{name}_needs.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_step_with_everything(module: str) -> None:
    step = load(f"{module}:build", CONTEXT)
    assert (step.run(), step.samples_per_step) == (0.5, 64)
    assert step.parameters is not None
    assert list(step.parameters()) == []


def test_a_plain_function_is_enough(module: str) -> None:
    step = load(f"{module}:plain", CONTEXT)
    assert (step.run(), step.samples_per_step, step.parameters) == (None, None, None)


@pytest.mark.parametrize(("function", "seen"), [
    ("missing", "has no 'missing'"),
    ("value", "is int, which cannot be called"),
    ("nothing", "the function returned NoneType, which cannot be called"),
    ("odd", "samples_per_step is -1"),
    ("listed", "parameters is list, which cannot be called")])
def test_what_breaks_the_contract_is_named(module: str, function: str, seen: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(f"{module}:{function}", CONTEXT)
    assert seen in caught.value.seen
    assert caught.value.where == f"step: '{module}:{function}'"


def test_no_such_module() -> None:
    with pytest.raises(UsageError) as caught:
        load("no_such_package.train:build", CONTEXT)
    assert caught.value.text == (
        "step: 'no_such_package.train:build': no module 'no_such_package'; accepted: \"package.module:function\", the "
        "function taking a StepContext and returning a callable; the folder that holds it must be on PYTHONPATH or "
        "be the rootdir")


@pytest.mark.parametrize("reference", ["train", "train:", ":build", ""])
def test_not_a_reference(reference: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(reference, CONTEXT)
    assert caught.value.seen == "no module and function"


def test_what_the_module_itself_lacks_is_not_blamed_on_the_reference(module: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        load(f"{module}_needs:build", CONTEXT)
