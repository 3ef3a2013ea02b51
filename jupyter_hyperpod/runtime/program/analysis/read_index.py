"""What the files of a program read, call, declare and bind, by name: made once, and shared by all judgements."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from .cell_analysis import LOOPS, MEASURES, SCOPES
from .namespaces import computed_name, names_in_text, words_of
from .syntax import FUNCTIONS, KEPT_TREES, last_name, nodes_of, parts_in


class Index:
    """What the nodes of some trees read, call and declare, by name. It is shared: do not change it."""

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        self.parents: dict[ast.AST, ast.AST] = {}
        self.loads: dict[str, list[ast.AST]] = {}
        self.calls: dict[str, list[ast.Call]] = {}
        self.arguments: dict[str, list[list[str]]] = {}
        self.computed: list[tuple[ast.AST, tuple[str, str]]] = []  # reads by a name that begins and ends so
        self.parts: dict[str, set[str]] = {}  # by variable that is bound to a part, the names of the whole
        for tree in trees:
            for node in nodes_of(tree):
                for inner in ast.iter_child_nodes(node):
                    self.parents[inner] = node
                self.note(node)
        self.computed = [(node, ends) for node, ends in self.computed if self._is_repeated_value(node)]
        texts = (node for tree in trees for node in nodes_of(tree)) if self.computed else ()
        self.words = set[str]().union(*map(words_of, texts))

    def _is_repeated_value(self, node: ast.AST) -> bool:
        """In a loop or a function, and not only called: that finds a function or a class by its name."""
        parent = self.parents.get(node)
        return is_inside(node, self.parents) and not (isinstance(parent, ast.Call) and parent.func is node)

    def note(self, node: ast.AST) -> None:
        """Add a node."""
        if (ends := computed_name(node)) is not None:
            self.computed.append((node, ends))
        for target, whole in parts_in(node):
            for name in stored(target):
                self.parts.setdefault(name, set()).update(_mentioned(whole) - {name})
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            self.loads.setdefault(node.id, []).append(node)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            self.loads.setdefault(node.attr, []).append(node)
        elif isinstance(node, ast.Call):
            function = last_name(node.func)
            self.calls.setdefault(function, []).append(node)
            for given in node.args if function in ("getattr", "attrgetter") else ():
                if isinstance(given, ast.Constant) and isinstance(given.value, str):
                    for part in given.value.split("."):
                        self.loads.setdefault(part, []).append(node)
        elif isinstance(node, ast.MatchClass):
            for attribute in node.kwd_attrs:
                self.loads.setdefault(attribute, []).append(node)
        elif isinstance(node, FUNCTIONS):
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
            self.arguments.setdefault(node.name, []).append(names[1:] if names[:1] == ["self"] else names)
        for name in names_in_text(node):
            self.loads.setdefault(name, []).append(node)


def is_inside(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> bool:
    """Whether a node is in a loop or a function."""
    inner: ast.AST | None = node
    while inner is not None and not isinstance(inner, (*LOOPS, *SCOPES)):
        inner = parents.get(inner)
    return inner is not None


@lru_cache(maxsize=KEPT_TREES)
def index_of(trees: tuple[ast.Module, ...]) -> Index:
    return Index(trees)


@lru_cache(maxsize=KEPT_TREES)
def clocks_of(trees: tuple[ast.Module, ...]) -> frozenset[str]:
    pairs = [pair for tree in trees for node in nodes_of(tree) for pair in _assigned(node)]
    sources = [(_measures(value), _mentioned(value), names) for value, names in pairs]
    found: set[str] = set()
    for _ in sources:
        before = len(found)
        for measured, mentioned, names in sources:
            if measured or mentioned & found:
                found |= names
        if len(found) == before:
            break
    return frozenset(found)


def _measures(value: ast.AST) -> bool:
    return any(last_name(n.func) in MEASURES for n in ast.walk(value) if isinstance(n, ast.Call))


def _assigned(node: ast.AST) -> Iterator[tuple[ast.AST, set[str]]]:
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield node.value, {name for target in targets for name in stored(target)}


def _mentioned(value: ast.AST) -> set[str]:
    names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
    return names | {n.attr for n in ast.walk(value) if isinstance(n, ast.Attribute)}


def stored(target: ast.AST) -> Iterator[str]:
    """The names whose values an assignment to ``target`` changes: ``a``, ``b.a`` and ``a[i]`` change ``a``."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Attribute):
        yield target.attr
    elif isinstance(target, (ast.Subscript, ast.Starred)):
        yield from stored(target.value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        for inner in target.elts:
            yield from stored(inner)


def chain(target: ast.AST) -> Iterator[str]:
    """All names on the way to what an assignment changes, without ``self``: it flows where any of them flows."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for inner in target.elts:
            yield from chain(inner)
    while isinstance(target, (ast.Attribute, ast.Subscript, ast.Starred)):
        if isinstance(target, ast.Attribute):
            yield target.attr
        target = target.value
    if isinstance(target, ast.Name) and target.id not in ("self", "cls"):
        yield target.id


def base_of(node: ast.AST) -> str:
    """The name that holds the object of ``name.method`` or ``x.name.method``, or ""."""
    if isinstance(node, ast.Attribute):
        node = node.value
    while isinstance(node, (ast.Subscript, ast.Starred)):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
