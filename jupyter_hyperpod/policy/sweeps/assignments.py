"""Gives names of a cell other values, in the code itself: what runs is what is stored, and it runs alone, too. Pure.

The value replaces the expression of the one assignment of that name at the top of the code. What is computed from it
further down follows, which it would not if the values were set after a whole cell of parameters. Where the value
could be lost (no assignment, a second one, one inside a block) the code is refused.
"""

from __future__ import annotations

import ast
import copy
import symtable
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ...core.errors import SpecError
from ...core.options import near_matches
from ...core.units import few
from .space import Value

_BLOCKS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SEES_ALL = frozenset({"exec", "eval", "globals", "locals", "vars"})
EVERYTHING = "*"


@dataclass(frozen=True)
class Binding:
    """A place that gives a name of the module a value: its line, and in words what does it."""

    line: int
    what: str


def with_values(source: str, values: Mapping[str, Value], what: str = "the cell", *, own: bool = True) -> str:
    """The code with other values; each line keeps its number. Raises SpecError where a value could be lost.

    ``own``: the values that the code has are its author's, not those of another trial: others are to be like them.
    """
    tree = ast.parse(source)
    places = {name: _place(tree, name, value, what) for name, value in values.items()}
    for name, node in places.items() if own else ():
        _check_kind(node, name, values[name])
    lines = source.encode().split(b"\n")
    for name, node in sorted(places.items(), key=lambda one: -_start(one[1])):
        _replace(lines, node, repr(values[name]))
    replaced = b"\n".join(lines).decode()
    if {name: _literal(replaced, name) for name in values} != dict(values):
        raise SpecError(f"{what} is written in a way in which no value can be replaced; end its lines with a newline")
    return replaced


def _literal(source: str, name: str) -> object:
    """The value that the code gives to a name now."""
    try:
        found = next(node for node in ast.parse(source).body if simple_name(node) == name)
        assert isinstance(found, ast.Assign | ast.AnnAssign) and found.value is not None
        return ast.literal_eval(found.value)
    except (SyntaxError, ValueError, StopIteration):
        return Ellipsis


def bound_names(source: str) -> set[str]:
    """The names that the top of the code binds."""
    return set(_bindings(ast.parse(source)))


def may_log(source: str, name: str) -> bool:
    """Whether the code has the name as an argument's or as text, or logs values whose names are not in the code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == name or isinstance(node, ast.Constant) and node.value == name:
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "log":
            if node.args or any(word.arg is None for word in node.keywords):
                return True
    return False


def _start(node: ast.expr) -> int:
    return node.lineno * 1_000_000 + node.col_offset


def _replace(lines: list[bytes], node: ast.expr, literal: str) -> None:
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    before, after = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
    if first == last:
        lines[first] = before + literal.encode() + after
        return
    lines[first] = before + f"({literal}".encode()
    lines[first + 1 : last] = [b""] * (last - first - 1)
    lines[last] = b")" + after


def _place(tree: ast.Module, name: str, value: Value, what: str) -> ast.expr:
    """The expression that is to be replaced."""
    known = _bindings(tree)
    found = known.get(name, [])
    if not found:
        raise SpecError(
            f"--sweep {name}: {what} assigns no {name} at its top level{near_matches(name, sorted(known))}; write a "
            f"line such as `{name} = {value!r}` and use {name} below it"
        )
    at = next((node for node in tree.body if simple_name(node) == name), None)
    if at is None:
        where = few([f"{one.what} in line {one.line}" for one in found])
        raise SpecError(
            f"--sweep {name}: {what} gives {name} its value by {where}; a sweep needs one plain line `{name} = …` "
            "that is not inside a block"
        )
    if len(found) > 1:
        other = next(one for one in found if one.line != at.lineno or one is not found[0])
        raise SpecError(
            f"--sweep {name}: {what} gives {name} a value in line {at.lineno} and again by {other.what} in line "
            f"{other.line}, where a trial's value would be lost; use another name there"
        )
    if stars := [one for one in known.get(EVERYTHING, []) if one.line > at.lineno]:
        raise SpecError(
            f"--sweep {name}: the import of everything in line {stars[0].line} may replace {name}; move it to the top, "
            "or import the names that are needed"
        )
    if not _is_read(tree, name):
        raise SpecError(
            f"--sweep {name}: {what} assigns {name} in line {at.lineno} and never uses it, so all trials would be the "
            f"same; arguments, attributes and inner variables that are called {name}, too, are other variables"
        )
    assert isinstance(at, ast.Assign | ast.AnnAssign) and at.value is not None
    return at.value


def simple_name(node: ast.stmt) -> str | None:
    """The name in ``name = …`` or ``name: kind = …``."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    if isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
        return node.target.id
    return None


def _check_kind(present: ast.expr, name: str, value: Value) -> None:
    """Refuse text where the code has a number: then a word was meant as code, or a number is misspelt."""
    if isinstance(present, ast.UnaryOp):
        present = present.operand
    number = isinstance(present, ast.Constant) and isinstance(present.value, int | float)
    if isinstance(value, str) and number:
        raise SpecError(f"--sweep {name}: the value {value!r} is text, and the code has a number there")


class _AsGenerators(ast.NodeTransformer):
    """Writes comprehensions as generators, which have a scope of their own in every version of Python."""

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        return self.generic_visit(ast.GeneratorExp(node.elt, node.generators))

    def visit_SetComp(self, node: ast.SetComp) -> ast.AST:
        return self.generic_visit(ast.GeneratorExp(node.elt, node.generators))

    def visit_DictComp(self, node: ast.DictComp) -> ast.AST:
        pair = ast.Tuple([node.key, node.value], ast.Load())
        return self.generic_visit(ast.GeneratorExp(pair, node.generators))


def _is_read(tree: ast.Module, name: str) -> bool:
    """Whether anything reads the module's variable, or may read all of them."""
    try:
        text = ast.unparse(ast.fix_missing_locations(_AsGenerators().visit(copy.deepcopy(tree))))
        table = symtable.symtable(text, "cell", "exec")
    except SyntaxError:  # what only a cell may have
        return True
    return any(_reads(table, one) for one in (name, *_SEES_ALL))


def _reads(table: symtable.SymbolTable, name: str) -> bool:
    """Whether a block, or one in it, reads the module's variable of this name."""
    if name in table.get_identifiers():
        symbol = table.lookup(name)
        of_module = table.get_type() in ("module", "class") or symbol.is_global()
        if symbol.is_referenced() and of_module:
            return True
    return any(_reads(inner, name) for inner in table.get_children())


def _bindings(tree: ast.Module) -> dict[str, list[Binding]]:
    """All places that bind a name of the module, by name."""
    found: defaultdict[str, list[Binding]] = defaultdict(list)
    for name, line, what in _bound_in(tree.body):
        found[name].append(Binding(line, what))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for name, line in _globals_set_in(node):
                found[name].append(Binding(line, f"the function {node.name}"))
        elif isinstance(node, ast.Call | ast.Subscript):
            for name, what in _bound_by_text(node):
                found[name].append(Binding(node.lineno, what))
    return found


def _bound_by_text(node: ast.Call | ast.Subscript) -> Iterator[tuple[str, str]]:
    """Names of the module that are set as text: ``globals()["lr"] = …``, ``globals().update(lr=…)``, ``exec("lr = …")``
    and ``setattr(sys.modules["__main__"], "lr", …)``; each with what sets it.
    """
    if isinstance(node, ast.Subscript):
        if not isinstance(node.ctx, ast.Load) and _is_namespace(node.value) and (name := _text(node.slice)):
            yield name, f"`{ast.unparse(node)}`"
        return
    called, first = node.func, node.args[0] if node.args else None
    if isinstance(called, ast.Attribute) and called.attr in ("update", "setdefault") and _is_namespace(called.value):
        keys = [_text(key) for key in first.keys] if isinstance(first, ast.Dict) else []
        named = [word.arg for word in node.keywords]
        told = [_text(first)] if called.attr == "setdefault" else []
        yield from ((name, f"`{ast.unparse(called)}`") for name in (*keys, *named, *told) if name)
    elif isinstance(called, ast.Name) and called.id == "exec" and first is not None and (code := _text(first)):
        try:
            bound = {name for name, _, _ in _bound_in(ast.parse(code).body)}
        except (SyntaxError, ValueError):
            return
        yield from ((name, "`exec`") for name in bound)
    elif isinstance(called, ast.Name) and called.id == "setattr" and len(node.args) == 3:
        if ast.unparse(node.args[0]).startswith("sys.modules[") and (name := _text(node.args[1])):
            yield name, "`setattr`"


def _is_namespace(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("globals", "locals", "vars")
    )


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _bound_in(nodes: Collection[ast.AST]) -> Iterator[tuple[str, int, str]]:
    for node in nodes:
        yield from _bound_by(node)


def _bound_by(node: ast.AST) -> Iterator[tuple[str, int, str]]:
    """What a node of the module's own scope binds, and its parts."""
    line = getattr(node, "lineno", 0)
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id, line, "an assignment" if isinstance(node.ctx, ast.Store) else "`del`"
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name, line, "a definition"
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield (alias.asname or alias.name).partition(".")[0], line, "an import"
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name, line, "an exception"
    elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name, line, "a pattern"
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest, line, "a pattern"
    if isinstance(node, _BLOCKS):
        yield from _bound_in([*getattr(node, "decorator_list", []), *_defaults(node)])
    elif isinstance(node, _COMPREHENSIONS):  # their own names stay inside, those of := do not
        inside = (one for one in ast.walk(node) if isinstance(one, ast.NamedExpr))
        yield from ((one.target.id, one.lineno, "`:=`") for one in inside)
    else:
        yield from _bound_in(list(ast.iter_child_nodes(node)))


def _defaults(node: ast.AST) -> list[ast.expr]:
    arguments = getattr(node, "args", None)
    found = [*arguments.defaults, *filter(None, arguments.kw_defaults)] if arguments else []
    return [*found, *getattr(node, "bases", [])]


def _globals_set_in(function: ast.AST) -> Iterator[tuple[str, int]]:
    """The names that a function declares global and sets, with the line."""
    declared = {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}
    for node in ast.walk(function) if declared else ():
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and node.id in declared:
            yield node.id, node.lineno
