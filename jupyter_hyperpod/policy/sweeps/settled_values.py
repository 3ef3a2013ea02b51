"""Reads the values of a sweep as the kind of value that the code itself has: text stays text, a float a float. Pure.

What is written as ``1`` may be a number or a word, and only the code says which is meant. A value that cannot be of the
code's kind is refused.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ...core.errors import SpecError
from .assignments import simple_name
from .space import Axis, Choices, NumberRange, Space, Value

_PLAIN: Mapping[str, type] = {"bool": bool, "int": int, "float": float, "str": str}
_CALLED: Mapping[type, str] = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}
_SEVERAL = {
    ast.Tuple: "a tuple",
    ast.List: "a list",
    ast.Dict: "a dictionary",
    ast.Set: "a set",
    ast.ListComp: "a list",
    ast.DictComp: "a dictionary",
    ast.SetComp: "a set",
}


@dataclass(frozen=True)
class CodeKind:
    """What the code has for a name: ``kind`` of its value, in words with its line, and whether it may be None."""

    kind: type
    what: str
    may_be_none: bool = False


def settled(source: str, tried: Space, left_out: Collection[str] = ()) -> dict[str, Axis]:
    """The space with each value as the kind that the code has for its name. Raises SpecError for one that cannot be.

    ``left_out``: names whose values do not go into the code. Where the code computes its value, or has None, all kinds
    of values stay as they are written.
    """
    found: dict[str, Axis] = {}
    present = {name: node for node in ast.parse(source).body if (name := simple_name(node)) is not None}
    for name, axis in tried.items():
        node = present.get(name) if name not in left_out else None
        known = _kind_of(node, name) if node is not None else None
        if known is None:
            found[name] = axis
            continue
        try:
            found[name] = _range(axis, known) if isinstance(axis, NumberRange) else _choices(axis, known)
        except SpecError as error:
            raise SpecError(f"--sweep {name}: {error}") from None
    return found


def _kind_of(node: ast.stmt, name: str) -> CodeKind | None:
    assert isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
    line, value = node.lineno, node.value
    if several := _SEVERAL.get(type(value)):
        raise SpecError(
            f"--sweep {name}: the code has {several} in line {line}; a sweep tries numbers, text, True, False, None. "
            f"Let one of them choose: `which = 0` and `{name} = [FIRST, SECOND][which]`, with --sweep which=0,1"
        )
    if isinstance(node, ast.AnnAssign):
        words = [word.strip() for word in ast.unparse(node.annotation).strip("'\"").split("|")]
        kinds = [_PLAIN[word] for word in words if word in _PLAIN]
        if len(kinds) == 1 and set(words) <= {*_PLAIN, "None"}:
            return CodeKind(kinds[0], f"`{name}: {' | '.join(words)}` in line {line}", "None" in words)
    if isinstance(value, ast.JoinedStr):
        return CodeKind(str, f"text in line {line}")
    inner = value.operand if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub | ast.UAdd) else value
    if isinstance(inner, ast.Constant) and type(inner.value) in _CALLED:
        kind = type(inner.value)
        shown = ast.unparse(value)
        return CodeKind(kind, f"{_CALLED[kind]}, {shown[:40]}, in line {line}")
    return None


def _range(axis: NumberRange, known: CodeKind) -> Axis:
    if known.kind is float:
        return NumberRange(float(axis.low), float(axis.high), axis.logarithmic)
    if known.kind is int:
        if axis.whole:
            return axis
        if axis.low == int(axis.low) and axis.high == int(axis.high):
            return NumberRange(int(axis.low), int(axis.high), axis.logarithmic, whole=True)
        raise SpecError(
            f"the range {axis} has fractions, and the code has {known.what}; write whole ends such as 1..8, or a "
            "number with a point in the code"
        )
    raise SpecError(f"{axis} is a range of numbers, and the code has {known.what}; write a list of values")


def _choices(axis: Choices, known: CodeKind) -> Choices:
    words = axis.words or tuple(value if isinstance(value, str) else repr(value) for value in axis.values)
    values = tuple(_value(value, word, known) for value, word in zip(axis.values, words, strict=True))
    return Choices(values, axis.words)


def _value(value: Value, word: str, known: CodeKind) -> Value:
    """A value as the code's kind. Raises SpecError with what was found, what is expected, and what to do."""
    if value is None and (known.may_be_none or known.kind in (int, float)):
        return None
    if known.kind is str:
        return value if isinstance(value, str) else word
    expected = f"the code has {known.what}"
    if known.kind is bool:
        if isinstance(value, bool):
            return value
        raise SpecError(f"the value {word!r} is neither true nor false, and {expected}; write true, false or both")
    if isinstance(value, str):
        raise SpecError(f"the value {word!r} is text, and {expected}; write numbers, or text in the code")
    if isinstance(value, bool) or value is None:
        raise SpecError(f"the value {word!r} is no number, and {expected}; write numbers, or True in the code")
    if known.kind is float:
        return _float(value, word)
    if isinstance(value, float) and not value.is_integer():
        raise SpecError(
            f"the value {word!r} has a fraction, and {expected}; write whole numbers, or a number with a point "
            "in the code"
        )
    return int(value)


def _float(value: int | float, word: str) -> float:
    try:
        if math.isfinite(found := float(value)):
            return found
    except OverflowError:
        pass
    raise SpecError(f"the value {word[:40]!r} is too large for a number with a point")
