"""The source of the person's own files, at one moment: where values flow, and which line changes what has a name."""

from __future__ import annotations

import ast
import linecache
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from operator import itemgetter
from pathlib import Path as File
from typing import Any

from ...process_settings import SETTINGS
from ..frames import callers, is_ours
from ..own_files import are_apart
from ..walk import Noted, Path, Walk
from . import chance, data_sets, private_files
from .cell_analysis import CHANGERS, LOOPS, READERS, changed_in_place
from .parsing import parsed
from .read_index import base_of, clocks_of, stored
from .reads import Flow, Reads
from .scopes import AT, base, scoped
from .syntax import FUNCTIONS, last_name, nodes_of
from .variables_now import is_bar, is_foreign, is_ordered_by_address, is_own_function, is_plain

NO_LINE = "the loop"
# What clocks showed in the beginning: no reading is smaller. Where a machine has just been started, many numbers are.
_BEGAN_S = {clock: clock() for clock in (time.time, time.perf_counter, time.monotonic)}
CHANCE = (
    "{place}: {name} takes its seed from a clock or from the process, so no two members have the same one: give it a "
    "fixed seed, or leave it out, because hp.Session(seed=...) seeds torch, random and numpy for every micro-batch"
)
HOOK = (
    "{place}: {name} adds a hook in the training loop, which a member that joins later does not have: add it before "
    "the loop, or remove it in the same turn"
)
SWITCH = (
    "{place}: {name} becomes another function in the training loop, and a member that joins later would go on with the "
    "first one: choose it in every turn, with if and else, from step.number or from what session.state holds"
)
FILE = (
    "{place}: {name} is a file that the training writes and reads again, and a member that joins later would read "
    "something else: keep its content in a variable of the loop or in session.state"
)
PRIVATE = (
    "{place}: {name} lies in a temporary folder, where the training writes and reads again, and a member that joins "
    "later has a folder of its own without that: keep it in a variable, such as "
    "best = copy.deepcopy(model.state_dict()), or in session.state"
)
ADDRESS = (
    "{place}: the keys of {name} are addresses, id(...), and a member that joins later has its objects at others: use "
    "names as keys, for name, parameter in model.named_parameters()"
)
UNORDERED = (
    "{place}: {name} is a set of objects, which have the order of their addresses, and a member that joins later has "
    "them at others: write a list, or list(dict.fromkeys(...))"
)
BUILT = (
    "{place}: the order of {name}, a set that the loop changes, depends on all that was ever in it, and a member that "
    "joins later has another one: write sorted({name}), or keep a list or the keys of a dictionary"
)
COUNTED = (
    "{place}: {name}() tells what this process has computed, and a member that joins later has computed other things: "
    "let nothing depend on it that the training needs"
)
COUNT = "{place}: {name} counts what this process has shown, and a member that joins later begins anew: use step.number"


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
        self.reads = Reads(self._files.values(), is_plain, is_foreign, is_own_function)
        self._clocks = clocks_of(tuple(self._files.values()))

    def _add(self, file: str) -> None:
        if not file or file in self._files or is_ours(file):
            return
        try:
            self._files[file] = parsed("".join(linecache.getlines(file)))
        except (SyntaxError, ValueError):
            return

    def flow(self, path: Path, noted: Noted) -> Flow:
        """Where the value at a path flows."""
        if self._clocks.intersection((noted.name, str(noted.key))) or (noted.at and _is_moment(noted.content)):
            return Flow.NOWHERE
        if noted.kind == "function":
            return Flow.TRAINING if len(path) > 1 or self._is_declared_global(noted.name) else Flow.NOWHERE
        if path[0][0] == "environ" or noted.kind == "setting" or noted.name in self._walk.touching:
            return Flow.TRAINING
        if path[-1][0] == "attr" and noted.at and _holder_kind(path, noted):
            return Flow.TRAINING
        found = self.reads.flow(self._named(path, noted.name))
        if found is Flow.NOWHERE and path[-1][0] == "attr" and not noted.at:
            names = self._holders(path, noted)
            asking = data_sets.ASKING if data_sets.alone_have(tuple(self._files.values()), noted.name) else frozenset()
            called = sorted(one for name in names for one in self.reads.named(name))
            found = max((self.reads.flow_of_attributes(name, asking) for name in called), default=found)
        return found

    def _named(self, path: Path, name: str) -> set[str]:
        """What the variable or the attribute that has this name on a path is called in its scope."""
        kind, place = path[0]
        if kind in ("global", "frame") and place[1] == name and all(step[0] == "item" for step in path[1:]):
            return self.reads.named(name, place[0]) if kind == "frame" else {name}
        return {name} if path[-1][0] == "attr" and path[-1][1] == name else self.reads.named(name)

    def _holders(self, path: Path, noted: Noted) -> set[str]:
        """The names of the object that has this attribute."""
        holder = path[-2][1][1] if len(path) == 2 and path[0][0] in ("global", "frame") else path[-2][1]
        return {str(holder), *self._walk.aliases.get(noted.holder, ())}

    def mentions(self, text: str) -> bool:
        """Whether the program has this text as a constant, such as the name of an environment variable."""
        return bool(self.constants(text))

    def constants(self, text: str) -> list[ast.AST]:
        """Where the program has this text as a constant."""
        nodes = (node for tree in self._files.values() for node in nodes_of(scoped(tree)))
        return [node for node in nodes if _is_text(node, text)]

    def place_of(self, node: ast.AST) -> str:
        """The line of a node that `reads` or `constants` has given, in words."""
        return next((self.at(file, getattr(one, "lineno", 0)) for file, one in self._spots({id(node)})), NO_LINE)

    def _is_declared_global(self, name: str) -> bool:
        nodes = (node for tree in self._files.values() for node in nodes_of(tree))
        return any(isinstance(node, ast.Global) and name in node.names for node in nodes)

    def sets(self, module: str, name: str) -> bool:
        """Whether a function of another file of the person's own binds a variable of its module."""
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        if file == self._cell or file not in self._files:
            return False
        return any(isinstance(n, ast.Global) and name in n.names for n in nodes_of(self._files[file]))

    def place(self, *names: str) -> str:
        """The line that changes what has one of these names, in words: the first of them that a line changes."""
        for name in names:
            if found := sorted(self._touching(name), key=lambda spot: spot[:2]):
                _, _, file, line = found[0]
                return self.at(file, line)
        return NO_LINE

    def read_by_loop(self, path: Path, noted: Noted) -> tuple[str, Flow]:
        """The line, in words, where code reads this that calls the steps, not what the steps call, and where the value
        flows from there; "" for none."""
        nodes = [node for name in self._named(path, noted.name) for node in self.reads.loads(name)]
        if path[-1][0] == "attr":
            holders = self._holders(path, noted)
            loads = {id(n) for n in nodes if isinstance(n, ast.Attribute) and base(base_of(n)) in holders}
        else:
            loads = {id(n) for n in nodes if isinstance(n, ast.Name)}
        found = [
            (self.reads.flow_of(node, getattr(node, "id", noted.name)), self.at(file, getattr(node, "lineno", 0)))
            for file, node in self._spots(loads)
            if self._is_called_from(node, file)
        ]
        flow, place = max(found, key=itemgetter(0), default=(Flow.NOWHERE, ""))
        return place, flow

    def reader(self, path: Path, noted: Noted) -> str:
        """The first line, in words, that reads this and lets it into the training; "" where none does by its name."""
        loads = [(node, name) for name in self._named(path, noted.name) for node in self.reads.loads(name)]
        readers = {id(node) for node, name in loads if self.reads.flow_of(node, name) is Flow.TRAINING}
        return next((self.at(file, getattr(node, "lineno", 0)) for file, node in self._spots(readers)), "")

    def _spots(self, ids: Collection[int]) -> Iterator[tuple[str, ast.AST]]:
        """The files of nodes that `reads` has given, in their order, and the nodes."""
        for file, tree in self._files.items() if ids else ():
            yield from ((file, node) for node in nodes_of(scoped(tree)) if id(node) in ids)

    def _is_called_from(self, node: ast.AST, file: str) -> bool:
        function = self.reads.function_of(node)
        return file == self._cell and not self._scopes if function is None else self._is_near(function, file)

    def unseeded(self) -> list[str]:
        """Calls of the cell whose results differ from process to process, each with its line."""
        return [f"{name} ({self.at(file, line)})" for name, file, line in self._all(chance.unseeded)]

    @cached_property
    def refused(self) -> str:
        """A sentence about what a member that joins later could not repeat, by the source alone; "" for nothing."""
        rules: tuple[tuple[Callable[[ast.Module], Iterator[chance.Place]], str], ...] = (
            (lambda tree: chance.seeded_by_chance(tree, self._clocks), CHANCE),
            (chance.hooks_added, HOOK),
            (chance.files_read_back, FILE),
            (chance.switched, SWITCH),
            (lambda tree: private_files.read_back(scoped(tree), self.reads, are_apart()), PRIVATE),
        )
        for rule, sentence in rules:
            for name, file, line in self._all(rule):
                return sentence.format(place=self.at(file, line), name=base(name))
        return ""

    @cached_property
    def toggles(self) -> bool:
        """Whether functions or loops call ``eval()`` or ``train()`` of anything."""
        return any(chance.toggles(tree) for tree in self._files.values())

    @cached_property
    def changes(self) -> frozenset[str]:
        """Names whose values functions bind in an outer scope, or change in place."""
        nodes = [node for tree in self._files.values() for node in nodes_of(tree)]
        outer = {name for node in nodes if isinstance(node, ast.Nonlocal) for name in node.names}
        return frozenset(outer.union(*map(changed_in_place, nodes)))

    def keyed(self, changed: Collection[str]) -> str:
        """A sentence about a container that the loop changes and whose keys are addresses of objects, or ""."""
        for name, file, line in self._all(chance.keyed_by_address):
            if name in changed:
                return ADDRESS.format(place=self.at(file, line), name=name)
        return ""

    def counting(self) -> str:
        """A sentence about a count of this process that decides about the training, or ""."""
        bars = [n for n in self.reads.loads("n") if isinstance(n, ast.Attribute) and is_bar(base(last_name(n.value)))]
        caches = [n for n in self.reads.loads("cache_info") if isinstance(n, ast.Attribute)]
        for name, nodes, sentence in (("n", bars, COUNT), ("cache_info", caches, COUNTED)):
            for node in nodes:
                if self.reads.flow_of(node, name) is Flow.TRAINING:
                    file, _ = next(self._spots({id(node)}))
                    return sentence.format(place=self.at(file, node.lineno), name=_written(node))
        return ""

    def unordered(self) -> str:
        """A sentence about a set that the program goes through, whose order depends on addresses, or ""."""
        for file, tree in self._files.items():
            for node, line in chance.walked_through(tree):
                if isinstance(node, ast.Name) and is_ordered_by_address(node.id):
                    return UNORDERED.format(place=self.at(file, line), name=node.id)
                if isinstance(node, ast.Call) and last_name(node.func) in ("set", "frozenset"):
                    inner = {last_name(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
                    if inner & {"parameters", "modules", "children", "buffers"}:
                        return UNORDERED.format(place=self.at(file, line), name=ast.unparse(node))
        return ""

    def reordered(self, changed: Collection[str], kept: Mapping[str, Any]) -> str:
        """A sentence about a set that is changed or ``kept``, and that the program takes in its order, or ""."""
        found = (noted for noted in self._walk.found.values() if noted.kind == "shape")
        names = {n.name for n in found if isinstance(n.content, tuple) and n.content[0] == "set"}.intersection(changed)
        names |= {name for name, value in kept.items() if isinstance(value, set)}
        for file, tree in self._files.items() if names else ():
            for scope, own in ((tree, names), *((scope, {name}) for scope, name in chance.given(tree, names))):
                for node, line in chance.taken_in_order(scope):
                    holder = node.value if isinstance(node, ast.Subscript) else node
                    if last_name(holder) in own:
                        return BUILT.format(place=self.at(file, line), name=ast.unparse(node))
        return ""

    def keeps(self, name: str, trained: Callable[[str], bool]) -> str:
        """The line that keeps in a container what depends on more than its key, or ""."""
        for file, tree in self._files.items():
            if line := chance.kept(tree, name, trained):
                return self.at(file, line)
        return ""

    def _all(self, rule: Callable[[ast.Module], Iterator[chance.Place]]) -> Iterator[tuple[str, str, int]]:
        for file, tree in self._files.items():
            yield from ((name, file, line) for name, line in rule(tree))

    def at(self, file: str, line: int) -> str:
        """A place in words."""
        return f"line {line}" if file == self._cell else f"line {line} of {File(file).name}"

    def _is_near(self, node: ast.AST, file: str) -> bool:
        """Whether a scope runs now."""
        first = min((d.lineno for d in getattr(node, "decorator_list", ())), default=getattr(node, "lineno", 0))
        return isinstance(node, FUNCTIONS) and (file, first) in self._scopes

    def _touching(self, name: str) -> Iterator[tuple[int, int, str, int]]:
        """How well a line explains a change of the name, how far away its scope is, the file, and the line."""
        for depth, (file, tree) in enumerate(self._files.items()):
            busy = {id(n) for part in nodes_of(tree) if _runs_often(part) for n in ast.walk(part)}
            near = {id(n) for part in nodes_of(tree) if self._is_near(part, file) for n in ast.walk(part)}
            busy -= {id(n) for part in nodes_of(tree) if _runs_once(part) for n in ast.walk(part)}
            for node in nodes_of(tree):
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
        found = any(name in stored(t) or (isinstance(t, ast.Attribute) and base_of(t) == name) for t in targets)
        found = found or any(isinstance(t, ast.Subscript) and _is_text(t.slice, name) for t in targets)
        fresh = isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Constant)
        return 0 if not found else 2 if fresh else 1
    if not isinstance(node, ast.Call):
        return 0
    function = last_name(node.func)
    if function == name and (name in SETTINGS or name == "register"):
        return 1
    if function in CHANGERS and any(name in stored(argument) for argument in node.args):
        return 1
    method = isinstance(node.func, ast.Attribute) and base_of(node.func) == name
    return int(method and function not in READERS)


def _written(node: ast.AST) -> str:
    """An expression as it is written."""
    return re.sub(rf"{AT}[\w.<>:]+", "", ast.unparse(node))


def _is_text(node: ast.AST, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def _is_moment(content: Any) -> bool:
    """Whether a number is what a clock shows now."""
    if not (isinstance(content, tuple) and content[:1] == ("float",)):
        return False
    return any(max(clock() - 600, began_s) <= content[1] <= clock() for clock, began_s in _BEGAN_S.items())


def _holder_kind(path: Path, noted: Noted) -> bool:
    """Whether a path leads to an attribute of a class of a library."""
    return noted.at == len(path) - 1 and isinstance(noted.key, str) and noted.key == noted.name
