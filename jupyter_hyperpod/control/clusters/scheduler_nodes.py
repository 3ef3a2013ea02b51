"""Finds nodes that schedulers have, and what acts on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...backends import load
from ...backends.base import Backend, Remedies
from ...backends.types import NodeInfo
from ...core.backends import BACKENDS
from ...core.errors import ClusterError, NotFound
from ...core.options import near_matches
from ...core.views import View
from .standing import configured


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A node that a scheduler has, and what acts on it."""

    title: str
    info: NodeInfo
    remedies: Remedies


def schedulers() -> Iterator[tuple[str, Backend, Remedies]]:
    """Backends, by name, whose nodes can be asked about and acted upon from here."""
    for name in BACKENDS:
        backend = load(name)
        remedies = backend.remedies()
        if remedies is not None and remedies.installed():
            yield name, backend, remedies


def find(view: View, name: str) -> Elsewhere | None:
    """The node as its scheduler sees it, None where it is the local cluster's. Raises NotFound, ClusterError."""
    local = [known["node"] for known in view["nodes"]]
    if name in local:
        return None
    told, names = f"; expected one of {', '.join(local) or 'none: no cluster is running'}", [*local]
    for _, backend, remedies in schedulers():
        try:
            found = remedies.node_info(name)
            if found is not None:
                return Elsewhere(backend.title, found, remedies)
            names += backend.node_states({})
        except ClusterError as error:
            if configured(backend):
                told += f"; and {backend.title} cannot be asked: {error}"
        else:
            told += f"; nor does {backend.title} have it: see `{backend.list_command}`"
    raise NotFound(f"there is no node {name!r} here{near_matches(name, names, 3)}{told}")


def names() -> list[str]:
    """Names of the backends whose nodes are not the supervisor's own."""
    return [name for name in BACKENDS if not load(name).capabilities.owns_nodes]
