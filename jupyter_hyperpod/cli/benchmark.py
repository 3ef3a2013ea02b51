"""`jupyter hyperpod bench`: run one measurement and show its rows and bars."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator
from typing import Any

from ..control import text_tables
from ..storage.store import Store
from .terminal import Terminal, leave_cleanly


def run_bench(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from .. import bench

    if options.store is not None:
        os.environ["JUPYTER_HYPERPOD_STORE"] = str(store.root)
    signal.signal(signal.SIGTERM, leave_cleanly)
    named = {"runs": options.runs, "peers": options.peers}
    chosen = {name: value for name, value in named.items() if value is not None} | dict(options.options)
    result = bench.run(options.name, **chosen)
    return terminal.answer(options, result, *_lines(result, terminal), ok=all(bar["ok"] for bar in result["bars"]))


def _lines(result: dict[str, Any], terminal: Terminal) -> Iterator[str]:
    rows = [
        [row["arm"], row["case"], row["metric"], *map(_figure, (row["median"], row["min"], row["max"]))]
        + [row["unit"], str(row["n"])]
        for row in result["rows"]
    ]
    headers = ("ARM", "CASE", "METRIC", ">MEDIAN", ">MIN", ">MAX", "UNIT", ">N")
    yield text_tables.Table(headers, rows, "no measurements").render(terminal.paint)
    for row in result["rows"]:
        if "reason" in row:
            yield f"{row['arm']}, {row['case']}: not run: {row['reason'].strip()}"
    for bar in result["bars"]:
        verdict = terminal.paint("ok", "good") if bar["ok"] else terminal.paint("missed", "bad")
        promised = f"{bar['direction']} {_figure(bar['limit'])}"
        yield f"{bar['name']}: {_figure(bar['value'])}, {promised}: {verdict}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
