"""Which pods that are kept hold the room that a job of the same person waits for. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import parse
from ..manifests import BATCH, JOB, QUEUE
from .fitting import OWNER, FreePod, by_job, free_pods

Object = Mapping[str, Any]
PATIENCE_S = 3.0  # pods of a job that has just ended give their room back by then
_LACKS = re.compile(r"Insufficient ([A-Za-z0-9][\w./-]*[A-Za-z0-9])")
_MANY_PODS = "Too many pods"


@dataclass(frozen=True, slots=True)
class Waiting:
    """An element that waits for room, in a job ``of`` this supervisor's.

    ``lacks``: the resources of which there is too little; none where any pod that ends may help. ``queue``: pods of
    this queue alone can; "" for all.
    """

    element: str
    of: str
    reason: str
    lacks: frozenset[str] = frozenset()
    queue: str = ""


def waiting(jobs: Iterable[Object], pods: Iterable[Object], mine: Collection[str]) -> list[Waiting]:
    """The elements of ``mine``, a supervisor's jobs, that would begin if there were more room."""
    of, found = by_job(pods), []
    for job in jobs:
        marks = job["metadata"].get("labels", {})
        leaves = parse.is_over(job) or bool(job["metadata"].get("deletionTimestamp"))
        if marks.get(JOB) not in mine or not marks.get(BATCH) or leaves:
            continue
        if (why := _why(job, of.get(job["metadata"]["name"], []))) is not None:
            found.append(Waiting(parse.element_of(job), marks[JOB], *why))
    return found


def _why(job: Object, pods: Sequence[Object]) -> tuple[str, frozenset[str], str] | None:
    """Why a Job waits for room, what it lacks, and in which queue; None where it does not, or room would not help."""
    if job.get("spec", {}).get("suspend"):
        queue = job["metadata"].get("labels", {}).get(QUEUE, "")
        return ("its queue does not admit it", frozenset[str](), queue) if queue else None
    if not pods:
        return "it gets no pod, as where a quota is used up", frozenset(), ""
    pod = parse.current(pods)
    if pod is None or parse.is_leaving(pod) or pod["spec"].get("nodeName"):
        return None
    told = [one for one in pod.get("status", {}).get("conditions") or () if one.get("type") == "PodScheduled"]
    said = str(told[0].get("message", "")) if told and told[0].get("reason") == "Unschedulable" else ""
    lacks = frozenset(_LACKS.findall(said))
    return (said, lacks, "") if lacks or _MANY_PODS in said else None


def held_by(
    waits: Iterable[Waiting], jobs: Sequence[Object], pods: Sequence[Object], owner: str
) -> list[tuple[FreePod, Waiting]]:
    """One kept pod of this owner for each element that waits, as far as there are some that hold what it lacks.

    Those go first that would be kept for the shortest time.
    """
    about = {job["metadata"]["name"]: job["metadata"].get("labels", {}) for job in jobs}
    requests = {pod["metadata"]["name"]: _requests(pod) for pod in pods}
    own = [pod for pod in free_pods(jobs, pods) if about[pod.job].get(OWNER) == owner]
    left, found = sorted(own, key=lambda pod: (pod.until_s, pod.job)), []
    for one in waits:
        for pod in left:
            holds = not one.lacks or one.lacks & requests[pod.pod]
            if holds and one.queue in ("", about[pod.job].get(QUEUE, "")):
                found.append((pod, one))
                left.remove(pod)
                break
    return found


def sentence(pod: FreePod, one: Waiting) -> str:
    """What people are told of a pod that was let go."""
    return f"{pod.pod} on {pod.node}, kept for the next job, is let go: {one.element} waits for room ({one.reason})"


def _requests(pod: Object) -> frozenset[str]:
    """The resources that a pod has requested."""
    containers = pod["spec"].get("containers") or ()
    return frozenset(name for one in containers for name in (one.get("resources") or {}).get("requests") or {})
