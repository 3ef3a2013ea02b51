"""Prints, wherever a notebook would show a picture, that a job's output shows none."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from typing import Any

VARIABLE = "MPLBACKEND"
OURS = "module://jupyter_hyperpod.runtime.worker.matplotlib_backend"
# backends of notebooks: useless outside of a kernel, whose environment a node may have inherited
_OF_KERNELS = ("inline", "ipympl", "nbagg", "widget")
_notified = False
_folder = "."


def prepare(environment: MutableMapping[str, str], folder: str) -> None:
    """Set our backend for matplotlib where the user has chosen none; pictures may be kept in `folder`."""
    global _folder
    _folder = folder
    chosen = environment.get(VARIABLE, "")
    if not chosen or any(name in chosen for name in _OF_KERNELS):
        environment[VARIABLE] = OURS


def notify() -> None:
    """Print the notice once per process, on standard error."""
    global _notified
    if not _notified:
        _notified = True
        keep = os.path.join(_folder, "figure.png")
        print(
            "Pictures are not shown in the output of a job yet. To keep one, save it before it is shown: "
            f"plt.savefig({keep!r})",
            file=sys.stderr,
            flush=True,
        )


def is_picture(value: object) -> bool:
    """Whether a notebook would show `value` as a picture."""
    return hasattr(type(value), "_repr_png_") or (
        type(value).__module__.startswith("matplotlib.") and hasattr(value, "savefig")
    )


def show_open_ones() -> None:
    """Do what ``plt.show()`` does, and a notebook at the end of a cell: report open figures, and close them."""
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None and os.environ.get(VARIABLE) == OURS and pyplot.get_fignums():
        notify()
        pyplot.close("all")
