"""The glossary is true: each module that it names exists, each noun is there once, and no class has an old name."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[1]
ROOT = TREE / "jupyter_hyperpod"
GLOSSARY = (TREE / "docs" / "glossary.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("| ").split("|")]
    for line in GLOSSARY.splitlines()
    if line.startswith("| ") and not line.startswith("| noun ")
]
GIVEN_UP = sorted({name for row in ROWS if len(row) > 3 for name in re.findall(r"`(\w+)`", row[3])})


@cache
def named() -> dict[str, list[str]]:
    """Every class and module of the package -> where it is."""
    found: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        where = str(path.relative_to(TREE))
        classes = (node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef))
        for name in (path.stem, *classes):
            found.setdefault(name, []).append(where)
    return found


def test_every_noun_is_there_once_with_one_sentence() -> None:
    assert len(ROWS) > 50
    assert [noun for noun, count in Counter(row[0] for row in ROWS).items() if count > 1] == []
    assert [row[0] for row in ROWS if not row[1].endswith(".")] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_owner_exists(row: list[str]) -> None:
    owners = re.findall(r"`([^`]+)`", row[2])
    assert owners, f"{row[0]} names no module"
    for owner in owners:
        assert (ROOT / owner).exists(), f"{row[0]} is said to be owned by {owner}"


@pytest.mark.parametrize("name", GIVEN_UP)
def test_no_class_and_no_module_has_an_old_name(name: str) -> None:
    assert named().get(name, []) == [], f"the glossary says that nothing is called {name}"
