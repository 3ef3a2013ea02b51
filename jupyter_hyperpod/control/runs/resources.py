"""What the nodes of a job have used, as charts have it: a line for each of a few nodes; of many the lowest, the median
and the highest."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.units import format_bytes
from ...storage.resources.node_uses import NodeUses, read
from ...storage.resources.samples import PHASES, Use
from ...storage.store import Store
from ..text_tables import Table
from .charts import Chart, Line
from .markup import number
from .series import Series

LINES = 8
SAMPLE_S = 10  # the usual time that one sample stands for
OF_MANY = ("lowest", "median", "highest")

Value = float | None


def _part(sum_name: str, whole: str) -> Callable[[Use], Value]:
    """Percent: a sum over the time, of as many as there are of ``whole`` at once."""

    def percent(use: Use) -> Value:
        if sum_name not in use or not use.get(whole):
            return None
        return round(min(100.0, 100 * use[sum_name] / (use["ms"] * use[whole])), 1)

    return percent


def _rate(name: str) -> Callable[[Use], Value]:
    return lambda use: round(1000 * use[name] / use["ms"]) if name in use else None


QUANTITIES: dict[str, Callable[[Use], Value]] = {
    "cpu": _part("cpu_ms", "cores"),
    "memory": lambda use: use.get("memory"),
    "gpu": _part("gpu_ms", "gpus"),
    "gpu_memory": lambda use: use.get("gpu_memory"),
    "received": _rate("received"),
    "sent": _rate("sent"),
}


def shown(found: NodeUses, start_s: float) -> dict[str, Any]:
    """What charts and lanes show; times are in seconds since ``start_s``."""
    names = sorted(found.nodes, key=_by_number)
    numbers = sorted({at for places in found.nodes.values() for at in places})
    middle_s = max(0, (found.width_s - SAMPLE_S) / 2)
    many = len(names) > LINES
    curves = {}
    for quantity, value in QUANTITIES.items():
        rows = [_row(found.nodes[name], numbers, value) for name in names]
        if any(one is not None for row in rows for one in row):
            curves[quantity] = _of_many(rows) if many else rows
    sparks: dict[str, dict[str, list[int | None]]] = {name: {} for name in names}
    for quantity in ("cpu", "gpu"):
        for name in names if quantity in curves else ():
            row = _row(found.nodes[name], numbers, QUANTITIES[quantity])
            sparks[name][quantity] = [None if one is None else round(one) for one in row]
    return {
        "nodes": len(names) + found.left_out,
        "left_out": found.left_out,
        "lines": list(OF_MANY) if many else names,
        "many": many,
        "times_s": [round(at * found.width_s + middle_s - start_s, 1) for at in numbers],
        "curves": curves,
        "sparks": sparks,
        "width_s": found.width_s,
        "phases": {name: _phases(places, numbers) for name, places in found.nodes.items() if _has_steps(places)},
        "limits": {name: max((use.get(name, 0) for use in found.newest.values()), default=0) for name in _LIMITS},
    }


def _has_steps(places: dict[int, Use]) -> bool:
    return any(use.get("steps") for use in places.values())


def _phases(places: dict[int, Use], numbers: Sequence[int]) -> dict[str, list[int | None]]:
    """Of each sample the steps that ended in it, and what its time was, in thousandths: `PHASES` without the rest.

    A step counts where it ends. What does not fit into the time of that sample was before it.
    """
    shares: dict[int, list[float]] = {}
    over = [0.0] * len(PHASES)
    for at in sorted(places, reverse=True):
        use = places[at]
        spent = [carried + use.get(name, 0) for carried, name in zip(over, PHASES, strict=True)]
        part = min(1.0, use["ms"] / (sum(spent) or 1.0))
        over = [one * (1.0 - part) for one in spent]
        shares[at] = [one * part / use["ms"] for one in spent]
    columns = {
        name.removesuffix("_ms"): [round(1000 * shares[at][which]) if at in shares else None for at in numbers]
        for which, name in enumerate(PHASES)
    }
    return columns | {"steps": [int(places[at].get("steps", 0)) if at in places else None for at in numbers]}


_LIMITS = ("cores", "limit", "gpus", "gpu_limit")


def _by_number(name: str) -> list[tuple[int, str]]:
    """node-2 comes before node-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _row(places: dict[int, Use], numbers: Sequence[int], value: Callable[[Use], Value]) -> list[Value]:
    return [value(places[at]) if at in places else None for at in numbers]


def _of_many(rows: Sequence[Sequence[Value]]) -> list[list[Value]]:
    """The lowest, the median and the highest of all nodes at each time."""
    columns = [sorted(one for one in column if one is not None) for column in zip(*rows, strict=True)]
    return [
        [column[place(len(column))] if column else None for column in columns]
        for place in (lambda _: 0, lambda count: (count - 1) // 2, lambda count: count - 1)
    ]


def _words(limits: Mapping[str, float]) -> dict[str, tuple[str, float]]:
    """Of each quantity: a title, and by what its values are divided."""
    limit, gpu_limit = (f" of {format_bytes(limits[name])}" if limits[name] else "" for name in ("limit", "gpu_limit"))
    return {
        "cpu": (f"CPU, percent of {limits['cores']:g} {'core' if limits['cores'] == 1 else 'cores'}", 1),
        "memory": (f"Memory{limit}, in MB", 1e6),
        "gpu": (f"GPU, percent of {limits['gpus']:g}", 1),
        "gpu_memory": (f"GPU memory{gpu_limit}, in MB", 1e6),
        "received": ("Network, MB received per second", 1e6),
        "sent": ("Network, MB sent per second", 1e6),
    }


def charts(found: NodeUses, start_s: float) -> tuple[list[str], list[Chart]]:
    """The names of the lines, and a chart of each quantity that is known, by seconds since ``start_s``."""
    told = shown(found, start_s)
    drawn = []
    for quantity, (title, unit) in _words(told["limits"]).items():
        lines = []
        for at, row in enumerate(told["curves"].get(quantity, ())):
            series = Series()
            for time_s, value in zip(told["times_s"], row, strict=True):
                if value is not None:
                    series.add(max(0, round(time_s)), value / unit, start_s + time_s)
            lines.append(Line(told["lines"][at], series, at))
        if any(line.series.places for line in lines):
            high = max(line.series.highest for line in lines if line.series.places)
            told_high = f"{title}: at most {number(high)}"
            drawn.append(Chart(title, lines, told_high, small=True, axis="second", sampled=True))
    return told["lines"], drawn


def newest_table(newest: Mapping[str, Use]) -> Table:
    """What each node used in the newest sample; of the network and devices only where they are known."""
    names = sorted(newest, key=_by_number)
    told: dict[str, Callable[[Use], str]] = {
        ">CPU": lambda use: _said("cpu", use, lambda value: f"{value:.0f} %"),
        ">MEMORY": lambda use: _said("memory", use, format_bytes),
        ">GPU": lambda use: _said("gpu", use, lambda value: f"{value:.0f} %"),
        ">GPU MEMORY": lambda use: _said("gpu_memory", use, format_bytes),
        ">RECEIVED": lambda use: _said("received", use, lambda value: f"{format_bytes(value)}/s"),
        ">SENT": lambda use: _said("sent", use, lambda value: f"{format_bytes(value)}/s"),
    }
    columns = {header: [say(newest[name]) for name in names] for header, say in told.items()}
    known = {header: column for header, column in columns.items() if set(column) != {"-"}}
    return Table(("NODE", *known), [(name, *row) for name, *row in zip(names, *known.values(), strict=True)])


def _said(quantity: str, use: Use, say: Callable[[float], str]) -> str:
    value = QUANTITIES[quantity](use)
    return "-" if value is None else say(value)


def resources_for_browser(store: Store, job_id: str) -> dict[str, Any]:
    """What the nodes of a job have used. Raises NotFound and SpecError."""
    job = store.job(job_id)
    found = read(job)
    first_s = min((next(iter(places)) for places in found.nodes.values()), default=0) * found.width_s
    return shown(found, first_s) | {"start_s": first_s}
