"""What makes the pod of one node of a job: a Job, or a HyperPodPyTorchJob where a job asks for that operator. Pure.

Fields of HyperPodPyTorchJob: sagemaker.amazonaws.com/v1, as sagemaker-hyperpod 3.12.0 publishes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....core.backend_options import has_operator
from .protocol import PORT

KEPT_S = 3600  # how long an object that has ended is kept, and with it the answer how
JOB_NAME = "job-name"  # the label that Kubernetes gives to the pods of a Job; other pods have it from their template
OPERATOR_PORT = "jupyter_hyperpod.backends.kubernetes.workloads.operator_port"
OPERATOR_GROUP = "sagemaker.amazonaws.com"


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of object of which each makes one pod."""

    kind: str
    group: str
    version: str
    plural: str

    @property
    def resource(self) -> str:
        """As kubectl takes it."""
        return self.plural if self == JOB else f"{self.plural}.{self.group}"

    def path(self, namespace: str) -> str:
        """Where the API has those of a namespace."""
        return f"/apis/{self.group}/{self.version}/namespaces/{namespace}/{self.plural}"

    def program(self, words: Sequence[str]) -> list[str]:
        """What a pod runs for this program of Python, whose first word is the interpreter."""
        return [words[0], "-m", OPERATOR_PORT, *words] if self == OPERATED else list(words)

    def manifest(self, name: str, labels: Mapping[str, str], marks: Mapping[str, str], pod: Object) -> dict[str, Any]:
        """The object with this pod, which has the labels ``marks``."""
        about = {"name": name, "labels": dict(labels)}
        what = {"apiVersion": f"{self.group}/{self.version}", "kind": self.kind, "metadata": about}
        template = {"metadata": {"labels": dict(marks)}, "spec": dict(pod)}
        return {**what, "spec": _operated(name, template) if self == OPERATED else _plain(template)}


Object = Mapping[str, Any]
JOB = Workload("Job", "batch", "v1", "jobs")
OPERATED = Workload("HyperPodPyTorchJob", OPERATOR_GROUP, "v1", "hyperpodpytorchjobs")


def workload(options: Mapping[str, str]) -> Workload:
    """What a job with these options asks for."""
    return OPERATED if has_operator(options) else JOB


def is_suspended(job: Object) -> bool:
    """Whether an object waits until its queue admits it."""
    spec = job.get("spec") or {}
    return bool(spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"))


def _plain(template: Object) -> dict[str, Any]:
    once = {"parallelism": 1, "completions": 1, "backoffLimit": 0}
    return {**once, "ttlSecondsAfterFinished": KEPT_S, "template": template}


def _operated(name: str, template: Object) -> dict[str, Any]:
    """One replica, which is started once: the job's supervisor replaces a node that is lost.

    The operator starts the program through a port of its pod, and counts one process in it, whatever that forks.
    """
    pod = dict(template["spec"])
    (container,) = pod["containers"]
    pod["containers"] = [{**container, "ports": [{"containerPort": PORT}]}]
    marks = {**template["metadata"]["labels"], JOB_NAME: name}
    replica = {"name": "node", "replicas": 1, "template": {"metadata": {"labels": marks}, "spec": pod}}
    never = {"evalPeriodSeconds": KEPT_S, "numRestartBeforeFullJobRestart": 0, "maxFullJobRestarts": 0}
    policy = {"cleanPodPolicy": "None", "jobMaxRetryCount": 0, "ttlSecondsAfterFinished": KEPT_S}
    return {"nprocPerNode": "1", "replicaSpecs": [replica], "runPolicy": {**policy, "restartPolicy": never}}
