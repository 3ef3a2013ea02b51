"""Says, without submitting it, why a job would be refused, would fail or would wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..backends import load
from ..core.errors import ClusterError, HyperpodError
from ..core.spec import JobSpec
from ..core.units import plural
from ..policy.scaling import Claim, impossible
from ..storage import host_lease
from ..storage.store import Store
from . import cluster, jobs
from .clusters.shape import local_shape, usual_shape
from .remote import followed

REFUSED, FAILS = "it would be refused", "it would fail"


def prospect(store: Store, fields: Mapping[str, Any], *, later: bool = False) -> str:
    """What would come of a submission with these fields of JobSpec, as a sentence; "" where the job would start.

    ``later``: it is one at another time, of which the nodes that are free now say nothing.

    The words are those of `jobs.submit` and of the supervisor. Raises SpecError for a bad request.
    """
    spec = spec_of(fields)
    backend = load(spec.backend)
    try:
        store.refuse_foreign()
        followed.check_backend(spec.backend, spec.backend_options)
    except HyperpodError as error:
        return f"{REFUSED}: {error}"
    if problem := backend.refusal(spec.backend_options, str(store.root), spec.start_minimum):
        return f"{REFUSED}: {problem}"
    return _on_this_cluster(store, spec, later) if backend.capabilities.owns_nodes else ""


def is_hopeless(said: str) -> bool:
    """Whether nothing would come of a submission of which `prospect` has said this."""
    return said.startswith((REFUSED, FAILS))


def spec_of(fields: Mapping[str, Any]) -> JobSpec:
    """What a submission with these fields would ask for. Raises SpecError for a bad request."""
    return jobs.make_spec(jobs.complete(fields), "")


def requested(spec: JobSpec) -> str:
    """How many nodes a job asks its scheduler for, as a sentence; "" where that is no more than it is to run on."""
    backend = load(spec.backend)
    if backend.capabilities.owns_nodes or not spec.spares:
        return ""
    asked = f"{backend.title} is asked for {plural(spec.nodes + spec.spares, 'node')}"
    return f"{asked}: {spec.nodes} to run on and {spec.spares} spare (--spares 0 asks for none)"


def _on_this_cluster(store: Store, spec: JobSpec, later: bool) -> str:
    """What the nodes that a supervisor owns, or would start, mean for a job."""
    shape: Mapping[str, Any] = usual_shape(store)
    states: Mapping[str, str] = {}
    try:
        answer = cluster.request(store, {"op": "status"})
    except ClusterError:
        pass  # a submission starts one of that shape
    else:
        states = answer["states"]
        shape = answer if states else local_shape(store)
    claim = Claim("", spec.priority, 0.0, spec.start_minimum, spec.nodes, queue=spec.queue)
    if not states and host_lease.served_by(store):
        return ""  # another host knows its nodes
    if never := impossible(claim, shape["nodes"], shape["spares"], shape["queues"]):
        return f"{FAILS}: it {never}" if never.startswith("needs") else f"{FAILS}: {never}"
    free = sum(node["state"] == "idle" for node in cluster.status(store)["nodes"])
    if states and not later and free < spec.start_minimum:
        are = "is" if free == 1 else "are"
        there = f"{free} of {plural(len(states), 'node')} {are} free now"
        return f"it would wait: {there}, and it needs {spec.start_minimum}"
    return ""
