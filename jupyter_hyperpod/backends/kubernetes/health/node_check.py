"""Runs a check on one node: a Job of one pod there, made like those of the health agents, whose output is read.

It runs on a node that is cordoned or tainted, too, beside the jobs of the node: it requests little, and displaces none.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ....core.errors import ClusterError
from ...types import ElementPhase
from .. import parse
from ..client import MISSING, Api, ApiError
from ..components import OWN_CLASSES
from ..runner import BUSY
from ..workloads.workload import JOB_NAME

NAMESPACE, NAME = "hyperpod-health", "jupyter-hyperpod-health"  # of the agents, and of their objects
AGENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{NAME}"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LOOK_S = 0.5
UNSTARTED_S, GONE_S = 300.0, 30.0
RESOURCES = {"requests": {"cpu": "20m", "memory": "64Mi"}}  # no limit: a deep check takes memory for each core
MARK = {"app.kubernetes.io/name": f"{NAME}-check"}
DRIVER = "NVIDIA_DRIVER_CAPABILITIES"
Object = dict[str, Any]


def recovery(agents: Mapping[str, Any]) -> str:
    """NodeRecovery, as the agents have it; "" where they do not say. Pure."""
    try:
        words = list(agents["spec"]["template"]["spec"]["containers"][0]["command"])
        return str(words[words.index("--recovery") + 1])
    except (KeyError, IndexError, ValueError, TypeError):
        return ""


def job(agents: Mapping[str, Any], node: str, words: Sequence[str], name: str, limit_s: float) -> Object:
    """The Job that runs ``python -m WORDS`` on a node, from the DaemonSet of the agents. Pure.

    Raises ClusterError where that is not one of ours.
    """
    spec: Object = copy.deepcopy(agents["spec"]["template"]["spec"])
    try:
        container = spec["containers"][0]
        python = container["command"][0]
    except (KeyError, IndexError) as error:
        raise ClusterError(f"the DaemonSet {NAME} in {NAMESPACE} is not as `setup apply --health` makes it") from error
    container |= {"name": "check", "command": [python, "-m", *words], "resources": RESOURCES}
    for variable in container.get("env", []):
        if variable["name"] == DRIVER:
            variable["value"] = "compute,utility"
    spec["containers"] = [container]
    spec |= {"restartPolicy": "Never", "automountServiceAccountToken": False, "priorityClassName": OWN_CLASSES[1]}
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    spec["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}
    }
    for account in ("serviceAccountName", "serviceAccount", "nodeName"):
        spec.pop(account, None)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": MARK},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": int(limit_s),
            "ttlSecondsAfterFinished": 300,
            "template": {"metadata": {"labels": MARK}, "spec": spec},
        },
    }


def run(api: Api, node: str, words: Sequence[str], name: str, limit_s: float) -> str:
    """Run ``python -m WORDS`` on a node, and return the last line that it printed.

    Raises ClusterError where it cannot begin or fails, and TimeoutError after ``limit_s``. Nothing is left behind.
    """
    try:
        agents = api.get(AGENTS)
    except ApiError as error:
        if error.status != MISSING:
            raise
        raise ClusterError(
            f"this cluster has no health agents, whose image a check of {node} needs; "
            "`jupyter hyperpod setup apply --health IMAGE` installs them"
        ) from error
    with _made(api, job(agents, node, words, name, limit_s)):
        pod, state, reason = _ended(api, name, node, time.monotonic() + limit_s)
        lines = b"".join(api.logs(pod)).decode(errors="replace").strip().splitlines() if pod else []
    if state != parse.SUCCEEDED:
        last = f": {lines[-1][:300]}" if lines else ""
        raise ClusterError(f"the check of {node} is {state}{f', {reason}' if reason else ''}{last}")
    return lines[-1] if lines else ""


@contextmanager
def _made(api: Api, body: Object) -> Iterator[None]:
    path = f"{JOBS}/{body['metadata']['name']}"
    try:
        api.create(JOBS, body)
        yield
    except BaseException:
        with suppress(ClusterError):  # the Job has a deadline of its own
            api.delete(path)
        raise
    api.delete(path)
    _until_gone(api, body["metadata"]["name"])


def _until_gone(api: Api, name: str) -> None:
    """Wait a while for the end of a deleted Job's pod, for which its namespace could not be removed."""
    until_s = time.monotonic() + GONE_S
    with suppress(ClusterError):  # Kubernetes deletes it all the same
        while api.list(PODS, f"{JOB_NAME}={name}")[0] and time.monotonic() < until_s:
            time.sleep(LOOK_S)


def _ended(api: Api, name: str, node: str, until_s: float) -> tuple[str, str, str]:
    """The pod, the state and the reason of a Job when it has ended."""
    began_s = time.monotonic()
    while time.monotonic() < until_s:
        try:
            pods, _ = api.list(PODS, f"{JOB_NAME}={name}")
            pod = parse.current(pods)
            state, reason = parse.job_state(api.get(f"{JOBS}/{name}"), pod)
        except ClusterError as error:  # it may be away for a while: a deep check takes hours
            if isinstance(error, ApiError) and error.status not in BUSY:
                raise
            time.sleep(LOOK_S)
            continue
        phase = parse.PHASES.get(state, ElementPhase.FAILED)
        if phase in (ElementPhase.ENDED, ElementPhase.FAILED):
            return str(pod["metadata"]["name"]) if pod else "", state, reason
        if phase is not ElementPhase.RUNNING and time.monotonic() > began_s + UNSTARTED_S:
            waited = f"{UNSTARTED_S / 60:g} minutes"
            raise ClusterError(f"the check of {node} has not begun within {waited}: {reason or state}")
        time.sleep(LOOK_S)
    raise TimeoutError(f"{name} did not end in time")
