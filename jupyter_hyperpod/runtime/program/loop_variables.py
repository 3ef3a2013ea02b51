"""The variables of the cell's own loops that go from step to step: reads them for other members, and sets them.

Which ones these are is read from the source, see `cell_analysis`; so every member finds the same ones. Loops around
the call that requests the steps count, too: a loop over epochs that calls a function, or a generator's consumer.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch

from ...core.errors import TrainingError
from ..comm.state_codec import PATHS
from ..session.optimizer_state import access, is_generator
from . import functions
from .analysis.cell_analysis import Carrying, carrying
from .carried_paths import Tracer
from .copies.copier import Copier
from .copies.forms import FRESH, OBJECT, SKIPPED, Copy
from .frames import Cells, Locals, callers, cells_of, opens_block, running
from .origins import Origins, is_followed
from .reached import digest
from .value_kinds import PLAIN, SMALL, Unfit, has_attributes, held_by, size

STEPPED = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
ALIAS = "\0alias"  # the key of a copy that stands for the object of another variable
POSITION = (
    "line {line}: {name} is a {kind}, whose position a member that joins later cannot be given. Give the data to "
    "hp.Session, or compute what the step needs from step.number"
)
UNKNOWN = (
    "line {line} binds or changes {name}, a {kind}, which a member that joins later cannot be given. Keep what the run "
    "needs as numbers, text, tensors or containers, or give the class state_dict() and load_state_dict()"
)
BESIDE = (
    "line {line}: {name} depends on how often this process has gone round its loop, and a member that joins later "
    "begins anew. Use step.number (from 1) or step.index (from 0) for the count, and give the data to hp.Session"
)
OTHER = (
    "line {line}: {name} is another {kind} now, and the session goes on with the one that it was given: change the "
    "settings of that one, such as optimizer.param_groups[0]['lr'], or begin another hp.Session for the steps after it"
)
REBOUND = (
    "line {line} changes {name}, an object that a member that joined later cannot be given, because it has a {kind} "
    "there. Make the object before the loop and change it in the loop, or keep its values: session.state.{name} = ..."
)


@dataclass(frozen=True)
class Place:
    """Loops in one function, or in the module: the code that they are part of, and what they carry."""

    code: CodeType
    found: Carrying


@dataclass(frozen=True)
class Variable:
    """One variable: its key, which is the same on all members, its name and line, and the namespace that it is in."""

    key: str
    name: str
    line: int
    names: MutableMapping[str, Any]

    @property
    def holder(self) -> int:
        """The id of what holds the variable: a frame, the names of a module, or a cell of a closure."""
        return self.names.holder(self.name) if isinstance(self.names, (Locals, Cells)) else id(self.names)


class LoopVariables:
    """The variables of one session's loops.

    ``own`` are the ids of what the session carries in other ways, ``pulled`` names whose values the notebook gets.
    """

    def __init__(
        self,
        own: frozenset[int],
        model: torch.nn.Module | None = None,
        origins: Origins | None = None,
        pulled: Iterable[str] = (),
    ) -> None:
        self._own = own
        self._pulled = frozenset(pulled)
        self._origins = origins or Origins()
        self._made = set[tuple[str, type]]()  # variables, and the kinds of new objects in them that can be made
        self._first: dict[str, bool] = {}  # by variable: whether it held an object that every member has
        self._model = model
        self._given = set[str]()  # variables that held an optimizer or a scheduler of the session
        self._functions: dict[str, Any] = {}  # by variable: the functions that it held first
        self._kinds: dict[str, set[str]] = {}  # by variable: classes of which a newcomer has an object or can make one
        frames = callers()  # a session that a with statement opens ends in the same turn of the loops around that
        self._born = {f.f_code: f.f_lineno for f in frames} if frames and opens_block(frames[0]) else {}
        self._places: list[Place] = []
        self._known: dict[tuple[CodeType, int], Place] = {}
        self._stack: list[tuple[int, Carrying, FrameType]] | None = None  # `_frames`, while all is copied
        self._members_join = False
        self.positions_travel = False  # what enumerate counts is that of the run, also on a newcomer
        self._versions: dict[str, int] = {}  # of modules that the loops use, when they began
        self.reads_gradients = False
        self.attributes: frozenset[str] = frozenset()  # that the files of the loops set outside constructors

    def find(self, members_join: bool) -> None:
        """The cell requests steps: find the loops around the call, and what they carry.

        Where ``members_join`` later, as in a job, raises TrainingError for a loop that counts its own turns, or that
        iterates over something beside the steps.
        """
        self._members_join = members_join
        self._places = []
        for frame in callers():
            key = frame.f_code, frame.f_lineno
            if key not in self._known:
                source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
                since = min((line for code, line in self._known if code is frame.f_code), default=None)
                born = self._born.get(frame.f_code, 0)
                self._known[key] = Place(frame.f_code, carrying(source, frame.f_lineno, since, born, self._pulled))
            self._places.append(self._known[key])
        self.attributes = frozenset[str]().union(*(place.found.attributes for place in self._places))
        self.reads_gradients = members_join and any(place.found.reads_gradients for place in self._places)
        for variable in self._used(always=True):
            self._versions.setdefault(variable.key, _versions(variable.names[variable.name]))
        for place in self._places if members_join and not self.positions_travel else ():
            for name, line in place.found.positions.items():
                raise TrainingError(BESIDE.format(line=line, name=name))

    def copied(self, before: Mapping[str, Copy]) -> dict[str, Copy]:
        """Copies of all that can travel. Where members join, raises TrainingError for what cannot and may matter."""
        self._stack = list(self._frames())
        try:
            return self._copied(before)
        finally:
            self._stack = None

    def _copied(self, before: Mapping[str, Copy]) -> dict[str, Copy]:
        copies: dict[str, Copy] = {}
        if self._members_join:
            self._refuse_other()
        known: dict[int, str] = {}  # ids of objects -> the first key that holds them
        for variable in self._each():
            if variable.name not in variable.names:
                continue
            value = variable.names[variable.name]
            if (same := known.setdefault(id(value), variable.key)) != variable.key and not isinstance(value, PLAIN):
                copies[variable.key] = {ALIAS: same}
                continue
            copy = self._function(variable, value)
            if copy is SKIPPED:
                copy = self._object(variable, value, before.get(variable.key))
            if copy is not SKIPPED:
                copies[variable.key] = copy
        return copies

    def _object(self, variable: Variable, value: Any, before: Copy) -> Copy:
        """A copy of a value; of an object that every member has, with what names it, and of a new one, the whole."""
        earlier = before if isinstance(before, dict) else {}
        known = is_followed(value) and self._origins.key_of(value) is not None
        first = self._first.setdefault(variable.key, known)
        is_new = not known and is_followed(value) and (first or _is_small_object(value))
        if is_new and (copy := self._new(variable, value, earlier.get(FRESH))) is not SKIPPED:
            return {FRESH: copy}
        copy = self._copy(variable, value, before)
        self._refuse_object(variable, value, copy)
        return copy

    def _new(self, variable: Variable, value: Any, before: Copy) -> Copy:
        """A copy of a whole object that the loop has made, which a newcomer can make, too; else SKIPPED."""
        kind = variable.key, type(value)
        with suppress(Unfit):
            copy = self._maker.copied(value, before)
            if copy is not SKIPPED:
                if kind not in self._made:
                    self._maker.fresh(copy)
                    self._made.add(kind)
                return copy
        return SKIPPED

    def put_back(self, copies: Mapping[str, Copy]) -> None:
        """Set the variables to what the copies hold."""
        found: dict[str, Any] = {}
        for variable in self._each(always=True):
            copy, name, names = copies.get(variable.key, SKIPPED), variable.name, variable.names
            if copy is SKIPPED:
                continue
            if isinstance(copy, dict) and ALIAS in copy:
                names[name] = found.get(copy[ALIAS], names.get(name))
                continue
            if isinstance(copy, dict) and functions.FUNCTION in copy:
                self._put_function(variable, copy)
                continue
            try:
                names[name] = found[variable.key] = self._taken(names.get(name), copy)
            except Unfit as unfit:
                if name not in names:
                    continue  # such as the variable of a for loop: reading it before it is bound is a NameError
                sentence = REBOUND.format(line=variable.line, name=name + unfit.path, kind=unfit.kind)
                raise TrainingError(sentence) from unfit

    def _taken(self, target: Any, copy: Copy) -> Any:
        """The value that holds a copy. Raises Unfit."""
        if isinstance(copy, dict) and FRESH in copy:
            return self._maker.fresh(copy[FRESH])
        return self._copier.merged(target, copy)

    @property
    def changed(self) -> frozenset[str]:
        """Names of variables and attributes that the loops may change, by the source."""
        found = (place.found for place in self._known.values())
        return self.attributes.union(*({*one.local, *one.module, *one.nonlocal_names} for one in found))

    def binds_anew(self, root: tuple[str, Any]) -> bool:
        """Whether each turn of a loop binds this variable before it reads it, or it holds a time."""
        found, name = [place.found for place in self._known.values()], _name(root)
        carried = any(name in one.local or name in one.module or name in one.nonlocal_names for one in found)
        return (self.binds(root) and not carried) or any(name in one.clocks for one in found)

    def binds(self, root: tuple[str, Any]) -> bool:
        """Whether a loop binds this variable, so that it may hold another object than before."""
        return any(_name(root) in place.found.bound for place in self._known.values())

    def trace(self, tracer: Tracer, bound: bool = True) -> None:
        """Note what is copied; unless ``bound``, without variables that the loops bind: these may stand for others."""
        names = set[str]() if bound else set[str]().union(*(place.found.bound for place in self._known.values()))
        for variable in self._each():
            if variable.name in names:
                continue
            value = variable.names.get(variable.name)
            with suppress(Unfit):
                if tracer.copied(value) is not SKIPPED:
                    tracer.notes.append((variable.holder, variable.name))

    def line_of(self, error: NameError) -> tuple[str, int] | None:
        """The name that is missing and the line that binds it, if one does."""
        name = error.name or next(iter(re.findall(r"variable '(\w+)'", str(error))), "")
        return next(((name, place.found.named[name]) for place in self._places if name in place.found.named), None)

    def digests(self, left_out: Collection[tuple[str, str]] = ()) -> dict[str, str]:
        """A digest for each variable that should be the same on all members, with its name and line.

        ``left_out``: attributes of variables that members may have otherwise.
        """
        clocks = frozenset[str]().union(*(place.found.clocks for place in self._places))
        found, contents = {}, Copier(self._own, self.attributes, self._model, kinds=True)
        for variable in self._each():
            name, value = variable.name, variable.names.get(variable.name)
            apart = {attribute for owner, attribute in left_out if owner == name}
            if name not in clocks and value is not None and (text := digest(value, contents, apart)) is not None:
                found[f"{name} (line {variable.line})"] = text
        return found

    def _copy(self, variable: Variable, value: Any, before: Copy) -> Copy:
        try:
            return self._copier.copied(value, before)
        except Unfit as unfit:
            stored = any(variable.name in place.found.stored for place in self._places)
            if self._members_join and (unfit.is_iterator or (stored and not unfit.is_harmless)):
                sentence = POSITION if unfit.is_iterator else UNKNOWN
                name = variable.name + unfit.path
                raise TrainingError(sentence.format(line=variable.line, name=name, kind=unfit.kind)) from unfit
            return SKIPPED

    def _function(self, variable: Variable, value: Any) -> Copy:
        """What names the function that the loop gave the variable. Raises TrainingError where nothing names it."""
        now = functions.held(value)
        if self._functions.setdefault(variable.key, now) == now:
            return SKIPPED
        if now is None and not isinstance(value, (dict, list, tuple)):
            return SKIPPED  # such as None, which is copied as any value
        named = functions.reference(value, variable.name, self._spaces())
        if named is None and self._members_join:
            raise TrainingError(functions.SWAPPED.format(line=variable.line, name=variable.name))
        return SKIPPED if named is None else {functions.FUNCTION: named}

    def _put_function(self, variable: Variable, copy: Copy) -> None:
        self._functions.setdefault(variable.key, functions.held(variable.names.get(variable.name)))
        try:
            variable.names[variable.name] = functions.found(copy[functions.FUNCTION], self._spaces())
        except LookupError:
            raise TrainingError(functions.SWAPPED.format(line=variable.line, name=variable.name)) from None

    def _spaces(self) -> list[Mapping[str, Any]]:
        return [names for _, _, frame in self._frames() for names in (frame.f_locals, frame.f_globals)]

    def _refuse_other(self) -> None:
        """Raise TrainingError where the loop has replaced the session's optimizer or scheduler by another one."""
        for _, found, frame in self._frames():
            held = frame.f_locals
            for name, line in found.bound.items():
                value = held.get(name, frame.f_globals.get(name))
                if isinstance(value, STEPPED):
                    if id(value) in self._own:
                        self._given.add(name)
                    elif name in self._given:
                        raise TrainingError(OTHER.format(line=line, name=name, kind=type(value).__name__))

    def _refuse_object(self, variable: Variable, value: Any, copy: Copy) -> None:
        """Raise TrainingError where the variable holds an object that a member which joins later cannot make."""
        kinds = self._kinds.setdefault(variable.key, {type(value).__qualname__})
        if type(value).__qualname__ in kinds or not (isinstance(copy, dict) and OBJECT in copy):
            return
        try:
            self._copier.made(copy, None)
        except Unfit:
            if self._members_join:
                sentence = REBOUND.format(line=variable.line, name=variable.name, kind=min(kinds))
                raise TrainingError(sentence) from None
        kinds.add(type(value).__qualname__)

    @property
    def _copier(self) -> Copier:
        return Copier(self._own, self.attributes, self._model, kinds=True, known=self._origins, contents=True)

    @property
    def _maker(self) -> Copier:
        return Copier(self._own, None, self._model, kinds=True, known=self._origins)

    def _each(self, always: bool = False) -> Iterator[Variable]:
        """All variables; modules that the loops only use where they have changed, or ``always``."""
        seen = set[str]()
        for variable in (*self._of_loops(), *self._used(always)):
            if variable.key not in seen and not self._stays(variable):
                seen.add(variable.key)
                yield variable

    def _stays(self, variable: Variable) -> bool:
        """Whether a variable holds a path that no loop binds: what its methods change is a file."""
        bound = (variable.name in place.found.bound for place in self._places)
        return type(variable.names.get(variable.name)) in PATHS and not any(bound)

    def _of_loops(self) -> Iterator[Variable]:
        for depth, found, frame in self._frames():
            for name, line in found.local.items():
                yield Variable(f"{depth} local {name}", name, line, Locals(frame))
            for name, line in found.module.items():
                if name not in found.nonlocal_names:
                    yield Variable(f"{depth} module {name}", name, line, self._namespace(name, frame))
            for function in cells_of(frame, found.nonlocal_names):
                for name in sorted(found.nonlocal_names & set(function.__code__.co_freevars)):
                    line = function.__code__.co_firstlineno
                    yield Variable(f"{depth} {function.__qualname__} {name}", name, line, Cells(function))

    def _used(self, always: bool) -> Iterator[Variable]:
        """Modules that the loops use: calls may change them. Generators of random numbers change with each use."""
        for depth, found, frame in self._frames():
            held = frame.f_locals  # reading it copies all variables of a function
            for name in found.used:
                value = held[name] if name in held else frame.f_globals.get(name)
                if id(value) in self._own:
                    continue
                key = f"{depth} used {name}"
                changed = isinstance(value, torch.nn.Module) and (always or _versions(value) != self._versions.get(key))
                if changed or is_generator(value):
                    names = Locals(frame) if name in held else frame.f_globals
                    yield Variable(key, name, found.bound.get(name, 0), names)

    def _namespace(self, name: str, frame: FrameType) -> MutableMapping[str, Any]:
        """Where a name is that the loop's own function does not bind: the module, or a function around it."""
        if name in frame.f_globals:
            return frame.f_globals
        return next((Locals(other) for _, _, other in self._frames() if name in other.f_locals), frame.f_globals)

    def _frames(self) -> Iterator[tuple[int, Carrying, FrameType]]:
        """The frames of the loops with their depth, and what these loops and earlier ones of the same frame carry."""
        if self._stack is not None:
            yield from self._stack
            return
        frames = running()
        for depth, present in enumerate(self._places):
            if (frame := frames.get(id(present.code))) is not None:
                for place in self._known.values():
                    if place.code is present.code:
                        yield depth, place.found, frame


def _is_small_object(value: Any) -> bool:
    """Whether `value` is an object of the program's own class, all of whose attributes may be copied in each step."""
    return has_attributes(value) and access(value) is None and size(held_by(value)) <= SMALL


def _name(root: tuple[str, Any]) -> str:
    """The name of the variable with which a path of `heap` begins, "" for another root."""
    return str(root[1][1]) if root[0] in ("global", "frame") else ""


def _versions(value: Any) -> int:
    """A number that grows with each change of a module's parameters and buffers that torch counts."""
    if not isinstance(value, torch.nn.Module):
        return 0
    return sum(tensor._version for tensor in (*value.parameters(), *value.buffers()))
