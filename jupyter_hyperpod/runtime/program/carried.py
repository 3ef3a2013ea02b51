"""What a run carries from step to step besides its model: registered objects, and variables of the cell's own loop.

It is copied between two steps, where the cell has finished what it does after one step and has not begun the next. A
member that misses a step gets the copy, and puts it into its own objects where its loop is at that place, never
earlier: what its cell does until then belongs to the step that was missed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from ...core.errors import TrainingError
from ..session.optimizer_state import access
from ..worker.main import current
from . import generators
from .carried_paths import CarriedPaths, Tracer
from .copies.copier import Copier
from .copies.forms import SKIPPED, Copy
from .loop_variables import LoopVariables
from .model_flags import ModelFlags
from .origins import Origins, OwnTensors
from .value_kinds import PLAIN, State, Unfit, has_attributes

LATE = (
    "{member} joined after step {step} and never ran line {line}, where the others bound {name}: bind it before the "
    "loop, or keep its values in the session, session.state.{name} = ..."
)
BECAME = (
    "{member} never ran line {line}, where the others bound {name}. What depends on session.rank may be needed on any "
    "member, because rank 0 may be another process after a loss: bind {name} on all of them"
)
EARLY = (
    "this member joined after step {step}, in a later loop of its cell, and left the loops before, because what "
    "follows each of them ran with later values: write `for epoch in {epochs}`, which skips what is over"
)
PARTS = ("values", "variables", "generators", "flags", "paths", "data", "ended", "late")  # of Copies
STATE = "state"  # the name of the namespace that each session has


@dataclass
class Copies:
    """Copies of everything after ``step`` steps, in the loop of this number among those that the cell has begun.

    ``epoch``: the number of the loop of epochs, the epoch, and the steps and loops before it. ``left``: the cell has
    left that loop before its end. ``ended``: the variables at the end of the loop before. ``late``: what `LateChanges`
    shows, in checkpoints. ``turn``: the number of the step with which it left that loop, 0 where that is not known.
    """

    step: int
    loop: int
    epoch: tuple[int, int, int, int] = (0, 0, 0, 0)
    left: bool = False
    values: dict[str, Copy] = field(default_factory=dict)
    variables: dict[str, Copy] = field(default_factory=dict)
    generators: dict[str, Copy] = field(default_factory=dict)
    flags: dict[str, Copy] = field(default_factory=dict)
    paths: dict[str, Copy] = field(default_factory=dict)
    data: dict[str, Copy] = field(default_factory=dict)
    ended: dict[str, Copy] = field(default_factory=dict)
    late: dict[str, Any] = field(default_factory=dict)
    turn: int = 0


class Carried:
    """The copies of one session. ``own`` are the ids of what the session carries in other ways.

    ``sources``: its model, data, optimizer and scheduler.
    """

    def __init__(self, own: frozenset[int], sources: Mapping[str, Any]) -> None:
        generators.begin()
        self._flags = ModelFlags(sources["model"], sources["data"], own)
        self.origins = Origins(OwnTensors(sources))
        self.paths = CarriedPaths(own, sources, self.origins)
        self.values = State()
        self.data: Any = None  # what reads the data; its place in a stream travels, too
        worker = current()
        pulled = () if worker is None else worker.context.spec.pull
        self.variables = LoopVariables(own, sources["model"], self.origins, pulled)
        self._own = own
        self._alike: dict[int, Any] = {}  # what all members make alike, by id
        self._model = sources["model"]
        self._objects: dict[str, Any] = {STATE: self.values}
        self._sealed = Copies(0, 0)
        self._epoch = (0, 0, 0, 0)
        self.epochs_call = "session.epochs(n)"  # as the program writes it
        self.first_step = 0  # steps of the run that this member has missed
        self.other_rank = False  # it has been another rank than 0, or has changed its rank
        self._received: Copies | None = None  # what this member's objects do not hold yet
        self.unproven: dict[str, Any] = {}  # what a checkpoint shows, which this member has not compared yet
        self.since: list[str] = []  # paths that were copied first in a step, since the cell was between two
        self._left = -1  # the last loop, from 1, that was left before its end, here or where the copies were made
        self.left_with = 0  # the number of the step with which it was left, 0 where that is not known

    def register(self, objects: Mapping[str, Any]) -> None:
        """Carry these objects, too. Raises TrainingError for values that cannot be changed in place."""
        for name, value in objects.items():
            if name in self._objects:
                raise TrainingError(f"{name!r} is registered already; give every object a name of its own")
            if id(value) in self._own:
                raise TrainingError(f"{name} is the session's own: it travels anyway; leave it out of register()")
            if not _changes_in_place(value):
                raise TrainingError(
                    f"{name} is a {type(value).__name__}, which cannot be changed in place, so a member that joins "
                    f"later could not be given it: keep it in the session, session.state.{name} = {value!r:.40}"
                )
            self._objects[name] = value

    def leave_out(self, objects: Iterable[Any]) -> None:
        """Do not carry these where registered objects hold them: all members make them alike."""
        self._alike |= {id(one): one for one in objects if type(one) not in PLAIN}

    def seal(self, step: int, loop: int) -> None:
        """Copy everything: the cell is between two steps. Raises TrainingError for what cannot travel."""
        copier = Copier(self._own.union(self._alike))
        self.origins.forget_new(step, loop)
        before, found = self._sealed.values, {}
        for name, value in self._objects.items():
            try:
                found[name] = copier.copied(value, before.get(name))
            except Unfit as unfit:
                raise _refused(name, unfit) from unfit
            if found[name] is SKIPPED:
                raise _refused(name, Unfit("", value))
        if not vars(self.values):
            del found[STATE]
        last = self._sealed
        is_new = last.loop != loop  # then the last copies are kept, and their memory is not used again
        ended = last.variables if is_new else last.ended
        variables = self.variables.copied({} if is_new else last.variables)
        flags = self._flags.copied(self.variables.attributes, self.variables.reads_gradients)
        paths = self.paths.copied(last.paths)
        own = generators.states()
        self._sealed = Copies(step, loop, self._epoch, self._left == loop, found, variables, own, flags, paths)
        self.since = []
        self._sealed.ended = ended
        self._sealed.turn = self.left_with if self._left == loop else 0
        if self.data is not None:
            self._sealed.data = self.data.state_dict()

    def seal_more(self, late: Mapping[str, Any] | None = None, inside: bool = False) -> None:
        """A newcomer or a checkpoint comes: copy what is carried since the cell was between two steps.

        ``late``: what the checkpoint shows of what the program has changed. ``inside``: a step runs, which may have
        changed what is copied now.
        """
        now, before = self.paths.copied({}), self._sealed.paths
        self.since += sorted(now.keys() - before.keys()) if inside else ()
        self._sealed.paths = now | before
        self._sealed.late = dict(late or {})

    def refuse_rebuilt(self) -> None:
        """Raise TrainingError where the cell has replaced a part of the model: it cannot be given to newcomers."""
        self._flags.refuse_rebuilt()

    def traced(self, bound: bool = True) -> Tracer:
        """What is copied now, besides the paths. ``bound``: by variables that the loops bind, too."""
        whole = Tracer(self._own.union(self._alike), None)
        for value in self._objects.values():
            with suppress(Unfit):
                whole.copied(value)
        chosen = Tracer(self._own, self.variables.attributes)
        chosen.notes += whole.notes
        self.variables.trace(chosen, bound)
        self._flags.trace(chosen, self.variables.attributes)
        return chosen

    def enter(self, step: int, loop: int) -> None:
        """The cell's loop is between two steps: put what was received into this member's objects, if it is due.

        A member that has not run the earlier loops of its cell gets it now, too, so that what they bind is there, and
        once more where its loop is at the place of the copies.
        """
        received = self._received
        if received is None or received.step != step:
            return
        if loop >= received.loop:
            self._received, self.unproven = None, received.late
            if received.left:
                self._left, self.left_with = loop, received.turn
        held = self.origins.alive()
        self.origins.forget_new()
        copier = Copier(self._own.union(self._alike), None, self._model)
        if missing := received.values.keys() - self._objects.keys():
            raise TrainingError(
                f"other members carry {', '.join(sorted(missing))}, which this member has not registered: call "
                "session.register() on every member, before the first step"
            )
        for name, copy in received.values.items():
            try:
                copier.merged(self._objects[name], copy)
            except Unfit as unfit:
                raise _refused(name, unfit) from unfit
        self.variables.put_back(received.ended if loop < received.loop and received.ended else received.variables)
        generators.put_back(received.generators)
        self._flags.put_back(received.flags)
        self.paths.put_back(received.paths, step)
        if self.data is not None and received.data:
            self.data.load_state_dict(received.data)
        held.clear()
        self.origins.forget_new()

    def explain(self, error: NameError, member: str) -> None:
        """A name is missing in the cell: raise TrainingError where this ``member`` joined late or became rank 0."""
        if (self.first_step or self.other_rank) and (line := self.variables.line_of(error)):
            name, number = line
            sentence = LATE if self.first_step else BECAME
            raise TrainingError(sentence.format(member=member, step=self.first_step, line=number, name=name)) from error

    def early_end(self, loop: int) -> str:
        """The cell has left its loops: a refusal where the other members are in a later one, else ""."""
        return EARLY.format(step=self.first_step, epochs=self.epochs_call) if self.is_behind(loop) else ""

    def enter_last(self, step: int) -> None:
        """The cell is behind all its loops: put what was received into this member's objects, if that was there."""
        if self._received is not None:
            self.enter(step, self._received.loop)

    def begin_epochs(self, planned: int, loop: int) -> tuple[int, int, int]:
        """A loop of epochs begins: the epoch with which this member begins, and the steps and loops before that."""
        number = self._epoch[0] + 1
        self._epoch = (number, 0, planned, loop)
        if self._received is None or self._received.epoch[0] < number:
            return 0, planned, loop
        there, epoch, planned_before, loops_before = self._received.epoch
        return (epoch, planned_before, loops_before) if there == number else (sys.maxsize, planned, loop)

    def begin_epoch(self, epoch: int, planned: int, loop: int) -> None:
        """An epoch begins; ``planned``: the steps requested before it, ``loop``: the loops begun."""
        self._epoch = (self._epoch[0], epoch, planned, loop)

    def received(self, name: str) -> Copy | None:
        """The copy of a registered object that this member was given and has not taken over yet."""
        return None if self._received is None else self._received.values.get(name)

    @property
    def epoch(self) -> tuple[int, int]:
        """The number of the loop of epochs, from 1, and of the epoch in it; zeros before."""
        return self._epoch[:2]

    @property
    def waits(self) -> bool:
        """Whether this member's cell has not reached the place of the copies that it was given."""
        return self._received is not None

    def leave(self, loop: int, turn: int) -> None:
        """The cell leaves this loop before its end, with the step of the number ``turn``."""
        self._left, self.left_with = loop, turn

    def is_left(self, loop: int) -> bool:
        """Whether this loop was left before its end, here or where the copies were made."""
        return loop == self._left

    def is_elsewhere(self, loop: int) -> bool:
        """Whether this member's cell must leave its loop at once: the others are in a later one, or have left it."""
        return self.is_behind(loop) or loop == self._left

    def is_behind(self, loop: int) -> bool:
        """Whether this member's cell has not reached the loop in which the other members are."""
        return self._received is not None and loop < self._received.loop

    def at(self, step: int) -> dict[str, Any]:
        """The copies after ``step``, for other members and checkpoints."""
        copies = self._received if self._received is not None and self._received.step == step else self._sealed
        place = {"loop": copies.loop, "epoch": copies.epoch, "left": copies.left, "turn": copies.turn}
        return place | {part: getattr(copies, part) for part in PARTS}

    def load(self, found: Mapping[str, Any], step: int) -> None:
        """Take copies that another member made after ``step``, or that a checkpoint holds, for `enter`."""
        place = found.get("loop", 0), tuple(found.get("epoch", (0, 0, 0, 0))), found.get("left", False)
        self._received = Copies(step, *place, *(found.get(part, {}) for part in PARTS))
        self._received.turn = found.get("turn", 0)

    def leave_variables(self) -> None:
        """The cell keeps the variables that it has: only what is registered is taken from the copies."""
        if self._received is not None:
            self._received.variables, self._received.paths, self._received.late = {}, {}, {}


def _changes_in_place(value: Any) -> bool:
    kinds = (dict, list, set, torch.Tensor)
    return isinstance(value, kinds) or type(value).__name__ == "deque" or bool(access(value)) or has_attributes(value)


def _refused(name: str, unfit: Unfit) -> TrainingError:
    return TrainingError(
        f"{name}{unfit.path} is a {unfit.kind}, which a member that joins later cannot be given; expected numbers, "
        "text, tensors, arrays, containers of them, random generators, or objects with state_dict() and "
        "load_state_dict()"
    )
