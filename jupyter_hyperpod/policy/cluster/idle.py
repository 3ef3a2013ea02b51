"""Decides when a local cluster that nobody uses ends by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...core.units import few, format_duration
from ..decision import Decision


@dataclass(frozen=True, slots=True)
class ClusterUse:
    """What a cluster has to go on for.

    ``jobs``: those that have not ended, also those that wait, deployments, and those whose journals are not read
    yet. ``schedules``: those with a time to come, or a run that begins. ``nodes``: local ones that are out of
    service, which somebody wanted. ``starting``: local ones that are not up yet. ``nodes_there``: whether it has
    local nodes at all; one without them only looks after jobs. ``shared``: another host knows the store, and may
    stand by.
    """

    jobs: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    starting: tuple[str, ...] = ()
    nodes_there: bool = True
    shared: bool = False


def kept_by(use: ClusterUse) -> str:
    """Why a cluster goes on, however long nobody asks it for anything; "" where nothing keeps it."""
    if not use.nodes_there:
        return "it has no local nodes"
    if use.jobs:
        return f"jobs that have not ended: {few(use.jobs)}"
    if use.schedules:
        return f"schedules with a time to come: {few(use.schedules)}"
    if use.nodes:
        return f"nodes out of service: {few(use.nodes)}"
    if use.starting:
        return f"nodes that are starting: {few(use.starting)}"
    if use.shared:
        return "another host shares the store, and may stand by for this one"
    return ""


def ending(use: ClusterUse, idle_s: float, timeout_s: float) -> Decision[float | None]:
    """In how many seconds a cluster ends that was last used ``idle_s`` ago: 0.0 for now, None for not as things are.

    ``timeout_s``: how long it may be idle, infinity for ever.
    """
    if why := kept_by(use):
        return Decision(None, why)
    if math.isinf(timeout_s):
        return Decision(None, "it goes on until somebody stops it")
    time = format_duration(timeout_s)
    if (left_s := timeout_s - idle_s) > 0:
        return Decision(left_s, f"it ends by itself after {time} without a job, a schedule or a request")
    said = f"it ended by itself after {time} without a job, a schedule or a request"
    return Decision(0.0, f"{said}; the next job starts it again as it was")
