"""What the parsers of vendors' tools share: JSON after other lines, counts, and a short extract. Pure."""

from __future__ import annotations

import json
from typing import Any


def json_in(text: str, opening: str) -> Any:
    """The JSON that begins with ``opening`` and may follow other lines. Raises ValueError."""
    return json.loads(text[text.index(opening) :])


def count(text: Any) -> int:
    """A decimal number; 0 for any other text."""
    return int(text) if isinstance(text, str) and text.isdecimal() and len(text) < 19 else 0


def extract(text: str) -> str:
    """The beginning of a text, on one line."""
    return " ".join(text.split())[:160]
