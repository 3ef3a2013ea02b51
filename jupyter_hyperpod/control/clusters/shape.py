"""The shape of a local cluster and how long it may be idle, written down beside its journal."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core.errors import SpecError, StoreError
from ...core.names import validate_name
from ...core.units import parse_duration, plural
from ...storage import host_lease
from ...storage.store import Store, private_directory, write_private

SHAPE, LAST_SHAPE, IDLE = "shape.json", "last-shape.json", "idle.json"
DEFAULT_NODES = 4
DEFAULT_SPARES = 1
MAX_LOCAL_NODES = 256
DEFAULT_SHAPE = {"nodes": DEFAULT_NODES, "spares": DEFAULT_SPARES, "queues": {}, "isolated": False}
IDLE_VARIABLE = "JUPYTER_HYPERPOD_IDLE_TIMEOUT"
DEFAULT_IDLE_S = 4 * 3600.0  # longer than a lunch or a meeting, shorter than a night
SHORTEST_IDLE_S = 1.0
OFF = "off"


def check_shape(wanted: Mapping[str, Any]) -> None:
    """Raise SpecError where a cluster of this shape cannot be."""
    nodes, queues = wanted.get("nodes", DEFAULT_NODES), wanted.get("queues", {})
    watches_only = nodes == 0 == wanted.get("spares")  # no local nodes: it only serves jobs whose nodes are elsewhere
    if not 1 <= nodes <= MAX_LOCAL_NODES and not watches_only:
        raise SpecError(f"a local cluster of {plural(nodes, 'node')} is impossible; expected 1 to {MAX_LOCAL_NODES}")
    if not 0 <= wanted.get("spares", 0) <= MAX_LOCAL_NODES:
        raise SpecError(f"{wanted['spares']} spare nodes are impossible; expected 0 to {MAX_LOCAL_NODES}")
    for name in queues:
        validate_name(name, "queue name")
    if sum(queues.values()) > nodes:
        raise SpecError(f"the queues are guaranteed {plural(sum(queues.values()), 'node')}, the cluster has {nodes}")


def keep_shape(directory: Path, nodes: int, spares: int, queues: Mapping[str, int], isolated: bool) -> None:
    """Write down the shape of a cluster for `known_shape`, where the disk has room."""
    shape = {"nodes": nodes, "spares": spares, "queues": dict(queues), "isolated": isolated}
    with suppress(StoreError):
        write_private(directory / SHAPE, json.dumps(shape).encode())
    if nodes:
        (directory / LAST_SHAPE).unlink(missing_ok=True)


def forget_shape(directory: Path, by_itself: bool) -> None:
    """The cluster ends. What has ended ``by_itself`` is started again as it was; what somebody stopped, anew."""
    if by_itself:
        with suppress(FileNotFoundError):
            os.replace(directory / SHAPE, directory / LAST_SHAPE)
        return
    for name in (SHAPE, LAST_SHAPE, IDLE):
        (directory / name).unlink(missing_ok=True)


def known_shape(store: Store) -> dict[str, Any]:
    """The shape of the cluster whose supervisor has died and whose nodes will be adopted; empty without one."""
    return _read(host_lease.directory_of_host(store) / SHAPE)


def usual_shape(store: Store) -> dict[str, Any]:
    """The shape of a cluster that is started without anybody asking for one in particular."""
    return {**DEFAULT_SHAPE, **(known_shape(store) or _read(host_lease.directory_of_host(store) / LAST_SHAPE))}


def local_shape(store: Store) -> dict[str, Any]:
    """The shape of what a supervisor without local nodes gets, where a local job needs some."""
    return {**DEFAULT_SHAPE, **_read(host_lease.directory_of_host(store) / LAST_SHAPE)}


def said_of_late_nodes(store: Store, nodes: int, spares: int) -> str:
    """What is said of nodes that a supervisor without local nodes gets: it and they share this machine's network."""
    said = f"local nodes: {nodes}, spare: {spares}"
    if not local_shape(store)["isolated"]:
        return said
    return (
        f"{said}; they share this machine's network, where those before had networks of their own: for these, "
        "`jupyter hyperpod cluster stop`, then `cluster start --isolate-network`"
    )


def settled_shape(
    store: Store, nodes: int, spares: int, queues: Mapping[str, int], isolated: bool
) -> tuple[int, int, Mapping[str, int], bool]:
    """The shape for a supervisor: one that began without nodes is restarted with the nodes that it got later."""
    if (nodes, spares) == (0, 0) and (grown := known_shape(store)):
        return grown["nodes"], grown["spares"], grown["queues"], grown["isolated"]
    return nodes, spares, queues, isolated


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text())
        queues = {str(name): int(nodes) for name, nodes in record.get("queues", {}).items()}
        size = {"nodes": int(record["nodes"]), "spares": int(record["spares"]), "queues": queues}
        return {**size, "isolated": bool(record.get("isolated"))}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def parse_idle_timeout(text: str) -> float:
    """The seconds that ``"30min"`` or ``"4h"`` mean, infinity for ``"off"``. Raises SpecError."""
    if text.strip().lower() == OFF:
        return math.inf
    seconds = parse_duration(text)
    if seconds < SHORTEST_IDLE_S:
        raise SpecError(f"an idle timeout of {text!r} is too short; write for example 30min or 4h, or {OFF} for never")
    return seconds


def keep_idle_timeout(store: Store, timeout_s: float) -> None:
    """How long the cluster of this host may be idle from now on, infinity for ever. Raises StoreError."""
    directory = private_directory(host_lease.directory_of_host(store))
    record = {"timeout_s": None if math.isinf(timeout_s) else timeout_s}
    write_private(directory / IDLE, json.dumps(record).encode())


def idle_timeout(directory: Path) -> float:
    """How many seconds a cluster with this directory may be idle: as it was told, else as the environment says.

    Raises SpecError where the environment has no duration.
    """
    with suppress(OSError, ValueError, LookupError, TypeError):
        kept = json.loads((directory / IDLE).read_text())["timeout_s"]
        return math.inf if kept is None else max(SHORTEST_IDLE_S, float(kept))
    text = os.environ.get(IDLE_VARIABLE, "")
    try:
        return parse_idle_timeout(text) if text.strip() else DEFAULT_IDLE_S
    except SpecError as error:
        raise SpecError(f"${IDLE_VARIABLE}: {error}") from None
