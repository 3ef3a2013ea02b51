"""What the parsers of all options share."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Sequence
from typing import TypeVar

from .errors import SpecError

Parsed = TypeVar("Parsed")


def argument(parse: Callable[[str], Parsed]) -> Callable[[str], Parsed]:
    """Return `parse` for an option: argparse shows the sentence of its SpecError."""

    def read(text: str) -> Parsed:
        try:
            return parse(text)
        except SpecError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def near_matches(word: str, known: Sequence[str]) -> str:
    """Return ``" (did you mean X?)"`` where a known word resembles `word`, else ""."""
    near = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {near[0]}?)" if near else ""
