"""Measures a cell on a warm cluster: the time from submit to the first line of its output in the journal."""

from __future__ import annotations

import time
from typing import Any

from .laboratory import laboratory, progress, submit, wait_for_idle
from .report import bar, report, row

CELL = "import os, torch\nprint('rank', os.environ['RANK'], torch.ones(2).sum().item())\n"
LIMIT_S = 0.300


def run(runs: int = 5, nodes: int = 4) -> dict[str, Any]:
    """Measure the first submit on a cluster that has just become idle, then `runs` more."""
    with laboratory(nodes, spares=1) as store:
        samples = []
        for number in range(runs + 1):
            began_s = time.time()
            watch = submit(store, CELL, {"name": "latency", "nodes": nodes, "spares": 0})
            watch.until(lambda watch=watch: bool(watch.view["output"]), 60.0)  # type: ignore[misc]
            samples.append(time.time() - began_s)
            watch.until_ended()
            progress(f"submit {number}: first line after {samples[-1] * 1000:.0f} ms")
            wait_for_idle(store)
    first, warm = samples[:1], samples[1:]
    rows = [
        row("jupyter_hyperpod", f"{nodes} nodes, first submit", "submit to first line", "s", first),
        row("jupyter_hyperpod", f"{nodes} nodes, later submits", "submit to first line", "s", warm),
    ]
    return report("latency", rows, [bar("warm_submit_to_first_line_s", rows[1]["median"], LIMIT_S)])
