"""Which pods that are kept fit a job, and how a Job says that its pod is kept. Pure."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....core.spec import LaunchPlan
from ....storage.environment import READ_EARLY, with_fixed_hashes
from .. import parse
from ..manifests import BATCH, JOB, PART, PREFIX, QUEUE, QUEUE_PRIORITY, literal
from ..workloads.workload import JOB_NAME, KEPT_S
from .pod_order import PodOrder

Object = Mapping[str, Any]
# labels: what fits the pod, at any time; that it is free; whose it is
FITS, FREE, OWNER = f"{PREFIX}/fits", f"{PREFIX}/free", f"{PREFIX}/owner"
# annotations: for how many seconds it is kept; until when, in seconds since the epoch
KEEPS, UNTIL = f"{PREFIX}/keep-s", f"{PREFIX}/until"
TTL = "ttlSecondsAfterFinished"
OF_A_JOB = (JOB, PART, BATCH, parse.INDEX)
KEEPER = "jupyter_hyperpod.backends.kubernetes.warm.keeper"
MARGIN_S = 3.0  # a pod that ends so soon may be gone before it is asked
LEFT_S = 60  # a Job whose pod has waited for nobody is removed so long after its end: nobody asks how it ended
DIGEST = 40  # hexadecimal digits
# variables that an interpreter or a library reads when it starts: a pod has them as its first job had
_EARLY = (*READ_EARLY, "OMP_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class FreePod:
    """A pod that waits for a job; ``version`` is that of its Job."""

    job: str
    pod: str
    node: str
    fits: str
    until_s: float
    version: str


def kept(manifest: Mapping[str, Any], order: PodOrder, preload: Sequence[str], owner: str) -> dict[str, Any]:
    """The manifest of an element whose pod is kept, made of that of one whose pod is not."""
    made = copy.deepcopy(dict(manifest))
    digest = fits(manifest, order.plan, owner)
    (container,) = made["spec"]["template"]["spec"]["containers"]
    words = [order.plan.python, "-m", KEEPER, "--preload", ",".join(preload), order.line()]
    container["command"] = [literal(word) for word in words]
    container["env"] = _environment(container["env"], order.plan)
    about = made["metadata"]
    about["labels"] = {**about["labels"], FITS: digest, OWNER: owner}
    about["annotations"] = {**about.get("annotations", {}), KEEPS: f"{order.keep_s:g}"}
    return made


def fits(manifest: Mapping[str, Any], plan: LaunchPlan, owner: str) -> str:
    """A digest of what the pod of an element has to be, whichever job it belongs to and whether it is kept."""
    pod = copy.deepcopy(dict(manifest["spec"]["template"]["spec"]))
    (container,) = pod["containers"]
    del container["command"]
    container["env"] = _environment(container["env"], plan)
    affinity = pod.get("affinity", {})
    affinity.pop("podAntiAffinity", None)
    nodes = affinity.get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in nodes.get("nodeSelectorTerms", ()):
        term.pop("matchFields", None)  # nodes to be avoided: see `choose`
    if nodes and not any(nodes["nodeSelectorTerms"]):
        del affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    if not affinity.get("nodeAffinity"):
        affinity.pop("nodeAffinity", None)
    queue, priority = (manifest["metadata"]["labels"].get(name, "") for name in (QUEUE, QUEUE_PRIORITY))
    said = [pod, queue, priority, plan.python, plan.module, plan.warm_key, owner]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:DIGEST]


def _environment(variables: Iterable[Object], plan: LaunchPlan) -> list[dict[str, Any]]:
    """The variables of a container that do not belong to the job alone."""
    found = [dict(one) for one in variables if one["name"] not in plan.env or one["name"].startswith(_EARLY)]
    named = {one["name"] for one in found}
    fixed = with_fixed_hashes({})
    return [*found, *({"name": name, "value": value} for name, value in fixed.items() if name not in named)]


def keeps_s(job: Object) -> float:
    """For how long the pod of a Job is to be kept; 0 for one that is not."""
    try:
        return float(_about(job).get("annotations", {}).get(KEEPS, 0))
    except ValueError:
        return 0.0


def may_stay(job: Object, pod: Object | None) -> bool:
    """Whether a pod can wait for another job, as far as is known: its keeper may know better."""
    over = parse.is_over(job) or bool(_about(job).get("deletionTimestamp"))
    return keeps_s(job) > 0 and not over and pod is not None and _runs(pod)


def freed(job: Object, now_s: float) -> dict[str, Any]:
    """The change by which a Job belongs to no job any more, and is free."""
    labels = dict.fromkeys(OF_A_JOB, None) | {FREE: "true"}
    annotations = {UNTIL: f"{now_s + keeps_s(job):.0f}"}
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": {TTL: LEFT_S}}


def of_nobody() -> dict[str, Any]:
    """The same for its pod."""
    return {"metadata": {"labels": dict.fromkeys(OF_A_JOB, None)}}


def taken(labels: Mapping[str, str], index: int, version: str, keep_s: float) -> dict[str, Any]:
    """The change by which a free Job becomes that of an element; it is refused where somebody has changed the Job."""
    marks = {**labels, parse.INDEX: str(index), FREE: None}
    annotations = {UNTIL: None, KEEPS: f"{keep_s:g}" if keep_s else None}
    about = {"resourceVersion": version, "labels": marks, "annotations": annotations}
    return {"metadata": about, "spec": {TTL: KEPT_S}}


def of_job(labels: Mapping[str, str], index: int) -> dict[str, Any]:
    """The same for its pod."""
    return {"metadata": {"labels": {**labels, parse.INDEX: str(index)}}}


def by_job(pods: Iterable[Object]) -> dict[str, list[Object]]:
    """Pods by the names of the Jobs that have made them."""
    of: dict[str, list[Object]] = {}
    for pod in pods:
        of.setdefault(_about(pod).get("labels", {}).get(JOB_NAME, ""), []).append(pod)
    return of


def free_pods(jobs: Iterable[Object], pods: Iterable[Object]) -> list[FreePod]:
    """The pods that wait for a job."""
    of, found = by_job(pods), []
    for job in jobs:
        about = _about(job)
        marks, name = about.get("labels", {}), about["name"]
        now = parse.current(of.get(name, []))
        if marks.get(FREE) and now is not None and may_stay(job, now):
            until_s = float(about.get("annotations", {}).get(UNTIL, 0))
            place = now["spec"].get("nodeName", "")
            version = str(about.get("resourceVersion", ""))
            found.append(FreePod(name, _about(now)["name"], place, marks.get(FITS, ""), until_s, version))
    return found


def choose(
    free: Iterable[FreePod], digest: str, count: int, now_s: float, avoid: Collection[str], serving: Collection[str]
) -> list[FreePod]:
    """The pods that a job takes: at most ``count``, one on each node, first those that would be kept longest.

    ``serving``: the nodes that get work; none where that is not known.
    """
    found: dict[str, FreePod] = {}
    for pod in sorted(free, key=lambda pod: (-pod.until_s, pod.job)):
        usable = pod.fits == digest and pod.until_s > now_s + MARGIN_S and pod.node not in avoid
        if usable and (not serving or pod.node in serving):
            found.setdefault(pod.node, pod)
    return list(found.values())[:count]


def _runs(pod: Object) -> bool:
    return not parse.is_leaving(pod) and pod.get("status", {}).get("phase") == parse.RUNNING


def _about(thing: Object) -> Mapping[str, Any]:
    found: Mapping[str, Any] = thing.get("metadata", {})
    return found
