"""One node's use over some time, and how several become one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

PHASES = ("compute_ms", "exchange_ms", "waits_ms")
SUMS = ("ms", "cpu_ms", "received", "sent", "gpu_ms", "steps", *PHASES)
HIGHEST = ("cores", "memory", "limit", "gpus", "gpu_memory", "gpu_limit")
KIND = "nodes.sampled"
LARGEST = 1 << 62
_SUMMED, _NUMBERS = frozenset(SUMS), frozenset({int, float})

Use = dict[str, int | float]


def uses(data: Mapping[str, Any]) -> Iterator[tuple[str, Use]]:
    """The nodes of an event and what each has used; what is no number is left out."""
    nodes, values = data["nodes"], data["values"]
    if not isinstance(nodes, list) or not isinstance(values, dict):
        return
    names = [name for name in (*SUMS, *HIGHEST) if name in values]
    columns = [_column(values[name], len(nodes)) for name in names]
    for node, *row in zip(nodes, *columns, strict=True):
        use = {name: value for name, value in zip(names, row, strict=True) if value is not None}
        if isinstance(node, str) and use.get("ms"):
            yield node, use


def _column(value: Any, count: int) -> list[Any]:
    """The values of all nodes, None for what is no number."""
    column = value if isinstance(value, list) else [value] * count
    if len(column) != count:
        column = [*column[:count], *[None] * (count - len(column))]
    return [one if type(one) in _NUMBERS and 0 <= one < LARGEST else None for one in column]


def joined(before: Use | None, after: Use) -> Use:
    """The use over both stretches of time."""
    if before is None:
        return after
    both = dict(before)
    for name, value in after.items():
        known = both.get(name)
        both[name] = value if known is None else known + value if name in _SUMMED else max(known, value)
    return both


def as_event(found: Mapping[str, Use], every_s: float) -> dict[str, Any]:
    """The data of an event; one value stands for all where all nodes have the same."""
    values: dict[str, Any] = {}
    for name in (*SUMS, *HIGHEST):
        column = [use.get(name) for use in found.values()]
        if any(value is not None for value in column):
            values[name] = column[0] if all(value == column[0] for value in column) else column
    return {"nodes": list(found), "values": values, "every_s": every_s}
