"""One node's use over some time, and how several become one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

PHASES = ("compute_ms", "exchange_ms", "waits_ms")
SUMS = ("ms", "cpu_ms", "received", "sent", "gpu_ms", "steps", *PHASES)
HIGHEST = ("cores", "memory", "limit", "gpus", "gpu_memory", "gpu_limit")
KIND = "nodes.sampled"
LARGEST = 1 << 62

Use = dict[str, int | float]


def uses(data: Mapping[str, Any]) -> Iterator[tuple[str, Use]]:
    """The nodes of an event and what each has used; what is no number is left out."""
    nodes, values = data["nodes"], data["values"]
    if not isinstance(nodes, list) or not isinstance(values, dict):
        return
    for at, node in enumerate(nodes):
        use: Use = {}
        for name in (*SUMS, *HIGHEST):
            value: Any = values.get(name)
            if isinstance(value, list):
                value = value[at] if at < len(value) else None
            if type(value) in (int, float) and 0 <= value < LARGEST:
                use[name] = value
        if isinstance(node, str) and use.get("ms"):
            yield node, use


def joined(before: Use | None, after: Use) -> Use:
    """The use over both stretches of time."""
    if before is None:
        return after
    both = {name: before.get(name, 0) + after.get(name, 0) for name in SUMS if name in before or name in after}
    return both | {
        name: max(before.get(name, 0), after.get(name, 0)) for name in HIGHEST if name in before or name in after
    }


def as_event(found: Mapping[str, Use], every_s: float) -> dict[str, Any]:
    """The data of an event; one value stands for all where all nodes have the same."""
    values: dict[str, Any] = {}
    for name in (*SUMS, *HIGHEST):
        column = [use.get(name) for use in found.values()]
        if any(value is not None for value in column):
            values[name] = column[0] if all(value == column[0] for value in column) else column
    return {"nodes": list(found), "values": values, "every_s": every_s}
