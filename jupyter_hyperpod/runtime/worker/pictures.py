"""Shows matplotlib's figures where a notebook would: at ``plt.show()`` and at the end of the cell."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from typing import Any

from . import displays

VARIABLE = "MPLBACKEND"
OURS = "module://jupyter_hyperpod.runtime.worker.matplotlib_backend"
# backends of notebooks: useless outside of a kernel, whose environment a node may have inherited
_OF_KERNELS = ("inline", "ipympl", "nbagg", "widget")


def prepare(environment: MutableMapping[str, str]) -> None:
    """Set our backend for matplotlib where the user has chosen none."""
    chosen = environment.get(VARIABLE, "")
    if not chosen or any(name in chosen for name in _OF_KERNELS):
        environment[VARIABLE] = OURS


def show_open_ones() -> None:
    """Do what ``plt.show()`` does, and a notebook at the end of a cell: show open figures, and close them."""
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None and os.environ.get(VARIABLE) == OURS and pyplot.get_fignums():
        for number in pyplot.get_fignums():
            displays.display(pyplot.figure(number))
        pyplot.close("all")
