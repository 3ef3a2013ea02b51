"""`jupyter hyperpod bench`: run one measurement and show its rows and bars."""

from __future__ import annotations

import argparse
import os
import signal
from typing import Any

from ..control import report
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
    if options.json:
        terminal.json(result)
    else:
        _print_bench(result, terminal)
    return 0 if all(bar["ok"] for bar in result["bars"]) else 1


def _print_bench(result: dict[str, Any], terminal: Terminal) -> None:
    cell = report.Cell
    rows = [
        [cell(row["arm"]), cell(row["case"]), cell(row["metric"])]
        + [cell(_figure(row[name])) for name in ("median", "min", "max")]
        + [cell(row["unit"]), cell(str(row["n"]))]
        for row in result["rows"]
    ]
    headers = ("ARM", "CASE", "METRIC", ">MEDIAN", ">MIN", ">MAX", "UNIT", ">N")
    terminal.line(report.Table(headers, rows, "no measurements").render(terminal.paint))
    for row in result["rows"]:
        if "reason" in row:
            terminal.line(f"{row['arm']}, {row['case']}: not run: {row['reason'].strip()}")
    for bar in result["bars"]:
        verdict = terminal.paint("ok", "good") if bar["ok"] else terminal.paint("missed", "bad")
        promised = f"{bar['direction']} {_figure(bar['limit'])}"
        terminal.line(f"{bar['name']}: {_figure(bar['value'])}, {promised}: {verdict}")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
