"""Measures a cell on a warm cluster: the time from submit to the first line of its output in the journal."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ..storage.store import Store
from .laboratory import laboratory, progress, submit, wait_for_idle
from .report import bar, report, row

CELL = "import os, torch\nprint('rank', os.environ['RANK'], torch.ones(2).sum().item())\n"
LIMIT_S, COLD_LIMIT_S = 0.300, 5.0
OURS = "jupyter_hyperpod"
OWN, OTHER = "the cluster's environment", "another environment"


def run(runs: int = 5, nodes: int = 4) -> dict[str, Any]:
    """Measure the first submit on a cluster that has just become idle, then `runs` more; two environments by turns."""
    with tempfile.TemporaryDirectory(prefix="hyperpod-latency-") as folder, laboratory(nodes, spares=1) as store:
        pythons = {OWN: sys.executable, OTHER: _another(Path(folder) / "venv")}
        samples: dict[str, list[float]] = {name: [] for name in pythons}
        for number in range(runs + 1):
            for name, python in pythons.items():
                samples[name].append(_first_line(store, nodes, python))
                progress(f"submit {number}, {name}: first line after {samples[name][-1] * 1000:.0f} ms")
    rows = []
    for name, (first, *warm) in samples.items():
        rows.append(row(OURS, f"{nodes} nodes, {name}, first submit", "submit to first line", "s", [first]))
        rows.append(row(OURS, f"{nodes} nodes, {name}, later submits", "submit to first line", "s", warm))
    bars = [
        bar("warm_submit_to_first_line_s", rows[1]["median"], LIMIT_S),
        bar("cold_submit_elsewhere_to_first_line_s", rows[2]["median"], COLD_LIMIT_S),
        bar("warm_submit_elsewhere_to_first_line_s", rows[3]["median"], LIMIT_S),
    ]
    return report("latency", rows, bars)


def _first_line(store: Store, nodes: int, python: str) -> float:
    began_s = time.time()
    watch = submit(store, CELL, {"name": "latency", "nodes": nodes, "spares": 0, "python": python})
    watch.until(lambda: bool(watch.view["output"]), 60.0)
    took_s = time.time() - began_s
    watch.until_ended()
    wait_for_idle(store)
    return took_s


def _another(path: Path) -> str:
    """The Python of another virtual environment, with the packages of this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    (packages,) = path.glob("lib/python*/site-packages")
    found = [folder for folder in sys.path if folder.endswith("site-packages")]
    package = Path(__file__).resolve().parents[2]
    (packages / "shared.pth").write_text("".join(f"{folder}\n" for folder in (package, *found)))
    return str(path / "bin" / "python")
