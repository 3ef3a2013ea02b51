"""Refuses batch sizes, optimizers and schedulers with which a session cannot train."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ...core.errors import SpecError
from ...policy.growth import BatchTerms
from ..data.given import Given
from ..data.stream import is_stream
from .purity import refuse_unfit_layers
from .turns import Turns, ones

_UNFIT_OPTIMIZERS = {
    torch.optim.SparseAdam: "gradients are summed over all members as dense tensors, which SparseAdam refuses. Pass "
    "torch.optim.Adam, which also trains embeddings with sparse=True here, and moves every row that ever had a "
    "gradient in each step; SGD without momentum and Adagrad move the rows of the batch alone",
}
_ITERATIONS = (
    "optimizer is an LBFGS with {found}, which computes the loss several times in one step; hp.Session computes it "
    "once per step.run(). Make it with max_iter=1 and line_search_fn=None: the history is kept from step to step. For "
    "n iterations on the same samples list it n times, hp.Session(model, [optimizer] * n, data, ...), and call "
    "step.run() n times"
)

_CHANGES = (
    "hp.Session(grow=...) changes the global batch, and {found}: {remedy}, or leave grow out, which keeps the global "
    "batch and the learning rates as they are"
)


def refuse_sizes(global_batch: int, micro_batch: int) -> None:
    """Raise SpecError for batches that cannot be cut into micro-batches."""
    if micro_batch < 1 or global_batch < micro_batch or global_batch % micro_batch:
        raise SpecError(
            f"global_batch is {global_batch} and micro_batch {micro_batch}; expected a multiple of micro_batch, at "
            "least one"
        )


def counted(count: Any, what: str, example: int) -> int:
    """How many ``steps`` or ``epochs``; raises SpecError where it is no number."""
    if not (hasattr(count, "__index__") or (hasattr(count, "__float__") and what == "steps")):
        got = "no number" if count is None else f"a {type(count).__name__}"
        raise SpecError(f"session.{what}() got {got}; expected how many {what}, such as session.{what}({example})")
    return count  # type: ignore[no-any-return]


def refuse_growth(terms: BatchTerms | None, found: Given, optimizer: Any, replica: int) -> None:
    """Raise SpecError for data, optimizers and replicas with which the global batch cannot change."""
    if terms is None:
        return
    groups = [group for one in ones(optimizer) for group in one.param_groups]
    whole = isinstance(found.order, str) and found.order == "lanes"
    refusals = (
        (is_stream(found.data), "the data is a stream, which is read in blocks of one size", "give data with an index"),
        (whole, 'order="lanes" cuts the data into one stretch for each sample of it', "choose another order"),
        (found.drop_last, "drop_last=True cuts each epoch to whole batches", "write drop_last=False"),
        (isinstance(optimizer, Turns), "the session has a list of optimizers", "give it one optimizer"),
        (replica > 1, "each member is a replica of several ranks", "run without --replica"),
        (
            terms.rule != "constant" and not all("lr" in group for group in groups),
            "a parameter group of the optimizer has no lr",
            "write hp.GrowBatch('constant', ...)",
        ),
    )
    for applies, text, remedy in refusals:
        if applies:
            raise SpecError(_CHANGES.format(found=text, remedy=remedy))


def refuse_unfit(model: torch.nn.Module, optimizer: Any, scheduler: Any, metric: str | None = None) -> None:
    """Raise SpecError or TrainingError for what a session cannot train with."""
    refuse_unfit_layers(model)
    for one in ones(optimizer):
        refuse_optimizer(one)
    groups = {id(one.param_groups) for one in ones(optimizer)}
    for one in ones(scheduler):
        refuse_scheduler(one, groups)
    _refuse_metric([one for one in ones(scheduler) if isinstance(one, ReduceLROnPlateau)], metric)


def refuse_optimizer(optimizer: Any) -> None:
    """Raise SpecError for an optimizer that would fail in its first step."""
    if not hasattr(optimizer, "param_groups") or not callable(getattr(optimizer, "step", None)):
        raise SpecError(
            f"optimizer is a {type(optimizer).__name__}; expected a torch.optim.Optimizer, or a list of them. Several "
            "sets of settings go into one optimizer as parameter groups"
        )
    for kind, remedy in _UNFIT_OPTIMIZERS.items():
        if isinstance(optimizer, kind):
            raise SpecError(f"optimizer is a {type(optimizer).__name__}: {remedy}")
    if type(optimizer) is torch.optim.LBFGS:
        _refuse_iterations(optimizer)
    elif missing := _required(optimizer):
        raise SpecError(
            f"optimizer is a {type(optimizer).__name__}, whose step() needs {missing}; hp.Session calls "
            "optimizer.step() without arguments: pass an optimizer whose step() needs none"
        )


def _refuse_iterations(optimizer: torch.optim.LBFGS) -> None:
    for group in optimizer.param_groups:
        if group["line_search_fn"] is not None or group["max_iter"] != 1:
            search = group["line_search_fn"]
            found = f"line_search_fn={search!r}" if search is not None else f"max_iter={group['max_iter']}"
            raise SpecError(_ITERATIONS.format(found=found))


def refuse_scheduler(scheduler: Any, groups: Collection[int]) -> None:
    """Raise SpecError for a scheduler that would fail in its first step, or would set another optimizer's rates.

    ``groups`` are the ids of the session's lists of parameter groups.
    """
    if scheduler is None:
        return
    name = type(scheduler).__name__
    if lacking := [m for m in ("step", "state_dict", "load_state_dict") if not callable(getattr(scheduler, m, None))]:
        raise SpecError(
            f"scheduler is a {name} without {lacking[0]}(); expected a scheduler of torch.optim.lr_scheduler, or an "
            "object with step(), state_dict() and load_state_dict()"
        )
    if (missing := _required(scheduler)) and not isinstance(scheduler, ReduceLROnPlateau):
        raise SpecError(
            f"scheduler is a {name}, whose step() needs {missing}; hp.Session calls scheduler.step() once per step, "
            "without arguments: pass one that depends on the number of steps alone, such as CosineAnnealingLR, or an "
            f"object whose step(), state_dict() and load_state_dict() wrap the {name} and supply {missing}. Or leave "
            f"it out of hp.Session, and call it in the loop: loss = step.run(loss_function), then {_calls(scheduler)} "
            f"with {missing}; members that join later get it"
        )
    its = getattr(scheduler, "optimizer", None)
    if its is not None and id(getattr(its, "param_groups", None)) not in groups:
        raise SpecError(
            f"scheduler is a {name} of another optimizer than the one given to hp.Session, whose learning rate it "
            f"would not change; make it with that optimizer: {name}(optimizer, ...)"
        )


def _calls(scheduler: Any) -> str:
    """How a loop calls it: schedulers of timm are called after each step, too."""
    per_step = callable(getattr(scheduler, "step_update", None))
    return (
        "scheduler.step_update(step.number), and after an epoch scheduler.step(...)"
        if per_step
        else ("scheduler.step(...)")
    )


def _refuse_metric(plateaus: Sequence[Any], metric: str | None) -> None:
    """Raise SpecError where the number that a ReduceLROnPlateau is stepped with is not the one that is meant."""
    if metric is not None and not plateaus:
        raise SpecError(
            f"scheduler_metric is {metric!r}, and no scheduler is a ReduceLROnPlateau, which alone is stepped with a "
            "number; leave it out"
        )
    if metric is None and any(plateau.mode == "max" for plateau in plateaus):
        raise SpecError(
            "scheduler is a ReduceLROnPlateau with mode='max', and hp.Session steps it with the loss of each step, "
            "which is to fall: name a metric that the loss function returns, scheduler_metric='accuracy', or "
            "leave the scheduler out, and call scheduler.step(session.evaluate(...)) in the loop"
        )


def _required(stepped: Any) -> str:
    """The names of the arguments that a call of ``stepped.step()`` must give."""
    own = getattr(type(stepped), "step", None)  # torch's schedulers wrap the instance's with one that shows self
    try:
        parameters = [*inspect.signature(own or stepped.step).parameters.values()][own is not None :]
    except (TypeError, ValueError):
        return ""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return ", ".join(p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind not in variadic)
