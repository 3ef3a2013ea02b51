"""Measures how long loading your own model takes, and how long until its first layer has arrived."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from ..core.errors import HyperpodError, SpecError
from .laboratory import progress
from .report import report, row


def run(url: str = "", runs: int = 5, connections: int = 0, endpoint_url: str = "") -> dict[str, Any]:
    """Load the model at ``url`` in ``runs`` processes, one after another, as `jupyter hyperpod model load` does.

    A local file is mapped: its pages are read when they are first used, not here. Raises SpecError without a URL.
    """
    if not url:
        raise SpecError("bench model needs url=URL, for example url=s3://bucket/model.safetensors")
    command = [sys.executable, "-m", "jupyter_hyperpod", "model", "load", url, "--json"]
    command += ["--connections", str(connections)] if connections else []
    command += ["--endpoint-url", endpoint_url] if endpoint_url else []
    loads = []
    for number in range(runs):
        loads.append(_load(command))
        progress(f"load {number + 1} of {runs}: {loads[-1]['elapsed_s']:.2f} s")
    rows = [
        row("jupyter_hyperpod", url, "load", "s", [load["elapsed_s"] for load in loads]),
        row("jupyter_hyperpod", url, "rate", "GB/s", [load["bytes"] / load["elapsed_s"] / 1e9 for load in loads]),
    ]
    if first_s := [load["first_layer_s"] for load in loads if load["first_layer_s"] is not None]:
        rows.append(row("jupyter_hyperpod", url, "first layer", "s", first_s))
    return report("model", rows, [])


def _load(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = done.stderr.strip().splitlines()
        raise HyperpodError(words[-1] if words else f"the load ended with exit status {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
