"""Reads Jobs, pods and nodes, as the API has them, as elements and reported nodes. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...core.backend_options import label_rules, pairs
from ...core.errors import SpecError
from ...core.health import SCHEDULABLE, STATUS, HealthRecord
from ...core.units import first_line
from ..types import Element, ElementPhase, NodeInfo, ReportedNode
from .manifests import BATCH, JOB, PART, PREFIX, element_name
from .reasons.unschedulable import explained
from .workloads.workload import JOB as JOB_OBJECT
from .workloads.workload import JOB_NAME, is_suspended

Object = Mapping[str, Any]
# our own words for how far an element is; those of Kubernetes where it has one
PLACED = "it is being started"
CREATING = (PLACED, "ContainerCreating", "PodInitializing")
SUSPENDED, PENDING, STARTING, REPLACING = "Suspended", "Pending", "Starting", "Replacing"
RUNNING, SUCCEEDED, CANCELLED, DELETED = "Running", "Succeeded", "Cancelled", "Deleted"
PHASES = {
    SUSPENDED: ElementPhase.QUEUED,
    PENDING: ElementPhase.QUEUED,
    STARTING: ElementPhase.WAITING,
    REPLACING: ElementPhase.WAITING,
    RUNNING: ElementPhase.RUNNING,
    SUCCEEDED: ElementPhase.ENDED,
    CANCELLED: ElementPhase.ENDED,
    DELETED: ElementPhase.ENDED,
    # the cluster has taken the pod away: nothing is wrong with what ran in it
    **dict.fromkeys(
        ("Evicted", "Preempted", "Preempting", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "NodeAffinity"),
        ElementPhase.ENDED,
    ),
    # a node's kubelet has refused it before it began
    **dict.fromkeys(("OutOfcpu", "OutOfmemory", "OutOfpods", "UnexpectedAdmissionError"), ElementPhase.ENDED),
}
NOTHING: Mapping[str, str] = {}
FAILED = "Failed"
ENDED = ("Complete", "Completed", FAILED)  # conditions of a Job, and of a HyperPodPyTorchJob
INDEX = f"{PREFIX}/index"  # a label: which element of its batch a Job is that was made for another one
SAID = 300  # characters of a reason
REASON = f"{PREFIX}/reason"  # an annotation: why this software has taken a node out of service
AGENT = f"{PREFIX}/health"  # an annotation: what the health agent of a node has decided, as JSON
READY, NOT_READY, UNKNOWN, CORDONED = "ready", "not ready", "unknown", "cordoned"
GPUS = ("nvidia.com/gpu", "amd.com/gpu", "aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "vpc.amazonaws.com/efa")


def element(
    name: str, state: str, node: str, reason: str, job: str, part: str, status: int | None = None
) -> Element | None:
    """An element by its name and state; None for a name that is none."""
    prefix, _, numbers = name.partition("-")
    batch, _, index = numbers.partition("-")
    if prefix != "hp" or not (batch.isdecimal() and index.isdecimal()) or name != element_name(int(batch), int(index)):
        return None
    phase = PHASES.get(state, ElementPhase.FAILED)
    status = 0 if state == SUCCEEDED else status
    return Element(name, state, phase, node, first_line(reason, SAID), job, part, int(batch), (), status)


def elements(
    jobs: Iterable[Object], pods: Iterable[Object], stuck: Mapping[str, str] = NOTHING
) -> dict[str, list[Element]]:
    """All elements, by job; ``stuck``: why pods do not start, by their names."""
    mine: dict[str, list[Object]] = defaultdict(list)
    for pod in pods:
        mine[_about(pod).get("labels", {}).get(JOB_NAME, "")].append(pod)
    found: dict[str, list[Element]] = defaultdict(list)
    for job in jobs:
        read = _element(job, mine.get(_about(job)["name"], []), stuck)
        if read is not None:
            found[read.job].append(read)
    return dict(found)


def _element(job: Object, pods: Sequence[Object], stuck: Mapping[str, str]) -> Element | None:
    about = _about(job)
    marks = about.get("labels", {})
    if not marks.get(JOB) or not marks.get(BATCH):
        return None
    pod = current(pods)
    state, reason = job_state(job, pod, stuck)
    node = pod["spec"].get("nodeName", "") if pod else ""
    return element(element_of(job), state, node, reason, marks[JOB], marks.get(PART, ""), _exit_status(pod))


def lacks_node(element: Element) -> bool:
    """Whether a pod waits for no more than a node, or for its queue: not for a claim, nor for its namespace's quota."""
    if element.state == SUSPENDED:
        return True
    return element.state == PENDING and "nodes are available" in element.reason and "Claim" not in element.reason


def element_of(job: Object) -> str:
    """The name of the element that a Job is: its own, unless its pod was kept for a later job."""
    about = _about(job)
    marks = about.get("labels", {})
    numbers = str(marks.get(BATCH, "")), str(marks.get(INDEX, ""))
    return element_name(*map(int, numbers)) if all(map(str.isdecimal, numbers)) else str(about["name"])


def current(pods: Sequence[Object]) -> Object | None:
    """Of the pods that a Job has made, the one that counts: one that is not being deleted, else the newest."""
    order = sorted(pods, key=lambda pod: (not is_leaving(pod), str(_about(pod).get("creationTimestamp", ""))))
    return order[-1] if order else None


def is_leaving(pod: Object) -> bool:
    """Whether a pod is being deleted: on a node that is lost that lasts until somebody has heard of the node."""
    return bool(_about(pod).get("deletionTimestamp"))


def job_state(job: Object, pod: Object | None, stuck: Mapping[str, str] = NOTHING) -> tuple[str, str]:
    """An element's state and the reason; ``stuck``: see `elements`."""
    about, ended, kind = _about(job), _condition(job, *ENDED), job.get("kind") or JOB_OBJECT.kind
    if about.get("deletionTimestamp"):
        return CANCELLED, f"its {kind} is being deleted"
    if ended is not None and ended["type"] != FAILED:
        # a pod that left with notice has ended well, and then Kubernetes 1.20 keeps the one that it had made instead
        return _pod_state(pod) if pod is not None and _goes_on(pod) else (SUCCEEDED, "")
    if ended is not None:
        return _failure(ended, pod)
    if pod is None or is_leaving(pod):
        if is_suspended(job):
            return SUSPENDED, f"the {kind} is suspended until its queue admits it"
        again = ", and Kubernetes makes another" if kind == JOB_OBJECT.kind else ""
        told = f"its pod is being deleted{again}" if pod else _before_pod(job, stuck.get(about.get("name", ""), ""))
        return (REPLACING if pod else PENDING), told
    state, reason = _pod_state(pod)
    return state, stuck.get(_about(pod).get("name", ""), reason) if _in_creation(state, reason) else reason


def without_pods(makers: Sequence[Object], pods: Sequence[Object]) -> list[Object]:
    """Objects that are to have a pod by now, and have none."""
    have = {_about(pod).get("labels", {}).get(JOB_NAME) for pod in pods}
    return [one for one in makers if _about(one).get("name") not in have and not is_over(one) and not is_suspended(one)]


def _before_pod(job: Object, events: str) -> str:
    """Why there is no pod, as far as what makes it says, or the ``events`` about that."""
    told = [one for one in job.get("status", {}).get("conditions") or () if one.get("status") == "True"]
    said = str(told[-1].get("message") or "") if told else ""
    return f"it has no pod yet{f': {said or events}' if said or events else ''}"


def _goes_on(pod: Object) -> bool:
    """Whether a pod runs or will, whatever has become of its Job."""
    return not is_leaving(pod) and pod.get("status", {}).get("phase", PENDING) in (PENDING, RUNNING)


def is_over(job: Object) -> bool:
    """Whether a Job has ended, so that it makes no further pod."""
    return _condition(job, *ENDED) is not None


def _pod_state(pod: Object) -> tuple[str, str]:
    status = pod.get("status", {})
    phase = status.get("phase", PENDING)
    if phase == RUNNING:
        return RUNNING, ""
    if phase == SUCCEEDED:
        return SUCCEEDED, ""
    if phase == "Failed":
        return _failure({}, pod)
    if not pod["spec"].get("nodeName"):
        placed = _condition(pod, "PodScheduled") or {}
        return PENDING, explained(str(placed.get("message") or "the scheduler has not looked at it yet"))
    waiting = _container(pod).get("state", {}).get("waiting", {})
    return STARTING, ": ".join(filter(None, (waiting.get("reason"), waiting.get("message")))) or PLACED


def is_creating(pod: Object) -> bool:
    """Whether the node of a pod is making its container, as far as the pod says."""
    return not is_leaving(pod) and _in_creation(*_pod_state(pod))


def is_being_created(element: Element) -> bool:
    """Whether its node is making its container, and nothing is known to be wrong."""
    return _in_creation(element.state, element.reason)


def _in_creation(state: str, reason: str) -> bool:
    return state == STARTING and reason.partition(":")[0] in CREATING


def _failure(ended: Object, pod: Object | None) -> tuple[str, str]:
    """Why an element has failed, or who has taken it away. ``ended``: its Job's condition, if that has failed."""
    why, told = ended.get("reason", ""), ended.get("message", "")
    if why == "DeadlineExceeded":
        return why, told
    if pod is None or is_leaving(pod):
        return DELETED, "its pod was deleted"
    status = pod.get("status", {})
    if status.get("reason"):
        return str(status["reason"]), str(status.get("message", ""))
    over = _container(pod).get("state", {}).get("terminated", {})
    if over.get("reason") == "OOMKilled":
        return "OOMKilled", f"it used more memory than its limit; exit code {over.get('exitCode')}"
    said = [line.strip() for line in str(over.get("message") or "").splitlines() if line.strip()]
    if "exitCode" in over:
        return "Failed", ": ".join([f"exit code {over['exitCode']}", *said[-1:]])
    return "Failed", told or "nothing is known of its end"


def _exit_status(pod: Object | None) -> int | None:
    """Negative for a signal, which containers tell as 128 and its number."""
    over = _container(pod).get("state", {}).get("terminated", {}) if pod else {}
    code = over.get("exitCode")
    if not isinstance(code, int):
        return None
    return 128 - code if 128 < code < 160 else code


def nodes(items: Iterable[Object]) -> dict[str, ReportedNode]:
    """Nodes by name. Who takes a node out of service tells why, or nobody knows."""
    found = {}
    for item in items:
        name = _about(item)["name"]
        found[name] = ReportedNode(name, state(item)[0], drained(item), shown_health(item))
    return found


def state(node: Object) -> tuple[str, str]:
    """A node's state, and why it is that."""
    if why := drained(node):
        return CORDONED, why
    ready = _condition(node, "Ready") or {"status": "Unknown", "message": "its kubelet has told nothing yet"}
    word = {"True": READY, "False": NOT_READY}.get(ready["status"], UNKNOWN)
    return word, "" if word == READY else str(ready.get("message", ""))


def drained(node: Object) -> str:
    """Why a node gets no new work, "" where it does."""
    marks, spec = _about(node).get("labels", {}), node.get("spec", {})
    record = shown_health(node)
    ours = record is not None and record.action != "watch"
    if not ours and (vendor := marks.get(STATUS, SCHEDULABLE)) != SCHEDULABLE:
        return str(vendor)
    if not (spec.get("unschedulable") or (ours and is_tainted(node))):
        return ""  # also where an agent only labels it, or a person has returned it to service
    if record is not None and record.fences:
        return first_line(record.reason, SAID)
    return str(_about(node).get("annotations", {}).get(REASON) or "it is cordoned")


def agent_health(node: Object) -> HealthRecord | None:
    """What the health agent of a node has written there; None where there is none, or nothing that can be read."""
    try:
        return HealthRecord.from_json(json.loads(_about(node).get("annotations", {})[AGENT]))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, SpecError):
        return None


def shown_health(node: Object) -> HealthRecord | None:
    """The same, where the label of the node does not say by now that it is otherwise."""
    record = agent_health(node)
    status = _about(node).get("labels", {}).get(STATUS, SCHEDULABLE)
    return record if record is not None and record.labels()[STATUS] == status else None


def is_tainted(node: Object) -> bool:
    """Whether a node has the taint of those that are out of service because of their health."""
    return any(taint.get("key") == STATUS for taint in node.get("spec", {}).get("taints") or ())


def serving(items: Iterable[Object], options: Mapping[str, str]) -> set[str]:
    """Nodes that get work of a job with these options."""
    return {_about(item)["name"] for item in items if state(item)[0] == READY and is_meant(item, options)}


def is_meant(node: Object, options: Mapping[str, str]) -> bool:
    """Whether the labels of a node are those that a job's options ask for."""
    found = _about(node).get("labels", {})
    selected: bool = pairs(options.get("selector", "")).items() <= found.items()
    return selected and all(rule.holds(found) for rule in label_rules(options.get("affinity", "")))


def node_info(node: Object) -> NodeInfo:
    """A node as people are shown it; what is allocated there is not told by the node."""
    has = node.get("status", {}).get("capacity", {})
    word, why = state(node)
    gres = ",".join(f"{name}:{has[name]}" for name in GPUS if has.get(name, "0") != "0")
    cpus = str(has.get("cpu", "0"))
    states = frozenset({word.upper().replace(" ", "_")})
    return NodeInfo(
        _about(node)["name"],
        states,
        why,
        int(cpus) if cpus.isdecimal() else 0,
        0,
        None,
        gres,
        "",
        word != READY,
        shown_health(node),
    )


def _about(thing: Object) -> Mapping[str, Any]:
    found: Mapping[str, Any] = thing.get("metadata", {})
    return found


def _condition(thing: Object, *kinds: str) -> Mapping[str, Any] | None:
    """The condition of one of these kinds; those of Jobs count where they hold."""
    told = thing.get("status", {}).get("conditions") or ()
    found = [one for one in told if one.get("type") in kinds and (len(kinds) == 1 or one.get("status") == "True")]
    return found[0] if found else None


def _container(pod: Object) -> Mapping[str, Any]:
    return next(iter(pod.get("status", {}).get("containerStatuses") or ()), {})
