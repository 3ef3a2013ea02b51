"""The documentation site: guides, notebooks with their output, commands and the Python interface.

`make docs` builds it. A link that leads nowhere, an unknown name and a page that no list names are errors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_hyperpod import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

TREE = Path(__file__).resolve().parents[1]
# Where the test of the life cycle leaves the notebooks that it has run.
EXECUTED = TREE / "test-output" / "notebooks"

project = "jupyter_hyperpod"
author = "the jupyter_hyperpod developers"
release = version = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinxarg.ext", "sphinx_copybutton", "sphinx_design"]
exclude_patterns = ["_build"]
default_role = "code"
# Magics are no Python; the commands cannot answer what links point to; a live job is shown as its snapshot.
suppress_warnings = ["misc.highlighting_failure", "myst.domains", "mystnb.unknown_mime_type"]

myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 4
nb_execution_mode = "off"
nb_merge_streams = True

python_maximum_signature_line_length = 88
add_module_names = False
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True

html_theme = "pydata_sphinx_theme"
html_title = "jupyter_hyperpod"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": True,
    "footer_start": [],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
copybutton_prompt_text = r"\$ "


def bring_notebooks() -> None:
    """Copy the notebooks beside the pages: with output, where a copy that was run has the same cells."""
    folder = Path(__file__).parent / "notebooks"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.ipynb"):
        old.unlink()
    for path in sorted((TREE / "notebooks").glob("*.ipynb")):
        book, copy = json.loads(path.read_text()), EXECUTED / path.name
        if copy.exists() and _cells(run := json.loads(copy.read_text())) == _cells(book):
            book = run
        for cell in book["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = "".join(cell["source"]).replace("](../docs/", "](../")
        (folder / path.name).write_text(json.dumps(book))


def _cells(book: dict[str, Any]) -> list[str]:
    return ["".join(cell["source"]) for cell in book["cells"]]


def setup(app: Sphinx) -> None:
    """Sphinx calls it before it looks for pages."""
    bring_notebooks()
