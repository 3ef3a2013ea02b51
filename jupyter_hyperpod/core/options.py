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


def near_matches(word: str, known: Sequence[str], most: int = 1) -> str:
    """Return ``" (did you mean X?)"`` where a known word resembles `word`, else "". Of several, ``most`` are named."""
    longer = [one for one in known if word and one.startswith(word)]
    near = difflib.get_close_matches(word, known, most)
    if most > 1:
        near = [*near, *(one for one in longer if one not in near)][:most]
    elif len(longer) == 1:  # it was not written to its end
        near = longer
    named = " or ".join(filter(None, [", ".join(near[:-1]), *near[-1:]]))
    return f" (did you mean {named}?)" if near else ""
