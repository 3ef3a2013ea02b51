"""The syntax trees of the person's files, read once, and the attributes that a file sets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache

KEPT_TREES = 32  # a session reads its files several times in the first steps
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
WRITES = frozenset("awx+")  # in the mode of a file that is opened


class _Plainer(ast.NodeTransformer):
    """Names are as objects have them: ``self.__x`` in a class ``A`` is ``self._A__x``."""

    def __init__(self) -> None:
        self._classes: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._classes.append(node.name.lstrip("_"))
        self.generic_visit(node)
        self._classes.pop()
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = self._mangled(node.attr)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._mangled(node.id)
        return node

    def _mangled(self, name: str) -> str:
        private = name.startswith("__") and not name.endswith("__")
        return f"_{self._classes[-1]}{name}" if private and self._classes and self._classes[-1] else name

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "vars" and len(node.args) == 1:
            return ast.copy_location(ast.Attribute(node.args[0], "__dict__", ast.Load()), node)
        return node


@lru_cache(maxsize=KEPT_TREES)
def parsed(source: str) -> ast.Module:
    """The syntax tree of a file, where ``vars(x)`` is ``x.__dict__``. It is shared: do not change it.

    Raises SyntaxError and ValueError.
    """
    tree: ast.Module = _Plainer().visit(ast.parse(source))
    return tree


@lru_cache(maxsize=KEPT_TREES)
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a tree, as `ast.walk` gives them: that takes as long as parsing, and many rules need them."""
    return tuple(ast.walk(tree))


LONGEST_TEXT = 200  # characters; what is longer is documentation
_NAME = re.compile(r"[A-Za-z_]\w*")


def last_name(function: ast.AST) -> str:
    """The name of what is called."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def names_in_text(node: ast.AST) -> Iterator[str]:
    """The variables that a node reads by text: ``globals()["a"]``, ``globals().get("a")``, ``eval("a + b")``."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_namespace(node.value):
        yield from _texts([node.slice])
    elif isinstance(node, ast.Call):
        function, texts = last_name(node.func), list(_texts(node.args))
        if function == "get" and isinstance(node.func, ast.Attribute) and _is_namespace(node.func.value):
            yield from texts[:1]
        elif function == "eval" and texts:
            with suppress(SyntaxError, ValueError):
                yield from (inner.id for inner in ast.walk(ast.parse(texts[0])) if isinstance(inner, ast.Name))


def computed_name(node: ast.AST) -> tuple[str, str] | None:
    """How the name of a variable begins and ends that a node reads and that is computed: ``globals()[f"best_{name}"]``,
    ``globals().get(name)``, ``eval(text)``; None where it reads none."""
    if isinstance(node, ast.Subscript):
        whole = isinstance(node.value, ast.Call) and not node.value.args and _is_namespace(node.value)
        return _ends(node.slice) if whole and isinstance(node.ctx, ast.Load) else None
    if not isinstance(node, ast.Call) or not node.args:
        return None
    holder = node.func.value if isinstance(node.func, ast.Attribute) else None
    if isinstance(node.func, ast.Name):
        return ("", "") if node.func.id == "eval" and not isinstance(node.args[0], ast.Constant) else None
    whole = isinstance(holder, ast.Call) and not holder.args and _is_namespace(holder) and last_name(node.func) == "get"
    return _ends(node.args[0]) if whole else None


def _ends(text: ast.AST) -> tuple[str, str] | None:
    """What a text begins and ends with, as far as its expression says; None where it says all of it."""
    if isinstance(text, ast.Constant):
        return None
    if isinstance(text, ast.BinOp) and isinstance(text.op, ast.Add):
        parts: list[ast.AST] = [text.left, text.right]
    else:
        parts = list(text.values) if isinstance(text, ast.JoinedStr) else []
    first, last = (next(_texts(some), "") for some in (parts[:1], parts[-1:]))
    return first, last


def words_of(node: ast.AST) -> set[str]:
    """The names in a text of the program, documentation left out: variables may be read by them."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < LONGEST_TEXT:
        return set(_NAME.findall(node.value))
    return set()


def fits(name: str, words: Iterable[str]) -> bool:
    """Whether a name may be built of one of these and something else: ``calls_`` and ``train``."""
    return any(
        (word.endswith("_") and name.startswith(word)) or (word.startswith("_") and name.endswith(word))
        for word in words
        if word.strip("_")
    )


def parts_in(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """What a node binds to a part of something, and that: ``for group in groups``, ``group = groups[0]``."""
    if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield node.target, node.iter
    elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.Subscript, ast.Attribute)):
        yield from ((target, node.value) for target in node.targets)


def _is_namespace(node: ast.AST) -> bool:
    """Whether an expression is the dictionary of all variables."""
    return isinstance(node, ast.Call) and last_name(node.func) in ("globals", "locals", "vars")


def _texts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    yield from (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def requests_steps(node: ast.AST) -> bool:
    """Whether a node has the call that gives the steps of a session."""
    return any(isinstance(inner, ast.Call) and last_name(inner.func) == "steps" for inner in ast.walk(node))


def opens_to_write(call: ast.Call) -> bool:
    """Whether this is an ``open`` in whose mode is a letter for writing."""
    modes = [*call.args[0 if isinstance(call.func, ast.Attribute) else 1 :], *(k.value for k in call.keywords)]
    texts = [mode.value for mode in modes if isinstance(mode, ast.Constant) and isinstance(mode.value, str)]
    return last_name(call.func) == "open" and any(WRITES & set(text) for text in texts[:1])


def loads(node: ast.AST) -> set[str]:
    """The names that are read in a node."""
    nodes = list(ast.walk(node))
    found = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return found.union(*map(names_in_text, nodes))


def attributes_set(source: str) -> list[list[str]]:
    """The attributes that a file sets, as the names on the way: ``a.b.c = 1`` is [a, b, c]."""
    try:
        nodes = nodes_of(parsed(source))
    except SyntaxError:
        return []
    found = []
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names, inner = [node.attr], node.value
            while isinstance(inner, ast.Attribute):
                names, inner = [inner.attr, *names], inner.value
            if isinstance(inner, ast.Name) and inner.id != "self":
                found.append([inner.id, *names])
    return found
