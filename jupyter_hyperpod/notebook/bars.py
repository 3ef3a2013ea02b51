"""Progress bars for what this kernel itself waits for. They never show jobs, because a widget dies with its kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from IPython.display import clear_output, display

from ..control import cluster
from ..core.views import View
from ..loader.read.progress import Callback
from ..loader.read.progress import LoadProgress as Load
from ..loader.reporting import SHOW_AFTER_S, sentence
from ..storage.store import Store

BAR_STEPS = 1000


@contextmanager
def progress_bar(total: int, title: str) -> Iterator[Callable[[int, str], None]]:
    """Return a function that shows how much is done, on a bar with a sentence; it is removed at the end."""
    shown: list[Any] = []

    def update(done: int, text: str) -> None:
        if not shown:
            from ipywidgets import HBox, IntProgress, Label

            shown.extend((IntProgress(done, max=total), Label(f"{title}: {text}")))
            shown.append(HBox(shown[:2]))
            display(shown[-1])
        shown[0].value, shown[1].value = done, f"{title}: {text}"

    try:
        yield update
    finally:
        if shown:
            clear_output(wait=True)  # a saved notebook keeps no dead widget
        for widget in reversed(shown):
            widget.close()


@contextmanager
def loading(name: str) -> Iterator[Callback]:
    """Show a load that this kernel waits for, with progress, rate and remaining time. A short load is not shown."""
    with progress_bar(BAR_STEPS, "loading") as update:

        def tell(now: Load) -> None:
            if now.elapsed_s >= SHOW_AFTER_S and not now.done:
                update(BAR_STEPS * now.bytes_done // now.bytes_total, sentence(name, now))

        yield tell


def wait_for_nodes(store: Store) -> View:
    """Wait like `cluster.wait_ready`, showing how many nodes are warm. Raises ClusterError."""
    with progress_bar(max(1, len(cluster.status(store)["nodes"])), "nodes warm up") as update:
        return cluster.wait_ready(store, tell=lambda up, nodes: update(up, f"{up} of {nodes}"))
