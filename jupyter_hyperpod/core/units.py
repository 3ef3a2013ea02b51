"""Parses and prints bytes, durations, counts and money as people write them; shortens long texts."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from .errors import SpecError

_BINARY = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_WORDS = {"millisecond": 1e-3, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}
_SECONDS |= _WORDS | {f"{word}s": seconds for word, seconds in _WORDS.items()}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGTP]?)(i?)B?\s*", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_TERM = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*")


def parse_bytes(text: str) -> int:
    """Return the number of bytes in ``"8MB"`` (decimal), ``"8MiB"`` (binary) or ``"4096"``.

    Raises SpecError for anything else.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise SpecError(f"size {text!r} is not a number of bytes; write for example 8MB, 1.5GiB or 4096")
    number, prefix, binary = match.groups()
    factor = (_BINARY if binary else _DECIMAL)[prefix.upper()]
    return round(float(number) * factor)


def format_bytes(count: float) -> str:
    """Print a number of bytes with three significant digits, decimal units."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < (1000 if unit == "B" else 999.5):
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB" if abs(count) < 999.5 else f"{count:.0f} PB"


def parse_duration(text: str) -> float:
    """Return the seconds in ``"250ms"``, ``"30"``, ``"5 minutes"`` or ``"1h30min"``; raises SpecError."""
    rest, seconds = text.strip(), 0.0
    if is_number(rest):
        return float(rest)
    while match := _TERM.match(rest):
        number, unit = match.groups()
        if unit not in _SECONDS:
            break
        seconds, rest = seconds + float(number) * _SECONDS[unit], rest[match.end() :]
    if rest or not text.strip():
        raise SpecError(f"duration {text!r} is not a time; write for example 250ms, 30s, 5min or 2h")
    return seconds


def is_number(text: str) -> bool:
    """Whether the text is a number without a unit."""
    return _NUMBER.fullmatch(text.strip()) is not None


def format_duration(seconds: float) -> str:
    """Print a duration as a person would say it: ``12 ms``, ``1.5 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def format_number(value: float) -> str:
    """Print three significant digits without an exponent, thousands separated: ``1,840``, ``12.3``, ``0.000278``."""
    rounded = float(f"{value:.3g}")
    if not math.isfinite(rounded) or rounded == 0:
        return f"{rounded:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(rounded))))
    text = f"{rounded:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


def format_rate(per_s: float, noun: str) -> str:
    """Print how often something happens: ``1,840 samples/s``."""
    return f"{format_number(per_s)} {noun}s/s"


def format_money(amount: float) -> str:
    """Print dollars with thousands separators: ``$25,600,000``, ``-$1.50``, ``$0``."""
    sign = "-" if amount < 0 else ""
    return f"{sign}${abs(amount):,.0f}" if amount == 0 or abs(amount) >= 100 else f"{sign}${abs(amount):,.2f}"


def plural(number: int, noun: str) -> str:
    """Print a count with its noun: ``1 node``, ``2 nodes``, ``1,000 micro-batches``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "es" if noun.endswith(("ch", "s", "x")) else "s")


def code_lines(source: str) -> str:
    """Print how many lines a cell or a file has, without blank ones at its ends: ``20 lines``."""
    return plural(len(source.strip().splitlines()), "line")


def few(names: Sequence[object], most: int = 3) -> str:
    """Print the first ``most`` names, and the number of the others: ``a, b, c and 2 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def cut(text: str, most: int) -> str:
    """Return `text`, or its first `most` characters and the number of characters left out."""
    more = len(text) - most
    return text if more <= 0 else f"{text[:most]}… ({plural(more, 'character')} more)"


def first_line(text: str, most: int) -> str:
    """Return the first line of `text`, at most `most` characters of it; ``…`` stands for what is left out."""
    whole = text.strip()
    line = (whole.splitlines() or [""])[0][:most]
    return line if line == whole else f"{line}…"
