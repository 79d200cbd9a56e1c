"""The contract of a training step of the user's own: `step: "package.module:function"`.

The function is called once on every rank, with the communicator up and this rank's GPU selected:

    def build(context: StepContext) -> Callable[[], object]

It builds model, data and optimizer on `context.device`, wraps the model as it likes, and returns a callable.
Each call of that is one complete training step (forward, backward, optimizer) on this rank; every rank makes the same
calls. It returns the loss as a scalar tensor or a number, which must be finite after the last step, or None. It need
not synchronise: that is done around it. Two attributes of the callable are used where it has them:

    samples_per_step   training samples one step consumes over all ranks (an int): gives `samples_per_second`
    parameters         a function without arguments that returns the tensors that must be equal on all ranks after the
                       last step, such as `model.parameters` of a DDP model; a wrong one makes the case invalid

The function may use anything in `context.options`; the gate itself applies none of them to a step of the user's own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regress.errors import UsageError
from regress.record import Scalar

if TYPE_CHECKING:
    import torch

FORM = '"package.module:function", the function taking a StepContext and returning a callable'


@dataclass(frozen=True, slots=True)
class StepContext:
    """What the user's function is told.

    seed: the same on every rank and in every launch. dtype: the case's. options: the case's other options by name,
    defaults included.
    """

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    dtype: torch.dtype
    seed: int
    options: Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class UserStep:
    """A step as the user's function returned it, its optional parts read and checked."""

    run: Callable[[], object]
    samples_per_step: int | None
    parameters: Callable[[], Iterable[torch.Tensor]] | None


def load(reference: str, context: StepContext) -> UserStep:
    """Builds the step that `reference` names. Raises UsageError where it does not keep the contract.

    What the function itself raises is passed on.
    """
    where = f"step: {reference!r}"
    built = _function(reference, where)(context)
    if not callable(built):
        raise UsageError(f"the function returned {type(built).__name__}, which cannot be called", where=where,
                         accepted="a callable that runs one training step")
    samples = getattr(built, "samples_per_step", None)
    if samples is not None and (not isinstance(samples, int) or samples < 1):
        raise UsageError(f"samples_per_step is {samples!r}", where=where, accepted="a positive int, over all ranks")
    parameters = getattr(built, "parameters", None)
    if parameters is not None and not callable(parameters):
        raise UsageError(f"parameters is {type(parameters).__name__}, which cannot be called", where=where,
                         accepted="a function that returns tensors")
    return UserStep(built, samples, parameters)


def _function(reference: str, where: str) -> Callable[[StepContext], object]:
    module_name, colon, function_name = reference.partition(":")
    if not (colon and module_name and function_name):
        raise UsageError("no module and function", where=where, accepted=FORM)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        parents = [module_name.rsplit(".", depth)[0] for depth in range(module_name.count(".") + 1)]
        if error.name not in parents:
            raise  # the module is there, and something that it imports is not
        raise UsageError(f"no module {error.name!r}", where=where, accepted=FORM,
                         next_step="the folder that holds it must be on PYTHONPATH or be the rootdir") from error
    function = getattr(module, function_name, None)
    if function is None:
        raise UsageError(f"{module.__file__} has no {function_name!r}", where=where, accepted=FORM)
    if not callable(function):
        raise UsageError(f"{reference} is {type(function).__name__}, which cannot be called", where=where,
                         accepted=FORM)
    found: Callable[[StepContext], object] = function
    return found
