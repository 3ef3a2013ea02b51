"""Reads the source around a training loop: which names carry something from one turn of the loop to the next.

A name is carried where a turn may read it before it binds it, where the code after the loop reads it, or where the loop
changes its object in place. What calls do is followed through the functions and classes of the same file.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .namespaces import loads
from .parsing import parsed
from .syntax import FUNCTIONS, last_name, nodes_of, requests_steps

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
LOOPS = (ast.For, ast.While, ast.AsyncFor)
# Methods that only read; calls of any other method may change the object.
READERS = frozenset(
    "abs all any argmax argmin backward bfloat16 buffers chunk clone contiguous copy count cpu cuda detach dim double "
    "eval exp expand flatten float format get half index item items join keys log lower max mean min mm modules "
    "named_buffers named_modules named_parameters norm numel numpy parameters permute repeat reshape size softmax "
    "split squeeze startswith state_dict std strip sum to tobytes tolist transpose unsqueeze upper values var "
    "view".split()
)
MEASURES = frozenset(  # whose results may differ between members
    "clock gethostname getpid getrusage max_memory_allocated memory_allocated memory_info monotonic monotonic_ns now "
    "perf_counter perf_counter_ns process_time thread_time time time_ns utcnow uuid4".split()
)
CHANGERS = frozenset("delattr heapify heappop heappush heapreplace insort next setattr shuffle".split())  # an argument
DEEPEST_CALL = 4


@dataclass(frozen=True)
class Carrying:
    """Names of the loop's own scope and of the module, each with the line that binds or changes it.

    ``attributes`` are all attributes that methods and loops of the file set or change, except in ``__init__``.
    ``clocks`` are names that are bound to a time or to a measured quantity, which may differ between members.
    ``positions`` are names that depend on how often this process has gone round the loop, as ``enumerate`` counts.
    ``bound`` are all names that the loop binds; ``read`` those that the loop and the functions of the file read;
    ``nonlocal_names`` those that functions of the file bind in an outer one; ``stored`` those that the loop binds, or
    of whose objects it sets an attribute or an item. ``named`` are all names that the file binds.
    """

    local: dict[str, int] = field(default_factory=dict)
    module: dict[str, int] = field(default_factory=dict)
    attributes: frozenset[str] = frozenset()
    clocks: frozenset[str] = frozenset()
    positions: dict[str, int] = field(default_factory=dict)
    bound: dict[str, int] = field(default_factory=dict)
    read: frozenset[str] = frozenset()
    nonlocal_names: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()
    named: dict[str, int] = field(default_factory=dict)
    reads_gradients: bool = False

    @cached_property
    def used(self) -> tuple[str, ...]:
        """Names that are only read."""
        return tuple(sorted(self.read - self.local.keys() - self.module.keys()))


def carrying(
    source: str, line: int, since: int | None = None, born: int = 0, kept: frozenset[str] = frozenset()
) -> Carrying:
    """What the loops around ``line`` carry to their next turn; nothing where there is no loop, or no Python.

    ``since`` is the line of an earlier loop of the same scope: what is bound between the two is carried, too. Loops
    around the line ``born``, where the session is created, are left out: each member runs these itself. ``kept`` are
    names that are read when the file has run.
    """
    try:
        tree = parsed(source)
    except SyntaxError:
        return Carrying()
    scope: ast.AST = tree
    for node in nodes_of(tree):
        if isinstance(node, FUNCTIONS) and _holds(node, line):
            scope = node
    around = [node for node in _own(scope) if isinstance(node, LOOPS) and _holds(node, line)]
    loops = [node for node in around if not _holds(node, born)]
    read = kept.union(*(loads(node) for node in around if _holds(node, born)))
    return _Reader(tree, scope).read(loops, line, since, read) if loops else Carrying()


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, outer ones first, without those of scopes inside."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, SCOPES):
            waiting += ast.iter_child_nodes(node)


class _Reader:
    def __init__(self, tree: ast.Module, scope: ast.AST) -> None:
        self._tree, self._scope = tree, scope
        self._functions: dict[str, list[Function]] = {}
        self._defined = {n.name for n in nodes_of(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        for node in nodes_of(tree):
            if isinstance(node, FUNCTIONS):
                self._functions.setdefault(node.name, []).append(node)

    def read(self, loops: Sequence[ast.stmt], line: int, since: int | None, outside: frozenset[str]) -> Carrying:
        """``loops`` are those around the line, the outermost one first; ``outside``: names that are read outside."""
        loop = loops[0]
        bound = _bound(_within(loop))
        changed, module = self._changed(_within(loop), DEEPEST_CALL)
        needed = set[str]().union(*(exposed(one, bound.keys()) for one in loops))
        declared = {name for node in _own(self._scope) if isinstance(node, ast.Global) for name in node.names}
        needed |= _read_after(self._scope, loops[-1]) | self._read_in_functions() | outside
        needed |= declared & set[str]().union(*map(loads, _outside_functions(self._tree)))
        local = {name: line for name, line in bound.items() if name in needed}
        local |= {name: line for name, line in changed.items() if name not in bound or name in needed}
        if since is not None:
            between = (n for n in _own(self._scope) if since < getattr(n, "lineno", 0) < loop.lineno)
            local |= {name: line for name, line in _bound(between).items() if name in needed | loads(loop)}
        if isinstance(self._scope, ast.Module):
            return Carrying({}, module | local, *self._more(loop, line))
        known = {*bound, *_arguments(self._scope), *_bound(_own(self._scope))} - declared
        outer = {name: line for name, line in local.items() if name not in known}
        own = {name: line for name, line in local.items() if name in known}
        return Carrying(own, module | outer, *self._more(loop, line))

    def _more(self, loop: ast.stmt, line: int) -> tuple[Any, ...]:
        """The other fields of `Carrying`."""
        read = frozenset(loads(loop) | self._read_in_functions())
        outer = (name for node in nodes_of(self._tree) if isinstance(node, ast.Nonlocal) for name in node.names)
        bound = _bound(_within(loop))
        stores = (node for node in _within(loop) if isinstance(node, (ast.Attribute, ast.Subscript)))
        stored = {_base(node) for node in stores if isinstance(node.ctx, ast.Store)} | bound.keys()
        defined = {n.name: n.lineno for n in _own(self._scope) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        more = read, frozenset(outer), frozenset(stored), defined | _bound(nodes_of(self._tree))
        gradients = any(map(_reads_gradient, nodes_of(self._tree)))
        return self._attributes(), _clocks(self._tree), _positions(loop, line), bound, *more, gradients

    def _changed(self, nodes: list[ast.AST], depth: int) -> tuple[dict[str, int], dict[str, int]]:
        """Names whose objects the nodes change in place, and names of the module that functions called there change."""
        changed: dict[str, int] = {}
        module: dict[str, int] = {}
        for node in nodes:
            for name in changed_in_place(node):
                changed.setdefault(name, node.lineno)  # type: ignore[attr-defined]
            if isinstance(node, ast.Call) and (called := self._called(node.func)):
                changed.setdefault(called, node.lineno)
            if isinstance(node, ast.Call) and depth:
                for function in self._functions.get(last_name(node.func), ()):
                    for name in self._changed_arguments(node, function, depth):
                        changed.setdefault(name, node.lineno)
                    module = self._changed_outside(function, depth) | module
        self._follow_aliases(nodes, changed)
        return changed, module

    def _called(self, function: ast.AST) -> str:
        """The object whose method, or ``__call__()``, of this file is called; "" where there is none."""
        if isinstance(function, ast.Attribute):
            return _base(function) if function.attr in self._functions else ""
        name = function.id if isinstance(function, ast.Name) and "__call__" in self._functions else ""
        return "" if name in self._defined or hasattr(builtins, name) else name

    @staticmethod
    def _follow_aliases(nodes: list[ast.AST], changed: dict[str, int]) -> None:
        """Where a name that is changed stands for a part of another object, that object is changed, too."""
        pairs = [pair for node in nodes for pair in _aliases(node)]
        for _ in pairs:
            before = len(changed)
            for targets, value in pairs:
                if targets & changed.keys():
                    for name in loads(value):
                        changed.setdefault(name, value.lineno)
            if len(changed) == before:
                break

    def _changed_arguments(self, call: ast.Call, function: Function, depth: int) -> Iterator[str]:
        inner, _ = self._changed(list(ast.walk(function)), depth - 1)
        names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        if isinstance(call.func, ast.Attribute) and names[:1] == ["self"]:
            names = names[1:]
        given = dict(zip(names, call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}
        yield from (value.id for name, value in given.items() if name in inner and isinstance(value, ast.Name))

    def _changed_outside(self, function: Function, depth: int) -> dict[str, int]:
        """Names of the module that a function binds or changes."""
        inner, module = self._changed(list(ast.walk(function)), depth - 1)
        declared = {
            name for node in ast.walk(function) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names
        }
        bound = _bound(ast.walk(function))
        own = {*bound, *_arguments(function)} - declared
        found = {name: line for name, line in inner.items() if name not in own}
        return module | found | {name: line for name, line in bound.items() if name in declared}

    def _read_in_functions(self) -> set[str]:
        functions = [node for node in nodes_of(self._tree) if isinstance(node, (*SCOPES,)) and node is not self._scope]
        return {name for function in functions for name in loads(function)}

    def _attributes(self) -> frozenset[str]:
        found = set[str]()
        everywhere = {name for node in nodes_of(self._tree) for name in changed_in_place(node)}
        skipped = {id(n) for f in self._functions.get("__init__", ()) for n in ast.walk(f)}
        for node in nodes_of(self._tree):
            if id(node) not in skipped:
                found |= set(_changed_attributes(node))
                for targets, value in _aliases(node):
                    if targets & everywhere:
                        found |= set(_attributes_within(value))
        return frozenset(found)


def _clocks(tree: ast.Module) -> frozenset[str]:
    """Names whose values come from a clock or another measurement, also by way of other names."""
    found: set[str] = set()
    assignments: list[tuple[ast.AST, list[str]]] = []
    for node in nodes_of(tree):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bases = [_base(target) for target in targets]
            assignments.append((node.value, [*_bound(ast.walk(node)), *bases]))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            assignments.append((ast.Tuple(node.args), [_base(node.func)]))
    for _ in range(len(assignments)):
        before = len(found)
        for value, names in assignments:
            calls = {last_name(node.func) for node in ast.walk(value) if isinstance(node, ast.Call)}
            if calls & MEASURES or loads(value) & found:
                found.update(names)
        if len(found) == before:
            break
    return frozenset(found)


def _reads_gradient(node: ast.AST) -> bool:
    """Whether a node reads ``parameter.grad``."""
    loaded = isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.ctx, ast.Load)
    return loaded and last_name(node.value) not in ("autograd", "func")  # type: ignore[attr-defined]


def _positions(loop: ast.stmt, line: int) -> dict[str, int]:
    """Names that ``enumerate`` and ``zip`` bind beside the step, and that the loop reads."""
    heads = [node for node in ast.walk(loop) if isinstance(node, ast.For) and node.lineno == line]
    found: dict[str, int] = {}
    for head in heads:
        if not isinstance(head.iter, ast.Call) or not isinstance(head.target, (ast.Tuple, ast.List)):
            continue
        name, targets = last_name(head.iter.func), head.target.elts
        if name == "enumerate":
            beside = targets[:1]
        elif name == "zip":
            beside = [t for t, given in zip(targets, head.iter.args, strict=False) if not requests_steps(given)]
        else:
            continue
        read = {name for statement in head.body for name in loads(statement)}
        found |= {name: head.lineno for target in beside for name in _bound(ast.walk(target)) if name in read}
    return found


def _within(loop: ast.stmt) -> list[ast.AST]:
    return [loop, *_own(loop)]


def _outside_functions(tree: ast.Module) -> list[ast.stmt]:
    return [node for node in tree.body if not isinstance(node, FUNCTIONS)]


def _arguments(scope: ast.AST) -> set[str]:
    arguments = getattr(scope, "args", None)
    if arguments is None:
        return set()
    more = [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
    return {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *more)}


def _bound(nodes: Iterable[ast.AST]) -> dict[str, int]:
    """Names that are bound, with the first line."""
    found: dict[str, int] = {}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.id, node.lineno)
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name is not None:
            found.setdefault(node.name, node.lineno)
        elif isinstance(node, ast.MatchMapping) and node.rest is not None:
            found.setdefault(node.rest, node.lineno)
    return found


def _base(node: ast.AST) -> str:
    """The name at the front of ``name.attribute[item]…``, or ""."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def changed_in_place(node: ast.AST) -> Iterator[str]:
    """The names whose objects a node changes."""
    if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
        yield _base(node)
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    elif isinstance(node, ast.Call):
        name = last_name(node.func)
        if isinstance(node.func, ast.Attribute) and name not in READERS:
            yield _base(node.func)
        if name in CHANGERS or name.endswith("_"):
            yield from (_base(argument) for argument in node.args)
        yield from (_base(k.value) for k in node.keywords if k.arg in ("generator", "rng", "random_state", "out"))


def _aliases(node: ast.AST) -> Iterator[tuple[set[str], ast.expr]]:
    """Names that a loop or an assignment binds to parts of a value, and the value."""
    if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield set(_bound(ast.walk(node.target))), node.iter
    elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.Attribute, ast.Subscript, ast.Name)):
        yield {name for target in node.targets for name in _bound(ast.walk(target))}, node.value


def _attributes_within(node: ast.AST) -> Iterator[str]:
    yield from (inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute))


def _changed_attributes(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
        yield from _attributes_of(node.value)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr not in READERS:
        yield from _attributes_of(node.func.value)
    elif isinstance(node, ast.Call) and (last_name(node.func) in CHANGERS or last_name(node.func).endswith("_")):
        yield from (name for argument in node.args for name in _attributes_of(argument))
        if last_name(node.func) == "setattr" and not all(isinstance(n, ast.Constant) for n in node.args[1:2]):
            yield "__dict__"


def _attributes_of(node: ast.AST) -> Iterator[str]:
    yield from [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Attribute):
            yield node.attr
        node = node.value


def exposed(loop: ast.stmt, names: Iterable[str]) -> set[str]:
    """Names that one turn may read before it binds them."""
    wanted, found = set(names), set[str]()
    _flow([*getattr(loop, "body", ()), *getattr(loop, "orelse", ())], set(_targets(loop)), wanted, found)
    if isinstance(loop, ast.While):
        found |= loads(loop.test) & wanted
    return found


def _targets(loop: ast.AST) -> Iterator[str]:
    target = getattr(loop, "target", None)
    if target is not None:
        yield from _bound(ast.walk(target))


def _flow(body: list[ast.stmt], known: set[str], wanted: set[str], found: set[str]) -> set[str]:
    """Add to `found` what statements may read of `wanted` before it is bound; return what is bound after them."""
    for statement in body:
        if isinstance(statement, ast.If):
            found |= (loads(statement.test) & wanted) - known
            known = _flow(statement.body, set(known), wanted, found) & _flow(
                statement.orelse, set(known), wanted, found
            )
        elif isinstance(statement, LOOPS):
            head = statement.test if isinstance(statement, ast.While) else statement.iter
            found |= (loads(head) & wanted) - known
            _flow(statement.body, known | set(_targets(statement)), wanted, found)
            _flow(statement.orelse, set(known), wanted, found)
        elif isinstance(statement, (ast.Try, ast.TryStar)):
            for part in (statement.body, *(handler.body for handler in statement.handlers), statement.orelse):
                _flow(part, set(known), wanted, found)
            known = _flow(statement.finalbody, known, wanted, found)
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                found |= (loads(item) & wanted) - known
                known |= set(_bound(ast.walk(item)))
            known = _flow(statement.body, known, wanted, found)
        else:
            found |= (loads(statement) & wanted) - known
            if isinstance(statement, ast.AugAssign):
                found |= set(_bound(ast.walk(statement.target))) & wanted - known
            known |= set(_bound(n for n in ast.walk(statement) if not isinstance(n, SCOPES)))
    return known


def _read_after(scope: ast.AST, loop: ast.stmt) -> set[str]:
    end = loop.end_lineno or loop.lineno
    nodes = (n for n in _own(scope) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.lineno > end)
    return {node.id for node in nodes}
