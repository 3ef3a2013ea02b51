"""``make demo``: run the first notebook headless, then say what its journals prove. Exit status 0 only if all holds."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from benchmarks import ROOT
from jupyter_hyperpod.bench.proof import RunComparison
from jupyter_hyperpod.cli.terminal import Terminal
from jupyter_hyperpod.control import cluster, lookup
from jupyter_hyperpod.core.errors import HyperpodError
from jupyter_hyperpod.storage.store import ENVIRONMENT_VARIABLE, Store

NOTEBOOK = ROOT / "notebooks" / "01_first_cell.ipynb"
CELL_TIMEOUT_S = 300
DISTURBED, UNDISTURBED = "tinylm", "tinylm-undisturbed"


def main() -> int:
    """Run the demonstration and return its exit status."""
    terminal = Terminal()
    with _store() as store:
        try:
            terminal.line("Starting four nodes and a spare on this machine.")
            cluster.ensure_started(store)
            cluster.wait_ready(store)
            _execute(NOTEBOOK, terminal)
            comparison = RunComparison.read(lookup.job_id(store, DISTURBED), lookup.job_id(store, UNDISTURBED), store)
            holds = _report(comparison, terminal)
        except HyperpodError as error:
            terminal.note(f"error: {error}")
            return 1
        finally:
            with suppress(HyperpodError):
                cluster.stop(store)
    return 0 if holds else 1


@contextmanager
def _store() -> Iterator[Store]:
    """The store that the environment names, else a temporary one."""
    if os.environ.get(ENVIRONMENT_VARIABLE):
        yield Store().prepare()
        return
    with tempfile.TemporaryDirectory(prefix="hyperpod-demo.") as root:
        os.environ[ENVIRONMENT_VARIABLE] = root
        yield Store().prepare()


def _execute(path: Path, terminal: Terminal) -> None:
    """Run a notebook cell by cell, saying which; raises HyperpodError with the cell's error."""
    if not path.exists():
        raise HyperpodError(f"{path} is missing: the demonstration runs it")
    notebook = nbformat.read(path, as_version=4)
    started_s = time.monotonic()

    def say(cell: Any, cell_index: int) -> None:
        if cell.cell_type == "code":
            first = next(line for line in cell.source.splitlines() if line.strip())
            terminal.line(f"{time.monotonic() - started_s:6.1f} s  {first[:90]}")

    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_start=say,
        extra_arguments=["--HistoryManager.enabled=False", "--IPKernelApp.log_level=40"],
    )
    try:
        client.execute()
    except CellExecutionError as error:
        raise HyperpodError(f"a cell of {path.name} failed:\n{error}") from error
    terminal.line(f"{time.monotonic() - started_s:6.1f} s  done")


def _report(comparison: RunComparison, terminal: Terminal) -> bool:
    holds = comparison.holds
    terminal.line()
    terminal.line(comparison.table().render(terminal.paint))
    terminal.line()
    verdict = "All of it holds." if holds else "It does not hold: see the lines above."
    terminal.line(terminal.paint(verdict, "good" if holds else "bad"))
    terminal.line("Open the notebook in JupyterLab with: make lab")
    return holds


if __name__ == "__main__":
    sys.exit(main())
