"""Parses the rates, times, counts and money of a plan. Units are required, because a wrong one changes everything."""

from __future__ import annotations

import re

from ..core.errors import SpecError
from ..core.units import parse_duration

HOUR_S, DAY_S = 3600.0, 86400.0
HIGHEST_RATE = 0.1  # failures per instance-hour; beyond it the unit must be wrong
_NUMBER = r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
_RATE = re.compile(rf"\s*({_NUMBER}(?:e-?[0-9]+)?)\s*(%?)\s*(?:/\s*(h|d))?\s*", re.IGNORECASE)
_COUNT = re.compile(rf"\s*({_NUMBER}(?:e[0-9]+)?)\s*([kMGB]?)\s*")
_MONEY = re.compile(rf"\s*\$?\s*({_NUMBER})\s*(?:\$|USD)?\s*")
_FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}


def parse_rate(text: str) -> float:
    """Return failures per instance-hour of ``"0.05%"``, ``"0.05%/h"``, ``"1.2%/d"`` or ``"0.0005/h"``.

    Raises SpecError for anything else: a negative rate, a missing unit, or more than one failure in ten hours.
    """
    match = _RATE.fullmatch(text)
    if match is None:
        raise SpecError(f"rate {text!r} is not a failure rate; write for example 0.05%, 0.05%/h or 1.2%/d")
    number = float(match[1])
    if number < 0:
        raise SpecError(f"rate {text!r} is negative; expected how often an instance fails, for example 0.05%")
    if not match[2] and not match[3]:
        raise SpecError(
            f"rate {text!r} has no unit; expected failures per instance and hour: {text.strip()}%/h if it is in "
            f"percent, {text.strip()}/h if it is not"
        )
    rate = number * (0.01 if match[2] else 1.0) / (24.0 if (match[3] or "").lower() == "d" else 1.0)
    if rate > HIGHEST_RATE:
        raise SpecError(
            f"rate {text!r} is a failure of every instance each {1 / rate:.2g} hours; real clusters fail at 0.01 to "
            f"0.1 %/h, and more than {HIGHEST_RATE:.0%}/h is refused: is the unit right?"
        )
    return rate


def parse_time(text: str) -> float:
    """Return the seconds in ``"280min"`` or ``"4.5h"``; raises SpecError, also where no unit is named."""
    if text.strip().startswith("-"):
        raise SpecError(f"duration {text!r} is negative; write for example 40min")
    if re.fullmatch(r"\s*[0-9.]+\s*", text):
        raise SpecError(f"duration {text!r} has no unit; write {text.strip()}min, {text.strip()}s or {text.strip()}h")
    return parse_duration(text)


def parse_count(text: str) -> float:
    """Return the number in ``"10M"``, ``"6.5e6"`` or ``"350k"``; raises SpecError."""
    match = _COUNT.fullmatch(text)
    if match is None:
        raise SpecError(f"{text!r} is not a number; write for example 10M, 350k or 6.5e6")
    return float(match[1]) * _FACTORS[match[2]]


def parse_price(text: str) -> float:
    """Return the price in ``"5"``, ``"5$"`` or ``"$4.10"``; raises SpecError."""
    match = _MONEY.fullmatch(text)
    if match is None:
        raise SpecError(f"price {text!r} is not an amount of money; write for example 5 or 4.10$")
    return float(match[1])
