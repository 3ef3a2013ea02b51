"""Progress bars for what this kernel itself waits for. They never show jobs, because a widget dies with its kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from IPython.display import clear_output, display

from ..control import cluster
from ..core.views import View
from ..loader.read.progress import Callback
from ..loader.read.progress import LoadProgress as Load
from ..loader.reporting import SHOW_AFTER_S, sentence
from ..storage.store import Store

BAR_STEPS = 1000


class ProgressBar:
    """A bar with a sentence, removed from the output when the work is done."""

    def __init__(self, total: int, text: str) -> None:
        self._total = total
        self._text = text
        self._bar: Any = None

    def update(self, done: int, text: str) -> None:
        """Show how much is done; the bar appears with the first call."""
        words = f"{self._text}: {text}"
        if self._bar is None:
            from ipywidgets import HBox, IntProgress, Label

            self._bar, self._label = IntProgress(done, max=self._total), Label(words)
            self._box = HBox([self._bar, self._label])
            display(self._box)
        self._bar.value, self._label.value = done, words

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is None:
            return
        clear_output(wait=True)  # a saved notebook keeps no dead widget
        for widget in (self._box, self._bar, self._label):
            widget.close()


@contextmanager
def loading(name: str) -> Iterator[Callback]:
    """Show a load that this kernel waits for, with progress, rate and remaining time. A short load is not shown."""
    with ProgressBar(BAR_STEPS, "loading") as progress:

        def tell(now: Load) -> None:
            if now.elapsed_s >= SHOW_AFTER_S and not now.done:
                progress.update(BAR_STEPS * now.bytes_done // now.bytes_total, sentence(name, now))

        yield tell


def wait_for_nodes(store: Store) -> View:
    """Wait like `cluster.wait_ready`, showing how many nodes are warm. Raises ClusterError."""
    with ProgressBar(max(1, len(cluster.status(store)["nodes"])), "nodes warm up") as progress:
        return cluster.wait_ready(store, tell=lambda up, nodes: progress.update(up, f"{up} of {nodes}"))
