"""Several optimizers in one session: each step runs them one after another, as a GAN or an actor and its critic need.

A turn is one run of a step: it computes a loss of its own on the same samples and steps one optimizer. The runtime
counts turns, and calls each of them a step: update ``n`` (from 0) is turn ``n % len(turns)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ...core.errors import SpecError, TrainingError
from ...core.units import plural


class Turns:
    """Optimizers in the order of their turns, as one optimizer: with the union of their parameter groups and states.

    An optimizer may have several turns, such as a critic that is stepped twice before its actor.
    """

    def __init__(self, turns: Sequence[torch.optim.Optimizer]) -> None:
        self.turns = list(turns)
        self.optimizers = list({id(optimizer): optimizer for optimizer in turns}.values())
        self._held = [{id(p) for group in o.param_groups for p in group["params"]} for o in self.turns]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all optimizers."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def defaults(self) -> dict[str, Any]:
        """The settings that any of them has."""
        return {name: value for optimizer in self.optimizers for name, value in optimizer.defaults.items()}

    @property
    def state(self) -> dict[Any, Any]:
        """The states of all optimizers, by parameter."""
        return {key: value for optimizer in self.optimizers for key, value in optimizer.state.items()}

    def turn(self, update: int) -> torch.optim.Optimizer:
        """The optimizer whose turn ``update`` (from 0) is."""
        return self.turns[update % len(self.turns)]

    def leave_own(self, update: int, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Drop gradients of parameters that the optimizer of this turn does not hold, as ``zero_grad()`` would."""
        held = self._held[update % len(self.turns)]
        for parameter in parameters:
            if id(parameter) not in held:
                parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """As of one optimizer that holds all parameter groups."""
        state: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        first = 0
        for optimizer in self.optimizers:
            own = optimizer.state_dict()
            state |= {first + number: value for number, value in own["state"].items()}
            groups += [
                group | {"params": [first + number for number in group["params"]]} for group in own["param_groups"]
            ]
            first += _size(own["param_groups"])
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, found: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        groups, first = iter(found["param_groups"]), 0
        for optimizer in self.optimizers:
            own = [next(groups) for _ in optimizer.param_groups]
            size = _size(own)
            numbers = range(first, first + size)
            optimizer.load_state_dict(
                {
                    "state": {number - first: found["state"][number] for number in numbers if number in found["state"]},
                    "param_groups": [group | {"params": [n - first for n in group["params"]]} for group in own],
                }
            )
            first += size


AnyOptimizer = torch.optim.Optimizer | Turns


class RunStates:
    """Copies of the training state at the beginning of a step and after each of its runs.

    A member that joins in the middle of a step runs the cell from the beginning of that step: what the cell reads
    before a run that is over has to be the state of that place. Empty where a step has one run.
    """

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self.copies: list[Any] = []
        self._shown: int | None = None  # the update whose state the model has, None for the last one

    def begin(self, applied: int, copied: Callable[[], Any]) -> None:
        """A run begins after ``applied`` updates."""
        if self._runs > 1 and applied % self._runs == 0:
            self.copies = [copied()]

    def done(self, copied: Callable[[], Any]) -> None:
        """A run was applied."""
        if self._runs > 1:
            self.copies.append(copied())

    def shared(self, applied: int) -> list[Any]:
        """What a member needs that joins after ``applied`` updates."""
        return self.copies if applied % self._runs else []

    def to_show(self, update: int, applied: int) -> Any:
        """The copy to be loaded, so that the model is as it was after ``update``; None where it is so already."""
        if (applied if self._shown is None else self._shown) == update:
            return None
        self._shown = None if update == applied else update
        return self.copies[update - (applied - 1) // self._runs * self._runs]


def state_of_scheduler(scheduler: Any) -> dict[str, Any]:
    """The state of a scheduler; of one that holds another, such as a warm-up of the program's own, that one's, too."""
    state: dict[str, Any] = scheduler.state_dict()
    return {name: state_of_scheduler(value) if is_scheduler(value) else value for name, value in state.items()}


def load_scheduler(scheduler: Any, state: dict[str, Any]) -> None:
    """Load what `state_of_scheduler` returned."""
    held = {name: value for name, value in getattr(scheduler, "__dict__", {}).items() if is_scheduler(value)}
    inner = {name: value for name, value in held.items() if name in state and isinstance(state[name], dict)}
    scheduler.load_state_dict({name: value for name, value in state.items() if name not in inner})
    for name, value in inner.items():
        load_scheduler(value, state[name])


def is_scheduler(value: Any) -> bool:
    """Whether `value` is a scheduler of torch, or of a class that derives from one."""
    return isinstance(value, (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau))


class Schedulers:
    """Schedulers of several optimizers, which step together, once per step of the loop."""

    def __init__(self, schedulers: Sequence[Any]) -> None:
        self._schedulers = list(schedulers)

    def state_dict(self) -> dict[str, Any]:
        """Their states, by place."""
        return {str(place): state_of_scheduler(scheduler) for place, scheduler in enumerate(self._schedulers)}

    def load_state_dict(self, found: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        for place, scheduler in enumerate(self._schedulers):
            load_scheduler(scheduler, found[str(place)])

    def __iter__(self) -> Iterator[Any]:
        return iter(self._schedulers)


OWN_RATE = (
    "{kind}.step() sets the learning rate itself, which hp.Session(grow=...) multiplies for the time of a step: write "
    "hp.GrowBatch('constant', ...), and set the rate in the loop"
)


def step_with_rates(optimizer: torch.optim.Optimizer, loss: float, factor: float) -> None:
    """Step with learning rates times ``factor``; afterwards they are what they were.

    Raises TrainingError for an optimizer that sets them in its step.
    """
    before = [group["lr"] for group in optimizer.param_groups]
    now = [rate * factor for rate in before]
    for group, rate in zip(optimizer.param_groups, now, strict=True):
        group["lr"] = rate
    try:
        step_optimizer(optimizer, loss)
        if any(group["lr"] is not rate for group, rate in zip(optimizer.param_groups, now, strict=True)):
            raise TrainingError(OWN_RATE.format(kind=type(optimizer).__name__))
    finally:
        for group, rate in zip(optimizer.param_groups, before, strict=True):
            group["lr"] = rate


def step_optimizer(optimizer: torch.optim.Optimizer, loss: float) -> None:
    """Step with the present gradients. LBFGS wants a closure: of one iteration it calls it once, at its beginning."""
    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(lambda: loss)
    else:
        optimizer.step()


def last_turn_of(optimizer: AnyOptimizer, groups: Any) -> int:
    """The last turn (from 0) of the optimizer with these ``param_groups``."""
    turns = optimizer.turns if isinstance(optimizer, Turns) else [optimizer]
    return max((turn for turn, one in enumerate(turns) if one.param_groups is groups), default=len(turns) - 1)


def runs_of(optimizer: Any) -> int:
    """Runs per step: one per entry of a list of optimizers."""
    return len(optimizer.turns) if isinstance(optimizer, Turns) else 1


def several(optimizer: Any) -> AnyOptimizer:
    """A list of optimizers as `Turns`, anything else unchanged.

    Raises SpecError for an empty list, and for a parameter that two optimizers hold.
    """
    if not isinstance(optimizer, (list, tuple)):
        return optimizer  # type: ignore[no-any-return]
    if not optimizer:
        raise SpecError("optimizer is an empty list; expected a torch.optim.Optimizer, or several in their order")
    turns = Turns(optimizer)
    held = [id(p) for group in turns.param_groups for p in group["params"]]
    if twice := len(held) - len(set(held)):
        raise SpecError(
            f"{plural(twice, 'parameter')} of the model in two of the optimizers; give each parameter to one. An "
            "optimizer that runs several times per step may be listed several times"
        )
    return turns


def together(scheduler: Any) -> Any:
    """A list of schedulers as `Schedulers`, anything else unchanged."""
    return Schedulers(scheduler) if isinstance(scheduler, (list, tuple)) else scheduler


def ones(found: Any) -> list[Any]:
    """The optimizers of `Turns`, the schedulers of `Schedulers`, or the one that there is."""
    if isinstance(found, Turns):
        return list(found.optimizers)
    return list(found) if isinstance(found, Schedulers) else [found]


def named(name: str, found: Any) -> dict[str, Any]:
    """The one by its name; several by name and place, such as ``optimizer[0]``."""
    many = ones(found)
    return {name if len(many) == 1 else f"{name}[{place}]": one for place, one in enumerate(many)}


def kinds(found: Any) -> str | None:
    """The name of its class, for checkpoints; of several, all names."""
    return None if found is None else ", ".join(type(one).__name__ for one in ones(found))


def refuse_other(turns: Any, turn: int, optimizer: Any) -> None:
    """Raise TrainingError where ``step.run(..., optimizer=...)`` names another optimizer than that of this turn."""
    order = turns.turns if isinstance(turns, Turns) else [turns]
    if optimizer is None or optimizer is order[turn]:
        return
    found = [place for place, own in enumerate(order, start=1) if own is optimizer]
    whose = f"which has run {found[0]} of the step" if found else "which hp.Session was not given"
    raise TrainingError(
        f"run {turn + 1} of the step names a {type(optimizer).__name__}, {whose}. Call step.run() in the order of the "
        "list hp.Session(model, [optimizer, ...], data), once per entry"
    )


def _size(groups: Sequence[dict[str, Any]]) -> int:
    return sum(len(group["params"]) for group in groups)
