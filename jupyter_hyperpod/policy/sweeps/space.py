"""The space of a sweep: which values each name may take, as people write them. Pure."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.errors import SpecError

Value = bool | int | float | str | None
LOG = "log"
_NUMBER = r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_SPAN = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?::(\w*))?")
_INT = re.compile(r"[+-]?\d+(?:_\d+)*")
_WORDS: Mapping[str, Value] = {"true": True, "false": False, "none": None}
_EXAMPLE = "write for example --sweep lr=1e-4,3e-4 or --sweep lr=1e-4..1e-1:log"


@dataclass(frozen=True, slots=True)
class Choices:
    """A list of values. Raises SpecError for an empty list, for a value that is there twice and for no plain value.

    ``words``: the values as they were written, where somebody wrote them.
    """

    values: tuple[Value, ...]
    words: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.values:
            raise SpecError(f"a list of values is empty; {_EXAMPLE}")
        seen = set[tuple[str, str]]()
        for value in self.values:
            _check(value)
            key = (type(value).__name__, repr(value))
            if key in seen:
                raise SpecError(f"the value {value!r} is there twice; each would be tried as often as it is written")
            seen.add(key)

    def at(self, share: float) -> Value:
        """The value at a share of the list, from 0 to less than 1."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def __str__(self) -> str:
        return ",".join(_written(value) for value in self.values)


@dataclass(frozen=True, slots=True)
class NumberRange:
    """All numbers from ``low`` to ``high``; ``whole``: integers only; ``logarithmic``: each decade is as likely."""

    low: float
    high: float
    logarithmic: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise SpecError(f"the range {self} has no room: its first number must be smaller than its second")
        if self.logarithmic and self.low <= 0:
            raise SpecError(f"the range {self} begins at {self.low:g}; a logarithmic one begins above 0")

    def at(self, share: float) -> Value:
        """The number at a share of the range, from 0 to less than 1."""
        if self.whole and not self.logarithmic:
            return int(self.low) + min(int(share * (self.high - self.low + 1)), int(self.high - self.low))
        ends = (math.log(self.low), math.log(self.high)) if self.logarithmic else (self.low, self.high)
        found = ends[0] * (1 - share) + ends[1] * share
        number = math.exp(found) if self.logarithmic else found
        rounded = round(number) if self.whole else float(f"{number:.6g}")  # the last bits of a logarithm may differ
        return min(self.high, max(self.low, rounded))

    def __str__(self) -> str:
        return f"{self.low!r}..{self.high!r}" + (f":{LOG}" if self.logarithmic else "")


Axis = Choices | NumberRange
Space = Mapping[str, Axis]


def parse(texts: Sequence[str]) -> dict[str, Axis]:
    """The space of ``NAME=VALUES`` texts. Raises SpecError with what was found and what is expected."""
    space: dict[str, Axis] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip()
        if not equals:
            raise SpecError(f"--sweep {text[:80]!r} has no values; {_EXAMPLE}")
        check_name(name)
        if name in space:
            raise SpecError(f"--sweep {name} is given twice; write all its values in one list")
        space[name] = parse_axis(name, values)
    return space


def check_name(name: str) -> None:
    """Raise SpecError for what cannot be the name of a variable."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise SpecError(f"{name[:80]!r} cannot be the name of a variable; {_EXAMPLE}")


def parse_axis(name: str, text: str) -> Axis:
    """``a,b,c``, ``low..high`` or ``low..high:log``. Raises SpecError that begins with the name."""
    try:
        if "..." in text and _SPAN.fullmatch(text.strip()):
            raise SpecError(f"{text.strip()[:80]!r} has three points; a range has two, such as 1..3")
        if found := _SPAN.fullmatch(text.strip()):
            low, high, scale = found.groups()
            if scale not in (None, LOG):
                raise SpecError(f"the range {text.strip()!r} ends with {scale!r}; expected {LOG!r} or nothing")
            whole = all(_INT.fullmatch(end) for end in (low, high))
            kind = int if whole else float
            return NumberRange(kind(low), kind(high), logarithmic=scale == LOG, whole=whole)
        words = _words(text)
        return Choices(tuple(map(_value, words)), tuple(map(_bare, words)))
    except SpecError as error:
        raise SpecError(f"--sweep {name}: {error}") from None


def _words(text: str) -> list[str]:
    if not text.strip():
        raise SpecError(f"there are no values; {_EXAMPLE}")
    words = _split(text)
    if not all(words):
        raise SpecError(f"{text[:80]!r} has an empty value between its commas")
    if any(word[0] in "([{" for word in words):
        raise SpecError(
            f"{text[:80]!r} has a tuple, a list or a dictionary; a sweep tries numbers, text, True, False, None. Let "
            "one of them choose: `which = 0` and `betas = [(0.9, 0.99), (0.8, 0.9)][which]`, with --sweep which=0,1; "
            "quotation marks around it make it text"
        )
    return words


def _split(text: str) -> list[str]:
    """The words between commas outside quotation marks."""
    words, quote = [""], ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and not words[-1].strip():
            quote = letter
        elif letter == ",":
            words.append("")
            continue
        words[-1] += letter
    if quote:
        raise SpecError(f"{text[:80]!r} has a quotation mark that is not closed")
    return [word.strip() for word in words]


def _bare(word: str) -> str:
    """A word without its quotation marks."""
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word


def _value(word: str) -> Value:
    if (bare := _bare(word)) is not word:
        return bare
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    if _INT.fullmatch(word):
        return int(word)
    if ".." in word:
        raise SpecError(f"{word[:80]!r} is not a range of two numbers, such as 1..8 or 1e-4..1e-1:log, by itself")
    try:
        number = float(word)
    except ValueError:
        return word
    _check(number)
    return number


def _check(value: object) -> None:
    if not isinstance(value, bool | int | float | str | None):
        raise SpecError(f"{value!r:.80} is a {type(value).__name__}; expected numbers, text, True, False or None")
    if isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"{value} is not a finite number; expected numbers that can be compared")


def _written(value: Value) -> str:
    """A value as `parse_axis` reads it."""
    if not isinstance(value, str):
        return repr(value)
    quote = "'" if '"' in value else '"'
    return f"{quote}{value}{quote}"


def size(space: Space) -> int | None:
    """How many points a space of lists has; None where a range is in it."""
    count = 1
    for axis in space.values():
        if isinstance(axis, NumberRange):
            return None
        count *= len(axis.values)
    return count


def different(space: Space) -> int | None:
    """How many different points a space has; None where a range of numbers with fractions is in it."""
    count = 1
    for axis in space.values():
        if isinstance(axis, Choices):
            count *= len(axis.values)
        elif axis.whole:
            count *= int(axis.high) - int(axis.low) + 1
        else:
            return None
    return count


def to_json(space: Space) -> dict[str, Any]:
    """A space for JSON; inverse of `from_json`."""
    return {
        name: {"values": list(axis.values)}
        if isinstance(axis, Choices)
        else {"low": axis.low, "high": axis.high, "logarithmic": axis.logarithmic, "whole": axis.whole}
        for name, axis in space.items()
    }


def from_json(record: Mapping[str, Any]) -> dict[str, Axis]:
    """Inverse of `to_json`. Raises SpecError."""
    try:
        return {
            name: Choices(tuple(axis["values"])) if "values" in axis else NumberRange(**axis)
            for name, axis in record.items()
        }
    except (TypeError, KeyError, AttributeError) as error:
        raise SpecError(f"the space of a sweep cannot be read: {error!r}") from None
