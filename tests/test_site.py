"""The documentation site names every public name of Python; `make docs` checks its links and lists."""

from __future__ import annotations

import re
from pathlib import Path

import jupyter_hyperpod

PAGE = Path(__file__).resolve().parents[1] / "docs" / "python.md"


def test_every_public_name_is_on_the_page_of_python() -> None:
    shown = set(re.findall(r"^\.\. auto(?:class|function):: (\w+)$", PAGE.read_text(), re.MULTILINE))
    assert shown == set(jupyter_hyperpod._PUBLIC)
