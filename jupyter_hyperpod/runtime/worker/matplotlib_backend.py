"""Matplotlib's backend in a job, which draws as Agg does. Only matplotlib imports this module."""

from __future__ import annotations

from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

from . import pictures

__all__ = ["FigureCanvas", "show"]


def show(*_args: Any, **_options: Any) -> None:
    """``plt.show()``: show the open figures, and close them as a notebook does."""
    pictures.show_open_ones()
