"""Writes into the source of a function or a class the values that it has here, where its text would give others.

Default arguments and the attributes of a class were computed when it was defined; a trial would compute them again.
"""

from __future__ import annotations

import ast
import builtins
import enum
import inspect
import math
import sys
import types
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from typing import Any

from ...core.errors import SpecError
from .same_values import PLAIN, alike, equal, is_definition, is_torch_module

LARGEST_LITERAL = 100_000
NOTHING = object()
_CHANGING = frozenset(
    "append appendleft extend insert remove pop popitem clear update setdefault add discard sort reverse".split()
)
_GROWING = (list, dict, set)
_PLAIN_NODES = (
    *(ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Name, ast.BinOp, ast.UnaryOp, ast.Subscript),
    *(ast.operator, ast.unaryop, ast.expr_context),
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def literal(value: Any) -> str | None:
    """A plain value as it is written in Python; None for anything else."""
    if type(value) is float and not math.isfinite(value):
        return f"float('{value}')"
    text = repr(value) if isinstance(value, PLAIN) else ""
    try:
        same = 0 < len(text) <= LARGEST_LITERAL and equal(ast.literal_eval(text), value)
        return text if same else None
    except (ValueError, SyntaxError, RecursionError, MemoryError, RuntimeError, TypeError):
        return None


def written(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """The value of an expression of plain values and ``known`` names, without a call; `NOTHING` for any other."""
    for part in ast.walk(node):
        if not isinstance(part, _PLAIN_NODES) or (isinstance(part, ast.Name) and part.id not in known):
            return NOTHING
    with suppress(Exception):  # the code may be wrong
        return eval(compile(ast.Expression(node), "<value>", "eval"), {"__builtins__": {}}, dict(known))  # noqa: S307 - no call
    return NOTHING


def with_present_values(thing: Any, source: str) -> str:
    """The source of a function or a class, whose default arguments and attributes are as they are here.

    Raises SpecError for a default that is no plain value and that its text would not give again, and for what of a
    class was changed here and cannot be written.
    """
    edits: list[tuple[ast.expr, str]] = []
    for function, node in _functions(thing, source):
        used_up = changed_by_itself(node) | _added_to(node)
        for name, expression, value in _defaults(function, node):
            if name in used_up and _is_made_anew(expression, function):
                continue
            text = literal(value)
            found = written(expression, {})
            if isinstance(value, _GROWING) and found is not NOTHING and not equal(found, value):
                raise SpecError(
                    f"the default {name} of {thing.__name__} is {value!r:.60} here, and {found!r:.60} in its source: a "
                    f"call has changed it; make it inside the function, or define {thing.__name__} again"
                )
            if text is None and not _gives(expression, value, function):
                raise SpecError(
                    f"{thing.__name__} has the default {name}={ast.unparse(expression)}, a {type(value).__name__} that "
                    "exists only here; make it inside the function"
                )
            if text is not None and not equal(found, value):
                edits.append((expression, text))
    if inspect.isclass(thing):
        edits += _changed_attributes(thing, source)
    return _edited(source, edits)


def _edited(source: str, edits: list[tuple[ast.expr, str]]) -> str:
    """The source with other text for some of its expressions; columns are of bytes."""
    lines = [line.encode() for line in source.split("\n")]
    for node, text in sorted(edits, key=lambda one: (one[0].lineno, one[0].col_offset), reverse=True):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        before, behind = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
        lines[first : last + 1] = [before + text.encode() + behind]
    return b"\n".join(lines).decode()


def _functions(thing: Any, source: str) -> Iterator[tuple[Any, _Function]]:
    """A function, or those of a class, each with its place in the source."""
    top = ast.parse(source).body[0]
    nodes = top.body if isinstance(top, ast.ClassDef) else [top]
    for node in nodes:
        if isinstance(node, _Function):
            found = vars(thing).get(node.name) if isinstance(top, ast.ClassDef) else thing
            found = inspect.unwrap(getattr(found, "__func__", found)) if found is not None else None
            if inspect.isfunction(found) and found.__name__ == node.name:
                yield found, node


def _defaults(function: Any, node: _Function) -> Iterator[tuple[str, ast.expr, Any]]:
    """Name, text and present value of each default argument. Raises SpecError where there are more or fewer of them."""
    places, values = [*node.args.posonlyargs, *node.args.args], function.__defaults__ or ()
    keywords = {
        one.arg: text for one, text in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if text is not None
    }
    if len(values) != len(node.args.defaults) or keywords.keys() != (function.__kwdefaults__ or {}).keys():
        raise SpecError(
            f"{function.__name__} has other default arguments here than in its source; write them there, or give them "
            "in the space"
        )
    for one, expression, value in zip(places[len(places) - len(values) :], node.args.defaults, values, strict=True):
        yield one.arg, expression, value
    for name, expression in keywords.items():
        yield name, expression, function.__kwdefaults__[name]


def _added_to(node: ast.AST) -> set[str]:
    """Variables of a function that ``+=`` and the like change, which is in place for a list."""
    parts = (part.target for part in ast.walk(node) if isinstance(part, ast.AugAssign))
    return {part.id for part in parts if isinstance(part, ast.Name)}


def _is_made_anew(expression: ast.expr, function: Any) -> bool:
    """Whether the text of a default makes a plain value or an object of a class: not one that others have, too."""
    if isinstance(expression, ast.Call):
        plain = (written(one, {}) for one in [*expression.args, *(one.value for one in expression.keywords)])
        return isinstance(_named(expression.func, function.__globals__), type) and NOTHING not in plain
    return written(expression, {}) is not NOTHING


def _gives(expression: ast.expr, value: Any, function: Any) -> bool:
    """Whether the text of a default, computed again, means the same: a name, a lambda, or a class with plain values
    or names of classes."""
    if isinstance(expression, ast.Lambda):
        code, around = getattr(value, "__code__", None), function.__code__
        if code is None or code.co_name != "<lambda>" or code.co_filename != around.co_filename:
            return False
        return bool(around.co_firstlineno <= code.co_firstlineno <= _end(around))
    if isinstance(expression, ast.Call):
        kind = _named(expression.func, function.__globals__)
        given = [_argument(one, function) for one in expression.args]
        more = {str(one.arg): _argument(one.value, function) for one in expression.keywords}
        if not isinstance(kind, type) or NOTHING in given or NOTHING in more.values():
            return False
        if _is_module_class(kind) and not is_torch_module(value):
            return False  # another one would have other numbers, and take them from the generator of here
        with suppress(Exception):  # as above
            return alike(kind(*given, **more), value)
        return False
    return _named(expression, function.__globals__) is value


def _argument(expression: ast.expr, function: Any) -> Any:
    """The value of an argument that is plain, or the name of a class or a function; `NOTHING` for any other."""
    found = written(expression, {})
    named = _named(expression, function.__globals__) if found is NOTHING else NOTHING
    return named if is_definition(named) else found


def _is_module_class(kind: type) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(kind, torch.nn.Module)


def _end(code: types.CodeType) -> int:
    return max((line for *_, line in code.co_lines() if line is not None), default=code.co_firstlineno)


def _named(expression: ast.expr, names: Mapping[str, Any]) -> Any:
    """What a name, or an attribute of one, means; `NOTHING` for another expression."""
    if isinstance(expression, ast.Attribute):
        return getattr(_named(expression.value, names), expression.attr, NOTHING)
    if not isinstance(expression, ast.Name):
        return NOTHING
    return names.get(expression.id, getattr(builtins, expression.id, NOTHING))


def _changed_attributes(thing: Any, source: str) -> Iterator[tuple[ast.expr, str]]:
    """The texts of attributes of a class that are other plain values here, with these values. Raises SpecError."""
    top = ast.parse(source).body[0]
    assert isinstance(top, ast.ClassDef)
    names = vars(sys.modules.get(thing.__module__, builtins))
    once = bound(top)
    for name, expression, value, found in class_changes(thing, top, names, changed_by_itself(top)):
        text = literal(value)
        if text is not None and once[name] == 1 and not top.decorator_list and type(thing) is type:
            yield expression, text
        elif found is not NOTHING:
            raise SpecError(
                f"{thing.__name__}.{name} is {value!r:.60} here, and {found!r:.60} in the source of the class; write "
                "it there"
            )


def class_changes(
    thing: type, top: ast.ClassDef, names: Mapping[str, Any], itself: Container[str]
) -> Iterator[tuple[str, ast.expr, Any, Any]]:
    """Name, text, present value and the text's value of each attribute of a class for which the two are not known to
    be the same. ``itself``: names that its own code changes, which are left out, as are those that it binds more than
    once where no plain statements tell the value. Raises SpecError for a method that was replaced."""
    if isinstance(thing, enum.EnumMeta):
        return
    counts, last = bound(top), _last_values(top, names)
    known = {**names, **vars(thing)}
    known = {name: value for name, value in known.items() if counts[name] < 2}
    for node in top.body:
        if isinstance(node, _Function) and not (node.decorator_list or top.decorator_list) and node.name not in itself:
            method = _without_wrapper_of_a_base(vars(thing).get(node.name), thing)
            check_function(method, f"{thing.__qualname__}.{node.name}", thing.__module__)
        name, expression = assigned(node)
        if expression is not None and name in vars(thing) and name not in itself:
            value, found = vars(thing)[name], written(expression, known)
            if counts[name] > 1 and (found := last.pop(name, NOTHING)) is NOTHING:
                continue
            if not equal(found, value) and not hasattr(value, "__get__"):
                yield name, expression, value, found


def _without_wrapper_of_a_base(method: Any, thing: type) -> Any:
    """The method that the text gives, where a base class of the same package as the wrapper wraps those of every
    subclass, as scikit-learn's TransformerMixin does."""
    packages = {
        str(base.__module__).partition(".")[0]
        for base in thing.__mro__[1:-1]
        if "__init_subclass__" in vars(base) and base.__module__ not in ("__main__", thing.__module__)
    }
    while inspect.isfunction(method) and hasattr(method, "__wrapped__"):
        if str(method.__globals__.get("__name__")).partition(".")[0] not in packages:
            break
        method = method.__wrapped__
    return method


def _last_values(top: ast.ClassDef, names: Mapping[str, Any]) -> dict[str, Any]:
    """What the names of a class have behind its last statement, of those that only plain statements bind."""
    found, times = dict[str, Any](), Counter[str]()
    for node in top.body:
        name, expression = assigned(node)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            name, before = node.target.id, ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
            expression = ast.copy_location(ast.BinOp(before, node.op, node.value), node)
        if expression is not None:
            known = {one: value for one, value in {**names, **found}.items() if value is not NOTHING}
            found[name] = written(expression, known)
            times[name] += 1
    return {name: value for name, value in found.items() if value is not NOTHING and times[name] == bound(top)[name]}


def changed_by_itself(tree: ast.AST) -> set[str]:
    """Names of variables and attributes that code changes by itself, but for those of ``self``: no settings."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            found.update(node.names)
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            found.add(_last_name(node.value))
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                found.add(node.attr)
        elif (place := changed_place(node)) is not None:
            found.add(_last_name(place))
    return found


def changed_place(node: ast.AST) -> ast.expr | None:
    """What of a variable a part of code sets, or changes by a call such as ``append``."""
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
        return node.func.value
    return None


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def check_function(value: Any, name: str, module: str) -> None:
    """Raise SpecError where a function of this qualified name was replaced by something else."""
    value = getattr(value, "__func__", value)
    if value is None:
        return
    same = (getattr(value, "__module__", ""), getattr(value, "__qualname__", "")) == (module, name)
    if not same or hasattr(value, "__wrapped__"):
        raise SpecError(
            f"{name} was replaced here by {getattr(value, '__qualname__', type(value).__name__)}, and a trial has "
            f"what {'its file' if module != '__main__' else 'its source'} says; write it there, or call the other one"
        )


def bound(tree: ast.Module | ast.ClassDef) -> Counter[str]:
    """How often each name of a module or a class is bound, outside its functions and inner classes."""
    found: Counter[str] = Counter()
    waiting: list[ast.AST] = [*tree.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] += 1
            continue
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found[node.id] += 1
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(one.asname or one.name.partition(".")[0] for one in node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found[node.name] += 1
        waiting.extend(ast.iter_child_nodes(node))
    return found


def assigned(node: ast.stmt) -> tuple[str, ast.expr | None]:
    """The name and the right side of a plain assignment of one name; ("", None) for another statement."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id, node.value
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        return node.target.id, node.value
    return "", None
