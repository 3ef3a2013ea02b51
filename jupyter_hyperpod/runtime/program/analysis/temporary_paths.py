"""Reads from source code which names hold temporary paths, and where below which temporary folder these lead."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence

from .syntax import FUNCTIONS, last_name, nodes_of

MAKERS = frozenset("NamedTemporaryFile TemporaryDirectory getpid mkdtemp mkstemp mktemp".split())
BELOW = frozenset("Path PurePath join joinpath".split())
OF_A_MACHINE = ("/tmp/", "/var/tmp/", "/dev/shm/")  # folders that each machine has for itself
SAME = frozenset("abspath expanduser fspath realpath resolve str with_name with_suffix".split())
UNKNOWN = ""  # a part of a path
DEEPEST, MOST = 6, 30  # parts of a path, paths that a name may have
Below = tuple[object, ...]  # a temporary folder, and the parts of a path below it
Key = tuple[int, str]  # a function, 0 for none, -1 for attributes, and the name
_NONE: frozenset[Below] = frozenset()


def meet(some: Iterable[Below], others: Iterable[Iterable[Below]]) -> bool:
    """Whether one of these paths may be one of the others, or above or below it."""
    return any(_may_meet(one, other) for paths in others for other in paths for one in some)


def _may_meet(one: Below, other: Below) -> bool:
    if one[0] != other[0]:
        return False
    for part, its in zip(one[1:], other[1:], strict=False):
        if UNKNOWN in (part, its):
            return True
        if part != its:
            return False
    return True


class Paths:
    """The temporary paths of one file. ``inside``: ids of the nodes of its training loop, whose own ones are left out:
    each turn makes them anew. ``apart``: each node is a machine, so fixed folders such as /tmp are temporary, too.
    """

    def __init__(self, tree: ast.AST, inside: Collection[int], apart: bool) -> None:
        self._apart = apart
        self._functions: dict[int, ast.AST] = {}  # by id of a node, the innermost function around it
        self._bound: dict[int, set[str]] = {}  # by id of a function, the names that are its own
        self._names: dict[Key, frozenset[Below]] = {}
        for function in nodes_of(tree):
            if isinstance(function, FUNCTIONS):
                self._note(function)
        pairs = list(_bindings(tree))
        for _ in pairs:
            before = dict(self._names)
            for targets, value in pairs:
                found = self.of(value, makes=id(value) not in inside)
                for target in targets if found else ():
                    self._bind(target, found)
            if self._names == before:
                break

    def _note(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        own = self._bound.setdefault(id(function), set())
        outer: set[str] = set()
        waiting: list[ast.AST] = [function.args, *function.body]
        while waiting:
            node = waiting.pop()
            self._functions[id(node)] = function
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                outer.update(node.names)
            elif isinstance(node, ast.arg):
                own.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            if not isinstance(node, FUNCTIONS):
                waiting.extend(ast.iter_child_nodes(node))
        own -= outer

    def _key(self, name: str, node: ast.AST) -> Key:
        function = self._functions.get(id(node))
        while function is not None:
            if name in self._bound[id(function)]:
                return id(function), name
            function = self._functions.get(id(function))
        return 0, name

    def _bind(self, target: ast.AST, found: frozenset[Below]) -> None:
        if isinstance(target, (ast.Subscript, ast.Starred)):
            self._bind(target.value, found)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for inner in target.elts:
                self._bind(inner, found)
        elif isinstance(target, ast.Attribute):
            self._add((-1, target.attr), found)
        elif isinstance(target, ast.Name):
            self._add(self._key(target.id, target), found)
        elif isinstance(target, ast.arg):
            self._add((id(self._functions[id(target)]), target.arg), found)

    def _add(self, key: Key, found: frozenset[Below]) -> None:
        found |= self._names.get(key, _NONE)
        self._names[key] = found if len(found) <= MOST else _whole(found)

    def named(self, given: Iterable[ast.AST]) -> dict[str, frozenset[Below]]:
        """By name, the temporary paths that these expressions are, or of which they are parts."""
        found: dict[str, frozenset[Below]] = {}
        for one in given:
            if places := self.of(one):
                parts = [node for node in ast.walk(one) if self.of(node)]
                names = (last_name(node) for node in parts if isinstance(node, (ast.Name, ast.Attribute)))
                found[next(names, "") or next(filter(None, map(_text, parts)), "")] = places
        return found

    def of(self, node: ast.AST, makes: bool = False) -> frozenset[Below]:
        """The temporary paths that an expression may be, with a new one, if it ``makes`` one."""
        if isinstance(node, ast.Name):
            return self._names.get(self._key(node.id, node), _NONE)
        if isinstance(node, ast.Constant):
            return self._of_text(_text(node))
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "os":  # os.path
                return _NONE
            held = self.of(node.value, makes)
            return self._names.get((-1, node.attr), _NONE) | (_whole(held) if node.attr.startswith("parent") else held)
        if isinstance(node, (ast.Subscript, ast.FormattedValue)):
            return self.of(node.value, makes)
        if isinstance(node, ast.IfExp):
            return self.of(node.body, makes) | self.of(node.orelse, makes)
        if isinstance(node, ast.BinOp):
            return self._below([node.left, node.right], makes, isinstance(node.op, ast.Div))
        if isinstance(node, ast.JoinedStr):
            return self._below(node.values, makes, False)
        return self._of_call(node, makes) if isinstance(node, ast.Call) else _NONE

    def _of_text(self, text: str) -> frozenset[Below]:
        folders = (folder for folder in OF_A_MACHINE if self._apart and f"{text}/".startswith(folder))
        return frozenset((folder, *_parts(text.removeprefix(folder)))[: DEEPEST + 1] for folder in folders)

    def _of_call(self, call: ast.Call, makes: bool) -> frozenset[Below]:
        name = last_name(call.func)
        if name in MAKERS:
            return frozenset([(name if name == "getpid" else id(call),)]) if makes else _NONE
        pieces = [*([call.func.value] if isinstance(call.func, ast.Attribute) else []), *call.args]
        if name in BELOW:
            return self._below(pieces, makes, True)
        if name not in SAME:
            return _NONE
        found = _NONE.union(*(self.of(piece, makes) for piece in pieces))
        return _whole(found) if name.startswith("with_") else found

    def _below(self, pieces: Sequence[ast.AST], makes: bool, joins: bool) -> frozenset[Below]:
        """What is below the first of some pieces that is a temporary path; ``joins``: each piece is a part, or several.

        Otherwise they are put together as text, in which parts are between slashes.
        """
        for place, piece in enumerate(pieces):
            if found := self.of(piece, makes):
                texts = [_text(following) for following in pieces[place + 1 :]]
                if joins:
                    parts = [part for text in texts for part in (_parts(text) if text else [UNKNOWN])]
                elif texts and texts[0].startswith("/"):
                    parts = _parts(texts[0]) if len(texts) == 1 else [*_parts(texts[0].rpartition("/")[0]), UNKNOWN]
                else:
                    return _whole(found)
                return frozenset((*one, *parts)[: DEEPEST + 1] for one in found)
        return _NONE


def _whole(found: Iterable[Below]) -> frozenset[Below]:
    return frozenset(one[:1] for one in found)


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else UNKNOWN


def _parts(text: str) -> list[str]:
    """The parts of a path, without suffixes: `numpy.save` adds one."""
    return [part.partition(".")[0] for part in text.split("/") if part]


def _bindings(tree: ast.AST) -> Iterator[tuple[Sequence[ast.AST], ast.AST]]:
    """Targets and values of assignments, `with` statements, and calls of the file's functions."""
    functions = {node.name: node for node in nodes_of(tree) if isinstance(node, FUNCTIONS)}
    classes = {n.name: f for n in nodes_of(tree) if isinstance(n, ast.ClassDef) for f in n.body if _is_constructor(f)}
    for node in nodes_of(tree):
        if isinstance(node, ast.Assign):
            yield [*node.targets], node.value
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    yield from (([one], value) for one, value in zip(target.elts, node.value.elts, strict=False))
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            yield [node.target], node.value
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if item.optional_vars is not None:
                    yield [item.optional_vars], item.context_expr
        elif isinstance(node, ast.Call):
            function = functions.get(last_name(node.func)) or classes.get(last_name(node.func))
            if isinstance(function, FUNCTIONS):
                yield from _arguments(function, node)


def _arguments(
    function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call
) -> Iterator[tuple[Sequence[ast.AST], ast.AST]]:
    given = [one for one in (*function.args.posonlyargs, *function.args.args) if one.arg != "self"]
    yield from (([one], value) for one, value in zip(given, call.args, strict=False))
    named = {one.arg: one for one in (*given, *function.args.kwonlyargs)}
    yield from (([named[k.arg]], k.value) for k in call.keywords if k.arg in named)


def _is_constructor(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__init__"
