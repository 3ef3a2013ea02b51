"""Compares, around the first steps, everything that the cell can reach: what changed is carried, or refused by name.

Between two steps the cell may change what it likes. What `loop_variables` carries is left alone here, and so is what
only shows or records (`readings.SHOWS`), what comes from a clock, and what flows nowhere (`reads`). Anything else is
copied from now on by its path (`carried_paths`), or refused with its line before the second step. What a loss function
changes is a matter of `reproducible`.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
import time
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path as File
from typing import Any

import torch

from ...core.errors import TrainingError
from ..comm.state_codec import is_array
from . import readings
from .carried import Carried
from .carried_paths import resolved, short
from .cell_analysis import CHANGERS, LOOPS, READERS
from .copies import PLAIN, access
from .frames import callers
from .heap import SETTINGS, Heap, Noted, Path, Walk
from .reads import Flow, Reads, base_of, last_name, stored

NO_LINE = "the loop"
TURNS = 3  # turns of the loop that are watched
SMALL = 1000  # numbers in what is carried before it has changed
LONGEST_S = 0.05  # of a walk; after a longer one, only the next boundary is looked at
CUT = (
    "the cell reaches more objects than are compared in its first steps, so a change that a member which joins later "
    "does not get may go unnoticed; register what the loop changes, session.register(...)"
)
REFUSED = (
    "{place}: {name} changes from step to step, and a member that joins later cannot be given it, because {why}. "
    "Compute it from step.number, keep its values in session.state, or register an object with state_dict() and "
    "load_state_dict(), session.register({ident}=...)"
)
INSIDE = (
    "{place}: the loss function changes {name}, so it depends on which micro-batches a member computes. A loss "
    "function may depend only on its batch, the model and the seeded generators of torch, random and numpy: change "
    "{ident} in the loop, after step.run(), or return what it needs"
)
CACHED = (
    "{place}: {name}() keeps results (functools.lru_cache) that depend on {names}, which changes, so a member that "
    "joins later would compute others. Pass {names} as an argument, or leave the cache out"
)
SETTING = (
    "{place}: {name} changes a setting of the process in the loop, which a member that joins later does not have: call "
    "it before the loop"
)
KEPT = "it keeps results (functools.lru_cache), and one of them has changed"
POSITION = "it is a {kind}, whose position cannot be copied"
HIDDEN = "it is a {kind}, whose content cannot be seen"
FOREIGN = "it holds {why}, which cannot be copied"


class Comparison:
    """The comparison of one session. ``members_join``: whether there may be members that join later."""

    def __init__(
        self,
        heap: Heap,
        sources: Mapping[str, Any],
        carried: Carried,
        members_join: bool,
        warn: Callable[[str], None],
    ) -> None:
        self._heap = heap
        self._sources = sources
        self._carried = carried
        self._left = TURNS if members_join else 0
        self._active = members_join
        self._warn = warn
        self._before: Walk | None = None
        self._after: Walk | None = None
        self._slow = False
        self._program: Program | None = None

    def between(self) -> None:
        """The cell is between two steps. Raises TrainingError for what can neither be carried nor be left alone."""
        if not self._active or self._carried.first_step:
            return
        now = self.look()
        if self._after is not None:
            if self._left == TURNS:
                self._carry_early(now)
            self._judge(self._after, now)
            self._left -= 1
        self._before, self._after = now, None
        self._active = self._left > 0

    def begins(self) -> None:
        """The cell begins a step: it may have changed something since it was between two. Raises TrainingError."""
        if self._active and self._before is not None and not self._slow:
            now = self.look()
            self._judge(self._before, now)
            self._before = now

    def ends(self) -> None:
        """The step is done. What it has changed of the optimizer and the scheduler belongs to the run, too."""
        if not self._active or self._before is None:
            return
        now = self.look()
        inside = self._before.changed(now)
        kept = {path: noted for path, noted in inside.items() if noted.kind == "cache" or self._is_settings(path)}
        self._judge_each(kept, self._before, now)
        self._before, self._after = None, now

    def look(self) -> Walk:
        """Everything now."""
        began_s = time.perf_counter()
        walk = self._heap.walk()
        self._slow = self._slow or time.perf_counter() - began_s > LONGEST_S
        if walk.cut and self._before is None and self._left == TURNS:
            self._warn(CUT)
        return walk

    @property
    def own(self) -> frozenset[int]:
        """Ids of what the session carries."""
        return self._heap.own

    @property
    def data(self) -> Any:
        """The session's data."""
        return self._sources["data"]

    def matters(self, name: str) -> bool:
        """Whether what a variable holds flows into the training or into what is printed at the end."""
        return Program(Walk()).reads.flow(name) is not Flow.NOWHERE

    def named(self, name: str) -> str:
        """A name of `reached` with the line that changes it, if one does."""
        program = Program(Walk())
        place = program.place(re.split(r"[.\[]", name)[-1])
        return name if " " in name or place == NO_LINE else f"{name} ({place})"

    def names(self, before: Walk, after: Walk) -> list[str]:
        """What has changed between two walks, in words, with its lines."""
        program = Program(after)
        changed = (self._before or before).changed(after)
        matter = {p: noted for p, noted in changed.items() if program.flow(p, noted) is not Flow.NOWHERE}
        found = [f"{_label(path, noted)} ({program.place(noted.name)})" for path, noted in matter.items()]
        return list(dict.fromkeys(found))

    def counted(self, before: Walk, after: Walk) -> list[str]:
        """Sentences about what executing the same micro-batch once more has changed, and the program reads."""
        if not self._active:
            return []
        program, found = Program(after), []
        for path, noted in before.changed(after).items():
            matters = program.flow(path, noted) is not Flow.NOWHERE and noted.kind not in ("cache", "setting")
            if matters and not self._is_settings(path):
                place = program.place(noted.name)
                found.append(INSIDE.format(place=place, name=_label(path, noted), ident=noted.name))
        return found

    def _is_settings(self, path: Path) -> bool:
        """Whether a path begins with the session's optimizer or scheduler."""
        try:
            root = resolved(path[:1], self._sources)
        except LookupError:
            return False
        return any(root is self._sources.get(name) for name in ("optimizer", "scheduler")) and root is not None

    def _judge(self, before: Walk, now: Walk) -> None:
        self._judge_each(before.changed(now), before, now)

    def _carry_early(self, now: Walk) -> None:
        """Carry small parts of objects that the loop may change later, by the source, though it has not changed yet."""
        program = Program(now)
        covered = set(self._carried.traced().notes)
        for path, noted in now.found.items():
            (kind, place), early = path[0], False
            if kind in ("global", "frame") and noted.kind in ("value", "shape"):
                early = self._may_change(path, noted, now) or (len(path) == 1 and program.sets(*place))
            if early and not _is_covered(noted, covered) and program.flow(path, noted) is not Flow.NOWHERE:
                self._carried.paths.add(path, SMALL)

    def _may_change(self, path: Path, noted: Noted, now: Walk) -> bool:
        """Whether a path leads into an object of a library that the loop may change, by any of its names."""
        if not noted.at:
            return False
        try:
            others = now.aliases.get(id(resolved(path[: noted.at], self._sources)), set())
        except LookupError:
            return False
        return not self._carried.variables.changed.isdisjoint({path[0][1][1], *others})

    def _judge_each(self, changed: Mapping[Path, Noted], before: Walk, now: Walk) -> None:
        opaque = {path: noted for path, noted in now.found.items() if noted.kind == "opaque"}
        if not changed and not opaque:
            return
        tracer = self._carried.traced()
        covered = set(tracer.notes)
        program: Program | None = None
        for path, noted in changed.items():
            if _is_covered(noted, covered):
                continue
            program = program or Program(now)
            if program.flow(path, noted) is not Flow.NOWHERE:
                self._carry(path, noted, program, before.found.get(path))
        for path, noted in opaque.items():
            if noted.name in self._carried.variables.changed and noted.whole not in covered:
                program = program or Program(now)
                if program.flow(path, noted) is not Flow.NOWHERE:
                    self._refuse(path, noted, program, HIDDEN.format(kind=noted.content))

    def _carry(self, path: Path, noted: Noted, program: Program, before: Noted | None) -> None:
        if noted.kind == "cache":
            self._look_at_cache(path, noted, program, before)
        elif noted.kind == "iterator":
            kind = type(resolved(path, self._sources)).__name__
            self._refuse(path, noted, program, POSITION.format(kind=kind))
        elif noted.kind == "setting":
            raise TrainingError(SETTING.format(place=program.place(noted.name), name=f"{noted.name}()"))
        elif noted.at and (hidden := _hidden(resolved(path[: noted.at], self._sources))):
            self._refuse(path, noted, program, HIDDEN.format(kind=hidden))
        elif why := self._carried.paths.add(path):
            self._refuse(path, noted, program, FOREIGN.format(why=why))

    def _look_at_cache(self, path: Path, noted: Noted, program: Program, before: Noted | None) -> None:
        """A cache may keep what depends on its arguments alone."""
        if before is not None and _misses(before) == _misses(noted):
            self._refuse(path, noted, program, KEPT)
        function = resolved(path, self._sources).__wrapped__
        if names := _changing(function, self._carried.variables.changed):
            place = program.place(noted.name)
            raise TrainingError(CACHED.format(place=place, name=short(path), names=names[0]))

    def _refuse(self, path: Path, noted: Noted, program: Program, why: str) -> None:
        place = program.place(noted.name)
        raise TrainingError(REFUSED.format(place=place, name=_label(path, noted), why=why, ident=noted.name))


def _is_covered(noted: Noted, covered: Collection[Any]) -> bool:
    return noted.holder in covered or noted.whole in covered or (noted.holder, noted.key) in covered


def _label(path: Path, noted: Noted) -> str:
    name = short(path)
    return name if noted.name in name else f"{name} ({noted.name})"


def _misses(noted: Noted) -> Any:
    return noted.content[0] if isinstance(noted.content, tuple) else None


def _hidden(value: Any) -> str:
    """The class of a part of an object whose content cannot be seen, or ""."""
    for inner in [] if isinstance(value, type) else list(getattr(value, "__dict__", {}).values()):
        known = isinstance(inner, (*PLAIN, torch.Tensor, types.ModuleType, type)) or callable(inner)
        if not (known or hasattr(inner, "__dict__") or hasattr(type(inner), "__len__") or readings.shows(inner)):
            if not access(inner) and not is_array(inner) and not hasattr(type(inner), "__slots__"):
                return type(inner).__name__
    return ""


def _changing(function: Any, changed: frozenset[str]) -> list[str]:
    """Names that a function reads and that change in the run."""
    code = function.__code__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=False)
    values = {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
    for name, cell in cells:
        values[name] = cell.cell_contents
    kinds = (torch.nn.Module, torch.optim.Optimizer)
    return [name for name, value in values.items() if name in changed or isinstance(value, kinds)]


class Program:
    """The source of the person's own files, for one judgement."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._files: dict[str, ast.Module] = {}
        self._cell = ""
        self._scopes: list[tuple[str, int]] = []  # functions that run: their files and first lines
        for frame in callers():
            self._cell = self._cell or frame.f_code.co_filename
            if frame.f_locals is not frame.f_globals:
                self._scopes.append((frame.f_code.co_filename, frame.f_code.co_firstlineno))
            self._add(frame.f_code.co_filename)
        for module in {path[0][1][0] for path in walk.found if path[0][0] == "global"}:
            self._add(getattr(sys.modules.get(module), "__file__", None) or "")
        self.reads = Reads(self._files.values(), _is_plain)
        self._clocks = self.reads.clocks()

    def _add(self, file: str) -> None:
        if not file or file in self._files:
            return
        try:
            self._files[file] = ast.parse("".join(linecache.getlines(file)))
        except (SyntaxError, ValueError):
            return

    def flow(self, path: Path, noted: Noted) -> Flow:
        """Where the value at a path flows."""
        if self._clocks.intersection((noted.name, str(noted.key))) or (noted.at and _is_moment(noted.content)):
            return Flow.NOWHERE
        if path[0][0] in ("environ", "setting") or noted.name in self._walk.touching:
            return Flow.TRAINING
        if path[-1][0] == "attr" and noted.at and _holder_kind(path, noted):
            return Flow.TRAINING
        return self.reads.flow(noted.name)

    def sets(self, module: str, name: str) -> bool:
        """Whether a function of another file of the person's own binds a variable of its module."""
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        if file == self._cell or file not in self._files:
            return False
        return any(isinstance(n, ast.Global) and name in n.names for n in ast.walk(self._files[file]))

    def place(self, name: str) -> str:
        """The line that changes what has this name, in words."""
        found = sorted(self._touching(name), key=lambda spot: spot[:2])
        if not found:
            return NO_LINE
        _, _, file, line = found[0]
        return f"line {line}" if file == self._cell else f"line {line} of {File(file).name}"

    def _is_near(self, node: ast.AST, file: str) -> bool:
        """Whether a scope runs now."""
        first = min((d.lineno for d in getattr(node, "decorator_list", ())), default=getattr(node, "lineno", 0))
        return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (file, first) in self._scopes

    def _touching(self, name: str) -> Iterator[tuple[int, int, str, int]]:
        """How well a line explains a change of the name, how far away its scope is, the file, and the line."""
        for depth, (file, tree) in enumerate(self._files.items()):
            busy = {id(n) for part in ast.walk(tree) if _runs_often(part) for n in ast.walk(part)}
            near = {id(n) for part in ast.walk(tree) if self._is_near(part, file) for n in ast.walk(part)}
            busy -= {id(n) for part in ast.walk(tree) if _runs_once(part) for n in ast.walk(part)}
            for node in ast.walk(tree):
                line, often = getattr(node, "lineno", 0), id(node) in busy
                away = depth + (id(node) not in near)
                if line and (how := _changes(node, name)):
                    yield (how - 1 if often else how + 2), away, file, line
                elif isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
                    yield (2 if often else 5), away, file, line


def _runs_often(node: ast.AST) -> bool:
    return isinstance(node, (*LOOPS, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))


def _runs_once(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__init__"


def _changes(node: ast.AST, name: str) -> int:
    """1 where a statement or a call changes what has this name, 2 where it begins it anew, 0 otherwise."""
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
        targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else [node.target]
        if any(name in stored(t) or (isinstance(t, ast.Attribute) and base_of(t) == name) for t in targets):
            fresh = isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Constant)
            return 2 if fresh else 1
        return int(any(isinstance(t, ast.Subscript) and _is_text(t.slice, name) for t in targets))
    if not isinstance(node, ast.Call):
        return 0
    function = last_name(node.func)
    if function == name and name in SETTINGS:
        return 1
    if function in CHANGERS and any(name in stored(argument) for argument in node.args):
        return 1
    method = isinstance(node.func, ast.Attribute) and base_of(node.func) == name
    return int(method and function not in READERS)


def _is_text(node: ast.AST, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def _is_plain(name: str) -> bool:
    for frame in callers():
        for names in (frame.f_locals, frame.f_globals):
            if name in names:
                return isinstance(names[name], PLAIN)
    return False


def _is_moment(content: Any) -> bool:
    """Whether a number is what a clock shows now."""
    if not (isinstance(content, tuple) and content[:1] == ("float",)):
        return False
    return any(0 <= clock() - content[1] < 600 for clock in (time.time, time.perf_counter, time.monotonic))


def _holder_kind(path: Path, noted: Noted) -> bool:
    """Whether a path leads to an attribute of a class of a library."""
    return noted.at == len(path) - 1 and isinstance(noted.key, str) and noted.key == noted.name
