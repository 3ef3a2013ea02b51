"""The cases in `tests/adoption/cases`: a file holds a piece of training twice, in plain PyTorch and in a session.

Its parts begin with a line ``# ---- plain`` and ``# ---- hyperpod``; what stands before them belongs to both, and so
does what follows a line ``# ---- both``. The last output line begins with ``result``. Where a case is refused, a line
``# refused: WORDS`` says with which words, a regular expression.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from jupyter_hyperpod.core.errors import SpecError

from .. import ROOT

FOLDER = ROOT / "tests" / "adoption" / "cases"
PLAIN, OURS, BOTH, REFUSED = "# ---- plain", "# ---- hyperpod", "# ---- both", "# refused: "


@dataclass(frozen=True)
class Case:
    """One piece of training. ``refused`` is empty where it works, else what the refusal says."""

    name: str
    title: str
    plain: str
    ours: str
    refused: str

    @property
    def changed_lines(self) -> int:
        """Lines that a person alters or writes, without the import of ours; lines that only fall away do not count."""
        before, after = (_lines(source) for source in (self.plain, self.ours))
        return sum(line.startswith("+ ") for line in difflib.ndiff(before, after))


def cases(wanted: str = "") -> list[Case]:
    """All cases by name, or those whose name contains ``wanted``. Raises SpecError where there is none."""
    found = [read(path) for path in sorted(FOLDER.glob("*.py")) if wanted in path.stem]
    if not found:
        raise SpecError(f"no case in {FOLDER} has {wanted!r} in its name")
    return found


def read(path: Path) -> Case:
    """Read one file. Raises SpecError where a part is missing."""
    text = path.read_text()
    before, plain, rest = text.partition(f"{PLAIN}\n")
    only_plain, ours, rest = rest.partition(f"{OURS}\n")
    only_ours, _, after = rest.partition(f"{BOTH}\n")
    title = re.match(r'"""(.+?)"""', text, re.DOTALL)
    if not (plain and ours and title):
        raise SpecError(f'{path} lacks a title, or one of the lines "{PLAIN}" and "{OURS}"')
    refused = re.search(f"^{REFUSED}(.+)$", before, re.MULTILINE)
    words = refused[1] if refused else ""
    return Case(path.stem, title[1], before + only_plain + after, before + only_ours + after, words)


def _lines(source: str) -> list[str]:
    """Lines that count: indentation alone is no change, because an editor shifts a whole block."""
    stripped = (line.split("  #")[0].strip() for line in source.splitlines())
    return [line for line in stripped if line and line != "import jupyter_hyperpod as hp"]
