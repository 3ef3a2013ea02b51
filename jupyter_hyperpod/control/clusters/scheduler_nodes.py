"""Finds nodes that schedulers have, and what acts on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...backends import load
from ...backends.base import Backend, Remedies
from ...backends.types import NodeInfo
from ...core.backends import BACKENDS
from ...core.errors import ClusterError, HyperpodError, NotFound
from ...core.events import TERMINAL_STATES
from ...core.options import near_matches
from ...core.views import View
from ...storage.folded import FoldedJournal
from ...storage.store import ENDED_MARK, Store
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


def in_use(store: Store) -> list[dict[str, Any]]:
    """The nodes of schedulers on which jobs of this store run, with the jobs; ``spare``: none computes there."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for job, backend, view in _unended(store):
        for part in ("members", "spares"):
            for node in sorted({member["node"] for member in view[part]}):
                place = found.setdefault((node, backend), {"jobs": [], "spare": True})
                place["jobs"] += [job] if job not in place["jobs"] else []
                place["spare"] = place["spare"] and part == "spares"
    rows = sorted(found.items())
    return [{"node": node, "backend": name, "title": load(name).title, **facts} for (node, name), facts in rows]


def _unended(store: Store) -> Iterator[tuple[str, str, View]]:
    """The jobs of this store on nodes of schedulers: id, backend, view."""
    for job_id in store.job_ids():
        with suppress(HyperpodError, OSError):  # a job that cannot be read is shown by `list`
            job = store.job(job_id)
            if (job.path / ENDED_MARK).exists() or (backend := job.spec().backend) not in names():
                continue
            view = FoldedJournal(job).catch_up()
            if view["state"] not in TERMINAL_STATES:
                yield job_id, backend, view


def names() -> list[str]:
    """Names of the backends whose nodes are not the supervisor's own."""
    return [name for name in BACKENDS if not load(name).capabilities.owns_nodes]
