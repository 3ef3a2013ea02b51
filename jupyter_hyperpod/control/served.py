"""Formats deployments as plain text for the CLI and the magics of this host."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence

from ..core.events import TERMINAL_STATES
from ..core.spec import ServeSpec
from ..core.units import format_number, plural
from .engines.reach import address, tunnel
from .report import View, ago, latency_text, state_cell
from .text_tables import Cell, Table, clean

PATHS = {"completions": "/v1/completions", "predict": "/predict", "engine": "/v1/chat/completions"}
EXAMPLES = {
    "completions": '{"prompt": "Hello", "max_tokens": 16}',
    "predict": '{"inputs": 1}',
    "engine": '{"model": "%s", "messages": [{"role": "user", "content": "Hello"}]}',
}


def deployments_table(views: Sequence[View]) -> Table:
    """Return the table of deployments, in the order given."""
    now_s = time.time()
    rows = []
    for view in views:
        metrics, ended = view["metrics"], view["state"] in TERMINAL_STATES
        wanted = f" ({view['minimum']}:{view['maximum']})" if view["minimum"] != view["maximum"] else ""
        rows.append(
            [
                Cell(view["id"]),
                state_cell(view["state"]),
                Cell(f"{0 if ended else view['world_size']}{wanted}"),
                Cell("-" if ended else format_number(metrics.get("requests_per_s", 0.0))),
                Cell(latency_text(metrics, "p50_s")),
                Cell(latency_text(metrics, "p99_s")),
                Cell(f"{metrics.get('answered', 0):,}"),
                Cell(f"{metrics.get('failed', 0):,}", "bad" if metrics.get("failed") else "quiet"),
                Cell("-" if ended else address(view["deployment"])),
                Cell(ago(view["submitted_s"], now_s), "quiet"),
            ]
        )
    headers = ("ID", "STATE", ">REPLICAS", ">REQUESTS/S", ">P50", ">P99", ">ANSWERED", ">FAILED", "URL", "SINCE")
    return Table(headers, rows, "no deployments yet; `jupyter hyperpod serve MODEL` starts one")


def asked_to_scale(view: View, target: int, serve: ServeSpec | None) -> str:
    """What ``scale`` says of a job that it has asked; ``serve``: where it is a deployment."""
    if serve is None:
        return f"asked {view['id']} to run on {plural(target, 'node')}"
    asked = f"asked {view['id']} for {plural(target, 'replica')}"
    low, high = view["minimum"], view["maximum"]
    if low == high:
        return asked
    turns = []
    if target < high:
        turns.append(f"more once over {format_number(serve.outstanding)} requests a replica are outstanding")
    if target > low:
        turns.append(f"fewer once they were not needed for {serve.scale_down_delay_s:g} s")
    return (
        f"{asked}. Then its load decides again, within {low}:{high}: {', '.join(turns)}. A number that stays is a "
        f"range of one: serve with --replicas {max(1, target)}"
    )


def how_to_ask(view: View, token_file: str, command: str = "jupyter hyperpod") -> list[str]:
    """Return a deployment's address, with commands to query and stop it.

    Where its gateway is on another host, whoever listens at that port of this one would get the token, so no command
    sends it.
    """
    deployment = view["deployment"]
    url = deployment["url"] + PATHS[deployment["task"]]
    example = EXAMPLES[deployment["task"]].replace("%s", view["name"])
    header = f'-H "Authorization: Bearer $(cat {shlex.quote(token_file)})"'
    ask = [f"ask it:   curl {header} {url} -d '{example}'"]
    if reach := tunnel(deployment):
        ask = [f"reach it: {reach}", f"ask it:   there, or here while that runs, with the token in {token_file}"]
    where = address(deployment, PATHS[deployment["task"]])
    lines = [f"{view['id']} answers at {where}", *ask, f"stop it:  {command} stop {view['id']}"]
    return [clean(line) for line in lines]
