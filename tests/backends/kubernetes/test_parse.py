"""Jobs, pods and nodes as the API of Kubernetes 1.20 told them on the testbed, cut to what is read of them."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_hyperpod.backends.kubernetes import parse
from jupyter_hyperpod.backends.kubernetes.reasons.unschedulable import UNBOUND
from jupyter_hyperpod.backends.types import BASE, Element, ElementPhase
from jupyter_hyperpod.core.health import STATUS
from jupyter_hyperpod.core.units import first_line

NAME = "hp-1764163651000000-0"
LABELS = {"jupyter-hyperpod/job": "train-abcdefgh", "jupyter-hyperpod/part": BASE}
LABELS |= {"jupyter-hyperpod/batch": "1764163651000000"}


def job(kind: str = "", reason: str = "", message: str = "", **about: Any) -> dict[str, Any]:
    ends = [{"type": kind, "status": "True", "reason": reason, "message": message}] if kind else []
    return {"metadata": {"name": NAME, "labels": LABELS, **about}, "spec": {}, "status": {"conditions": ends}}


def pod(phase: str, node: str = "n1", leaving: bool = False, born: str = "1", **status: Any) -> dict[str, Any]:
    about: dict[str, Any] = {"name": f"{NAME}-x{born}", "labels": {**LABELS, "job-name": NAME}}
    about["creationTimestamp"] = f"2026-01-01T00:00:0{born}Z"
    if leaving:
        about["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    return {"metadata": about, "spec": {"nodeName": node} if node else {}, "status": {"phase": phase, **status}}


def over(code: int, reason: str = "Error", message: str = "") -> list[dict[str, Any]]:
    return [{"name": "main", "state": {"terminated": {"exitCode": code, "reason": reason, "message": message}}}]


def waits(reason: str, message: str = "") -> list[dict[str, Any]]:
    told = {"reason": reason, "message": message} if message else {"reason": reason}
    return [{"name": "main", "state": {"waiting": told}}]


def one(jobs: list[dict[str, Any]], pods: list[dict[str, Any]]) -> Element:
    ((element,),) = parse.elements(jobs, pods).values()
    assert (element.name, element.job, element.part, element.batch) == (NAME, "train-abcdefgh", BASE, 1764163651000000)
    return element


UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available: 2 too few cpus."}]
FAILED = job("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")


@pytest.mark.parametrize(
    ("jobs", "pods", "state", "phase", "node", "status", "reason"),
    [
        (job(), [], "Pending", "QUEUED", "", None, "no pod yet"),
        ({**job(), "spec": {"suspend": True}}, [], "Suspended", "QUEUED", "", None, "queue admits it"),
        (job(), [pod("Pending", "", conditions=UNSCHEDULABLE)], "Pending", "QUEUED", "", None, "2 too few cpus"),
        (job(), [pod("Pending")], "Starting", "WAITING", "n1", None, "being started"),
        (
            job(),
            [pod("Pending", containerStatuses=waits("ErrImagePull", "not found"))],
            *("Starting", "WAITING", "n1", None, "ErrImagePull: not found"),
        ),
        (job(), [pod("Running")], "Running", "RUNNING", "n1", None, ""),
        (job(), [pod("Running", leaving=True)], "Replacing", "WAITING", "n1", None, "makes another"),
        (job(), [pod("Running", leaving=True), pod("Running", "n2", born="2")], "Running", "RUNNING", "n2", None, ""),
        (job(), [pod("Pending", "", born="2"), pod("Running", leaving=True)], "Pending", "QUEUED", "", None, "looked"),
        (job(), [pod("Succeeded", containerStatuses=over(0))], "Succeeded", "ENDED", "n1", 0, ""),
        (job("Complete"), [pod("Succeeded", containerStatuses=over(0))], "Succeeded", "ENDED", "n1", 0, ""),
        (job("Complete"), [], "Succeeded", "ENDED", "", 0, ""),
        (job("Complete"), [pod("Running", leaving=True)], "Succeeded", "ENDED", "n1", 0, ""),
        (job("Complete"), [pod("Running", "n2", born="2")], "Running", "RUNNING", "n2", None, ""),
        (job("Complete"), [pod("Pending", "", born="2")], "Pending", "QUEUED", "", None, "looked"),
        (FAILED, [pod("Failed", containerStatuses=over(7))], "Failed", "FAILED", "n1", 7, "exit code 7"),
        (
            FAILED,
            [pod("Failed", containerStatuses=over(1, message="Traceback …\n No module named x\n\n"))],
            *("Failed", "FAILED", "n1", 1, "exit code 1: No module named x"),
        ),
        (FAILED, [pod("Failed", containerStatuses=over(137))], "Failed", "FAILED", "n1", -9, "exit code 137"),
        (
            FAILED,
            [pod("Failed", containerStatuses=over(137, "OOMKilled"))],
            *("OOMKilled", "FAILED", "n1", -9, "more memory than its limit"),
        ),
        (
            FAILED,
            [pod("Failed", reason="Evicted", message="The node was low on resource: memory.")],
            *("Evicted", "ENDED", "n1", None, "low on resource"),
        ),
        (FAILED, [], "Deleted", "ENDED", "", None, "its pod was deleted"),
        (FAILED, [pod("Running", leaving=True)], "Deleted", "ENDED", "n1", None, "its pod was deleted"),
        (job("Failed", "DeadlineExceeded", "active too long"), [], "DeadlineExceeded", "FAILED", "", None, "too long"),
        (job(deletionTimestamp="x"), [pod("Running")], "Cancelled", "ENDED", "n1", None, "being deleted"),
    ],
)
def test_an_element_is_what_its_job_and_its_pods_say(
    jobs: dict[str, Any], pods: list[dict[str, Any]], state: str, phase: str, node: str, status: int, reason: str
) -> None:
    element = one([jobs], pods)
    assert (element.state, element.phase.name, element.node, element.status) == (state, phase, node, status)
    assert reason in element.reason
    again = parse.element(NAME, element.state, element.node, element.reason, element.job, element.part)
    assert again is not None and again.phase is element.phase, (
        "the journal keeps the state, from which the phase follows"
    )


@pytest.mark.parametrize(
    ("found", "created"),
    [
        (pod("Pending", ""), False),
        (pod("Pending"), True),
        (pod("Pending", containerStatuses=waits("ContainerCreating")), True),
        (pod("Pending", containerStatuses=waits("ErrImageNeverPull", "it is not there")), False),
        (pod("Pending", containerStatuses=waits("ImagePullBackOff")), False),
        (pod("Running"), False),
        (pod("Pending", leaving=True), False),
    ],
)
def test_a_pod_is_being_created_once_it_is_placed_unless_something_is_wrong(
    found: dict[str, Any], created: bool
) -> None:
    assert parse.is_being_created(one([job()], [found])) is created


def test_jobs_of_others_are_left_out() -> None:
    assert parse.elements([{"metadata": {"name": "import", "labels": {}}}, {"metadata": {"name": "x"}}], []) == {}
    assert parse.elements([], [pod("Running")]) == {}, "what a deleted Job has left is no element"
    foreign = {"metadata": {"name": "mine", "labels": LABELS}}
    assert parse.elements([foreign], []) == {}


def node(ready: str = "True", **more: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready, "message": "kubelet stopped posting"}]
    about = {"name": "n1", "labels": more.pop("labels", {}), "annotations": more.pop("annotations", {})}
    capacity = {"cpu": "96", "nvidia.com/gpu": "8", "memory": "1Ti"}
    return {"metadata": about, "spec": more, "status": {"conditions": conditions, "capacity": capacity}}


def test_nodes_and_who_took_them_out_of_service() -> None:
    assert parse.state(node()) == ("ready", "")
    assert parse.state(node("False")) == ("not ready", "kubelet stopped posting")
    assert parse.state(node("Unknown")) == ("unknown", "kubelet stopped posting")
    assert parse.state({"metadata": {"name": "n1"}}) == ("unknown", "its kubelet has told nothing yet")
    assert parse.state(node(unschedulable=True)) == ("cordoned", "it is cordoned")
    assert parse.drained(node(unschedulable=True, annotations={parse.REASON: "hyperpod: a bad disk"})).endswith("disk")
    marked = {STATUS: "UnschedulablePendingReplacement"}
    assert parse.drained(node(labels=marked)) == "UnschedulablePendingReplacement"
    assert parse.drained(node("Unknown")) == "", "a node that is lost is no node that is taken out of service"
    info = parse.node_info(node(unschedulable=True))
    assert (info.cpus, info.gres, info.out, info.states) == (96, "nvidia.com/gpu:8", True, {"CORDONED"})
    assert not parse.node_info(node()).out


def test_nodes_that_get_work_of_a_job() -> None:
    items = [node(labels={"zone": "a"}), {**node(labels={"zone": "b"}), "metadata": {"name": "n2", "labels": {}}}]
    assert parse.serving(items, {}) == {"n1", "n2"}
    assert parse.serving(items, {"selector": "zone=a"}) == {"n1"}
    assert parse.serving([node("Unknown"), node(unschedulable=True)], {}) == set()
    for rule, meant in (
        ("zone=a|c", {"n1"}),
        ("zone=b,zone", set()),
        ("zone!=a", {"n2"}),
        ("zone!=c", {"n1", "n2"}),
        ("zone", {"n1"}),
        ("!zone", {"n2"}),
    ):
        assert parse.serving(items, {"affinity": rule}) == meant, rule


def test_every_phase_has_a_state() -> None:
    assert set(parse.PHASES.values()) == set(ElementPhase) - {ElementPhase.FAILED}


BUSY = "0/2 nodes are available: 2 Insufficient cpu."
TAINT = "1 node(s) had taint {node-role.kubernetes.io/master: }, that the pod didn't tolerate"


@pytest.mark.parametrize(
    ("raw", "plain", "lacks"),
    [
        (BUSY, "no node can take it: 2 nodes have too few processors (cpu) left", True),
        (
            f"0/3 nodes are available: {TAINT}, 2 Insufficient memory.",
            "no node can take it: 1 node has a taint that the job does not tolerate (--kubernetes tolerations=…), "
            "2 nodes have too little memory left",
            True,
        ),
        (
            "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) were unschedulable. preemption: 0/2 "
            "nodes are available: 1 No preemption victims found, 1 Preemption is not helpful for scheduling.",
            "no node can take it: 1 node has too few devices (nvidia.com/gpu) left, 1 node is cordoned",
            True,
        ),
        (
            "0/2 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/unschedulable: }, "
            "1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }.",
            "no node can take it: 1 node is cordoned, 1 node is not ready",
            True,
        ),
        (
            "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) didn't match pod "
            "anti-affinity rules, 1 node(s) didn't satisfy existing pods anti-affinity rules.",
            "no node can take it: 1 node has other labels than the job asks for, or is avoided, "
            "1 node has a pod of this job already",
            True,
        ),
        (
            "0/2 nodes are available: 2 pod has unbound immediate PersistentVolumeClaims.",
            UNBOUND,
            False,
        ),
        (
            '0/2 nodes are available: persistentvolumeclaim "data" not found. preemption: 0/2 nodes are available.',
            UNBOUND,
            False,
        ),
        ('persistentvolumeclaim "data" not found', UNBOUND, False),
        ("0/2 nodes are available: 2 of another reason.", "", True),
        ("running PreBind plugin: a timeout", "", False),
    ],
)
def test_why_there_is_no_node_is_said_in_plain_words_before_those_of_the_scheduler(
    raw: str, plain: str, lacks: bool
) -> None:
    waits = pod("Pending", "", conditions=[{"type": "PodScheduled", "status": "False", "message": raw}])
    element = one([job()], [waits])
    said = f"{plain}: {raw}" if plain else raw
    assert element.reason == first_line(said, parse.SAID) and raw[:50] in element.reason
    assert parse.lacks_node(element) is lacks
