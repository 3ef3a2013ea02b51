"""Variables that a program reads by a text: ``globals()["a"]``, ``eval("a + b")``, also by a text that it computes."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

from .syntax import last_name

LONGEST_TEXT = 200  # characters; what is longer is documentation
_NAME = re.compile(r"[A-Za-z_]\w*")
# What is asked of all variables that reads none of their values, or one by its name.
_ASKED = frozenset("__contains__ clear get keys pop setdefault update".split())
_NAMED_ONLY = frozenset("compile eval exec len".split())  # functions that are given all variables
_ATTRIBUTES, _FUNCTIONS = ("__globals__", "f_globals", "f_locals"), ("globals", "locals", "vars")  # all variables
EVERYTHING = ("", None)  # instead of how a name begins and ends: every variable is read


def names_in_text(node: ast.AST) -> Iterator[str]:
    """The variables that a node reads by text: ``globals()["a"]``, ``globals().get("a")``, ``eval("a + b")``."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        if is_namespace(node.value) or last_name(node.value) == "__dict__":
            yield from _texts([node.slice])
    elif isinstance(node, ast.Call):
        function, texts = last_name(node.func), list(_texts(node.args))
        if function == "get" and isinstance(node.func, ast.Attribute) and is_namespace(node.func.value):
            yield from texts[:1]
        elif function == "eval" and texts:
            with suppress(SyntaxError, ValueError):
                yield from (inner.id for inner in ast.walk(ast.parse(texts[0])) if isinstance(inner, ast.Name))


def computed_name(node: ast.AST, parent: ast.AST | None) -> tuple[str, str | None] | None:
    """How the name of a variable begins and ends that a node reads and that is computed: ``globals()[f"best_{name}"]``,
    ``globals().get(name)``, ``getattr(meter, f"count_{kind}")``, ``eval(text)``; `EVERYTHING` for
    ``globals().items()``; None where it reads none."""
    if is_namespace(node):
        return EVERYTHING if _is_given_away(node, parent) else None
    if isinstance(node, ast.Subscript):
        return _ends(node.slice) if is_namespace(node.value) and isinstance(node.ctx, ast.Load) else None
    if not isinstance(node, ast.Call) or not node.args:
        return None
    if isinstance(node.func, ast.Name):
        if node.func.id == "getattr" and len(node.args) > 1:
            ends = _ends(node.args[1])
            return ends if ends is not None and any(ends) else None
        return ("", "") if node.func.id == "eval" and not isinstance(node.args[0], ast.Constant) else None
    holder = node.func.value if isinstance(node.func, ast.Attribute) else None
    asks = holder is not None and is_namespace(holder) and last_name(node.func) == "get"
    return _ends(node.args[0]) if asks else None


def _is_given_away(node: ast.AST, parent: ast.AST | None) -> bool:
    """Whether all variables are taken, not one of them: ``globals().items()``, ``dict(globals())``."""
    if isinstance(parent, ast.Attribute):
        return parent.attr not in _ASKED
    if isinstance(parent, ast.Call):
        return last_name(parent.func) not in _NAMED_ONLY
    return not isinstance(parent, (ast.Subscript, ast.Compare, ast.keyword, ast.Assign, ast.Expr))


def namespaces_in(source: str, tree: ast.AST) -> frozenset[str]:
    """The variables of a file that hold the dictionary of all variables, and nothing else: ``scope = globals()``."""
    if not any(word in source for word in (*_ATTRIBUTES, *_FUNCTIONS)):
        return frozenset()  # most files: to go through the tree takes as long as parsing
    found: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and is_namespace(node.value):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
            others.update(inner.id for inner in ast.walk(node.value) if isinstance(inner, ast.Name))
        elif isinstance(node, ast.arg):
            others.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            others.update(alias.asname or alias.name for alias in node.names)
        else:
            others.update(
                inner.id
                for inner in ast.iter_child_nodes(node)
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, (ast.Store, ast.Del))
            )
    return frozenset(found - others)


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


def fits(name: str, stems: Collection[str]) -> bool:
    """Whether a name may be built of one of these words and something else: ``calls`` and ``_train``."""
    return any(
        name[:place].strip("_") in stems or name[place:].strip("_") in stems
        for place, letter in enumerate(name)
        if letter == "_"
    )


def is_namespace(node: ast.AST) -> bool:
    """Whether an expression is the dictionary of all variables."""
    if isinstance(node, ast.Attribute):
        return node.attr in _ATTRIBUTES
    return isinstance(node, ast.Call) and not node.args and last_name(node.func) in _FUNCTIONS


def _texts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    yield from (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def loads(node: ast.AST) -> set[str]:
    """The names that are read in a node."""
    nodes = list(ast.walk(node))
    found = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return found.union(*map(names_in_text, nodes))
