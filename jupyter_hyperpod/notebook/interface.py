"""The interface through which verbs and completion use the notebook they run in."""

from __future__ import annotations

from typing import Any, Protocol

from ..storage.store import Store


class Notebook(Protocol):
    """One notebook or IPython shell."""

    last_job: str

    def open_store(self) -> Store:
        """Return the job store that this notebook uses."""

    def namespace(self) -> dict[str, Any]:
        """Return the notebook's variables."""

    def in_kernel(self) -> bool:
        """Tell whether a front end shows rich output, rather than a terminal."""

    def next_cell(self, text: str) -> None:
        """Put a new cell with this text below the one that runs; in a terminal, on the next prompt."""

    def show_once(self, store: Store, job_id: str) -> None:
        """Show a job without following it."""

    def attach(self, store: Store, job_id: str, *, cancel: bool = False) -> None:
        """Stream a job until it ends; an interrupt leaves it running, or stops it if `cancel`."""
