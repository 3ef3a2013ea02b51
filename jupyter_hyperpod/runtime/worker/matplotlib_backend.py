"""Matplotlib's backend in a job: it draws into files as Agg does. Only matplotlib imports this module."""

from __future__ import annotations

from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

from . import pictures

__all__ = ["FigureCanvas", "show"]


def show(*_args: Any, **_options: Any) -> None:
    """What ``plt.show()`` does here: say that pictures are not shown, and close them as a notebook does."""
    pictures.show_open_ones()
