"""Variables that a program reads by a text: ``globals()["a"]``, ``eval("a + b")``, also by a text that it computes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

from .syntax import last_name

LONGEST_TEXT = 200  # characters; what is longer is documentation
_NAME = re.compile(r"[A-Za-z_]\w*")


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


def _is_namespace(node: ast.AST) -> bool:
    """Whether an expression is the dictionary of all variables."""
    return isinstance(node, ast.Call) and last_name(node.func) in ("globals", "locals", "vars")


def _texts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    yield from (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def loads(node: ast.AST) -> set[str]:
    """The names that are read in a node."""
    nodes = list(ast.walk(node))
    found = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return found.union(*map(names_in_text, nodes))
