"""Lines of cells that were joined are those of the notebook."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.storage.joined_cells import CellLine, JoinedCells, joined

CELLS = st.lists(st.lists(st.text(string.ascii_letters + "# %=", max_size=8), min_size=1, max_size=5), max_size=6)


@given(CELLS)
def test_each_line_is_found_in_its_cell(cells: list[list[str]]) -> None:
    parts = [(2 * at + 1, "\n".join([*lines, "last"])) for at, lines in enumerate(cells)]
    source = joined("my book.ipynb", parts)
    found = JoinedCells(source)
    for number, text in enumerate(source.split("\n"), 1):
        if (place := found.at(number)) is not None and text == "last":
            lines = dict(parts)[place.cell].split("\n")
            assert lines[place.line - 1] == "last" and place.line == len(lines)
            assert place.notebook == "my book.ipynb" and place.file == f"my book.ipynb, cell {place.cell}"
    assert source.count("last") == len(parts)


def test_other_sources_have_no_cells() -> None:
    assert JoinedCells("x = 1\n# %% code cell\n").at(1) is None
    assert JoinedCells("# %% code cell 3 of a.ipynb\nx").at(1) == CellLine("a.ipynb", 3, 1)
    assert JoinedCells("# %% code cell 3 of a.ipynb, from line 4\nx\ny").at(3) == CellLine("a.ipynb", 3, 5)


def test_sentences_about_lines_name_the_cell() -> None:
    cells = JoinedCells("\n# %% code cell 3 of a.ipynb\nx\ny")
    assert cells.in_words("line 4 binds x; see line 1, line 3 of b.py") == (
        "line 2 of code cell 3 of a.ipynb binds x; see line 1, line 3 of b.py"
    )
