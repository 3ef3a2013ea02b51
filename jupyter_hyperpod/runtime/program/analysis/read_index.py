"""What the files of a program read, call, declare and bind, by name: made once, and shared by all judgements."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from functools import lru_cache

from .cell_analysis import LOOPS, MEASURES, SCOPES
from .known_functions import KEEPS
from .namespaces import computed_name, names_in_text, words_of
from .scopes import base
from .syntax import FUNCTIONS, KEPT_TREES, OBJECT, held_by, last_name, nodes_of, parts_in

_QUIET = (StopIteration, StopAsyncIteration)  # errors that end a loop


class Index:
    """What the nodes of some trees read, call and declare, by name. It is shared: do not change it."""

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        self.parents: dict[ast.AST, ast.AST] = {}
        self.loads: dict[str, list[ast.AST]] = {}
        self.calls: dict[str, list[ast.Call]] = {}
        self.arguments: dict[str, list[list[str]]] = {}
        self.keywords: dict[str, set[str]] = {}  # by function, all its arguments
        self.anything: set[str] = set()  # arguments of functions that code of a library calls, or a variable
        self.by_text: dict[str, list[ast.AST]] = {}  # reads by a text, which says no scope
        self.written: dict[str, set[str]] = {}  # by the name as it is written, the names of all scopes
        self.computed: list[tuple[ast.AST, tuple[str, str | None]]] = []  # reads by a name that begins and ends so
        self.parts: dict[str, set[str]] = {}  # by variable that is bound to a part, the names of the whole
        self.holds: dict[str, set[str]] = {}  # by variable of a container or a view, the names of whose parts it holds
        self._wholes: dict[tuple[str, bool], set[str]] = {}
        self.returned: dict[str, set[str]] = {}  # by function, the names of what it returns as it is
        self.imported: set[str] = set()
        self.caught: set[str] = set()  # names of exceptions, "" for all
        self.own_attributes: set[str] = set()  # that the program's own classes declare, or set of ``self``
        self.bases: dict[str, list[str]] = {}  # by class, those that it derives from
        self.fields: dict[str, list[str]] = {}  # by class, the attributes that it declares, as a data class has them
        for tree in trees:
            for node in nodes_of(tree):
                for inner in ast.iter_child_nodes(node):
                    self.parents[inner] = node
                self.note(node)
        self.computed = [(node, ends) for node, ends in self.computed if self._is_repeated_value(node)]
        texts = (node for tree in trees for node in nodes_of(tree)) if self.computed else ()
        self.words = set[str]().union(*map(words_of, texts))
        self.stems = {word.strip("_") for word in self.words} - {""}
        for name in (*self.loads, *self.parts):
            self.written.setdefault(base(name), set()).add(name)
        self._link_arguments()
        self._link_fields()
        self._link_results()

    def _link_arguments(self) -> None:
        """An argument of a function may be what a call gives it, or what a variable of its name holds elsewhere."""
        made = [call for kind in self.bases for call in self.calls.get(kind, ())]
        for function, names in self.keywords.items():
            makes = function == "__init__"
            calls = self.calls.get(function, []) + (made if makes else [])
            places = {name: place for several in self.arguments[function] for place, name in enumerate(several)}
            for name in names:
                place = places.get(name)
                given: list[ast.AST] = [k.value for c in calls for k in c.keywords if k.arg in (base(name), None)]
                given += [one for c in calls for at, one in enumerate(c.args) if place is None or at == place]
                whole = set[str]().union(*map(mentioned, given)) | {base(name)}
                self.parts.setdefault(name, set()).update(whole - {name, *OBJECT})
            uses = self.loads.get(function, ())
            given_away = any(getattr(self.parents.get(node), "func", None) is not node for node in uses)
            if not makes and (given_away or not calls):
                self.anything |= names

    def _link_fields(self) -> None:
        """An attribute that a class declares may be what a call of the class gives it, as of a data class."""
        for kind, fields in self.fields.items():
            for call in self.calls.get(kind, ()):
                given = {**dict(zip(fields, call.args, strict=False)), **{k.arg or "": k.value for k in call.keywords}}
                for name, value in given.items():
                    self.parts.setdefault(name, set()).update(mentioned(value) - {name, *OBJECT})

    def _link_results(self) -> None:
        """What a call gives may be what the function returns."""
        for function, returned in self.returned.items():
            for call in self.calls.get(function, ()):
                parent = self.parents.get(call)
                for target in targets_of(parent) if isinstance(parent, (ast.Assign, ast.AnnAssign)) else ():
                    for name in stored(target):
                        self.parts.setdefault(name, set()).update(returned - {name, *OBJECT})

    def _is_repeated_value(self, node: ast.AST) -> bool:
        """In a loop or a function, and not only called: that finds a function or a class by its name."""
        parent = self.parents.get(node)
        return self.is_inside(node) and not (isinstance(parent, ast.Call) and parent.func is node)

    def note(self, node: ast.AST) -> None:
        """Add a node."""
        if (ends := computed_name(node, self.parents.get(node))) is not None:
            self.computed.append((node, ends))
        for target, whole in parts_in(node):
            for name in stored(target):
                self.parts.setdefault(name, set()).update(mentioned(whole) - {name, *OBJECT})
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            self.loads.setdefault(node.id, []).append(node)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            self.loads.setdefault(node.attr, []).append(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self.imported.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign):
            held = set[str]().union(*map(mentioned, held_by(node.value)))
            for name in {name for target in node.targets if held for name in stored(target)}:
                self.holds.setdefault(name, set()).update(held - {name, *OBJECT})
        elif isinstance(node, ast.Call):
            self._note_call(node)
        elif isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            self.caught.update(last_name(kind) if kind is not None else "" for kind in kinds)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            self.own_attributes.add(node.attr)
        elif isinstance(node, ast.ClassDef):
            self._note_class(node)
        elif isinstance(node, ast.MatchClass):
            for attribute in node.kwd_attrs:
                self.loads.setdefault(attribute, []).append(node)
        elif isinstance(node, FUNCTIONS):
            self._note_function(node)
        for name in names_in_text(node):
            self.by_text.setdefault(name, []).append(node)

    def _note_call(self, node: ast.Call) -> None:
        function = last_name(node.func)
        self.caught.update(map(last_name, node.args) if function == "suppress" else ())
        self.calls.setdefault(function, []).append(node)
        kept = ast.List([*node.args, *(keyword.value for keyword in node.keywords)], ast.Load())
        for name in stored(node.func.value) if isinstance(node.func, ast.Attribute) and function in KEEPS else ():
            self.holds.setdefault(name, set()).update(*map(mentioned, held_by(kept)))
        for given in node.args if function in ("getattr", "attrgetter") else ():
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                for part in given.value.split("."):
                    self.loads.setdefault(part, []).append(node)

    def _note_class(self, node: ast.ClassDef) -> None:
        self.bases[node.name] = list(map(last_name, node.bases))
        declared = [one for one in node.body if isinstance(one, (ast.Assign, ast.AnnAssign))]
        fields = [one.target for one in declared if isinstance(one, ast.AnnAssign)]
        self.fields[node.name] = [name for target in fields for name in stored(target)]
        self.own_attributes.update(name for one in declared for t in targets_of(one) for name in stored(t))

    def _note_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
        self.arguments.setdefault(node.name, []).append(names[1:] if names[:1] == ["self"] else names)
        more = (*node.args.kwonlyargs, *filter(None, (node.args.vararg, node.args.kwarg)))
        self.keywords.setdefault(node.name, set()).update(names, (a.arg for a in more))
        self.returned.setdefault(node.name, set()).update(_returned_by(node))

    def around(self, node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> ast.AST | None:
        """A node, or the nearest one around it, that is of these kinds."""
        found: ast.AST | None = node
        while found is not None and not isinstance(found, kinds):
            found = self.parents.get(found)
        return found

    def is_inside(self, node: ast.AST) -> bool:
        """Whether a node is in a loop or a function."""
        return self.around(node, (*LOOPS, *SCOPES)) is not None

    def goes_on_after(self, error: str) -> bool:
        """Whether the program may go on where this error is raised: it catches it, or the error ends a loop; "" for one
        that is not known.
        """
        kind = getattr(builtins, error, None)
        kinds = {"", "BaseException", "Exception", error, *self.bases}
        if isinstance(kind, type):
            kinds = {"", *(one.__name__ for one in kind.__mro__)}
        quiet = not error or (isinstance(kind, type) and (kind in _QUIET or not issubclass(kind, Exception)))
        return quiet or bool(kinds & self.caught)

    def wholes(self, name: str, fills: bool = False) -> set[str]:
        """The names of all that changes with a variable, because this is a part of it, or holds its parts.

        A change that only ``fills`` the variable changes none of the parts that it holds.
        """
        if (known := self._wholes.get((name, fills))) is not None:
            return known
        found: set[str] = set()
        more = self.parts.get(name, set()) | (set() if fills else self.holds.get(name, set()))
        while more := more - found - self.imported:
            found |= more
            more = set[str]().union(*(self.parts.get(one, set()) | self.holds.get(one, set()) for one in more))
        self._wholes[name, fills] = found - {name}
        return found - {name}

    def instances(self, kind: str) -> set[str] | None:
        """The names to which objects of a class, or of one that derives from it, are assigned; None for others."""
        found: set[str] = set()
        kinds = {kind}
        for _ in self.bases:
            kinds |= {name for name, bases in self.bases.items() if kinds.intersection(bases)}
        for made in kinds:
            for call in self.calls.get(made, ()):
                parent = self.parents.get(call)
                if not isinstance(parent, (ast.Assign, ast.AnnAssign)):
                    return None
                found.update(name for target in targets_of(parent) for name in stored(target))
        return found


@lru_cache(maxsize=KEPT_TREES)
def index_of(trees: tuple[ast.Module, ...]) -> Index:
    """The index of some trees, made once."""
    return Index(trees)


@lru_cache(maxsize=KEPT_TREES)
def clocks_of(trees: tuple[ast.Module, ...]) -> frozenset[str]:
    """Names, attributes included, whose values come from a clock or another measurement, also by way of others."""
    pairs = [pair for tree in trees for node in nodes_of(tree) for pair in _assigned(node)]
    sources = [(_measures(value), mentioned(value), names) for value, names in pairs]
    found: set[str] = set()
    for _ in sources:
        before = len(found)
        for measured, within, names in sources:
            if measured or within & found:
                found |= names
        if len(found) == before:
            break
    return frozenset(found)


def _measures(value: ast.AST) -> bool:
    return any(last_name(n.func) in MEASURES for n in ast.walk(value) if isinstance(n, ast.Call))


def targets_of(node: ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr) -> list[ast.expr]:
    """What an assignment binds or changes."""
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _assigned(node: ast.AST) -> Iterator[tuple[ast.AST, set[str]]]:
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        yield node.value, {name for target in targets_of(node) for name in stored(target)}


def _returned_by(function: ast.AST) -> set[str]:
    """The names of what a function returns as it is, or holds in what it returns."""
    values = [one.value for one in ast.walk(function) if isinstance(one, ast.Return) and one.value is not None]
    found: set[str] = set()
    for part in (*held_by(ast.List(values, ast.Load())), *(part for value in values for part in held_by(value))):
        found |= mentioned(part)
    return found


def mentioned(value: ast.AST) -> set[str]:
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
    while isinstance(target, (ast.Attribute, ast.Subscript, ast.Starred, ast.Call)):
        if isinstance(target, ast.Attribute):
            yield target.attr
        target = target.func if isinstance(target, ast.Call) else target.value
    if isinstance(target, ast.Name) and target.id not in OBJECT:
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
