"""The shape of every benchmark's result, for scripts and for people."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from typing import Any


def machine() -> dict[str, Any]:
    """What the figures were measured on; only ratios carry over to another machine."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": memory,
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def row(arm: str, case: str, metric: str, unit: str, samples: Sequence[float]) -> dict[str, Any]:
    """One line of the table: median, min and max of the samples."""
    return {
        "arm": arm,
        "case": case,
        "metric": metric,
        "unit": unit,
        "median": statistics.median(samples),
        "min": min(samples),
        "max": max(samples),
        "n": len(samples),
    }


def not_run(arm: str, case: str, reason: str) -> dict[str, Any]:
    """A line for what could not be measured, with the exact reason instead of figures."""
    blank: dict[str, Any] = {"median": None, "min": None, "max": None, "n": 0}
    return {"arm": arm, "case": case, "metric": "not run", "unit": "", **blank, "reason": reason}


def bar(name: str, value: float, limit: float | None = None, *, at_least: float | None = None) -> dict[str, Any]:
    """A promise: ``value`` must not exceed ``limit``, or must reach ``at_least``; exactly one of them is given."""
    if at_least is not None:
        return {"name": name, "value": value, "limit": at_least, "direction": "at least", "ok": value >= at_least}
    if limit is None:
        raise ValueError(f"bar {name} needs a limit or at_least")
    return {"name": name, "value": value, "limit": limit, "direction": "at most", "ok": value <= limit}


def report(bench: str, rows: list[dict[str, Any]], bars: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole result."""
    return {"bench": bench, "machine": machine(), "rows": rows, "bars": bars}
