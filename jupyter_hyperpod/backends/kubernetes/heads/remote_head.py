"""The head of a job in a pod of its own: a Job of one pod that Kubernetes makes anew where it is lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ....core.backend_options import ACCOUNT, HEAD, HEAD_CLAIM, OF_SUBMITTER, WITHIN, head_store, is_apart
from ....core.errors import ClusterError
from ...types import HeadPhase, HeadState
from .. import manifests, parse
from ..client import Api, ApiError
from ..reasons.stuck_pods import StuckPods
from ..workloads.workload import JOB_NAME, workload

PASSING = (400, 401, 404, 409, 429, 500, 502, 503, 504)  # a later try may not meet it: 400 is a pod that has just ended


class KubernetesHead:
    """See `backends.base.RemoteHead`."""

    def __init__(self, api: Api, options: Mapping[str, str], job_id: str) -> None:
        self._api, self._options, self._job_id = api, dict(options), job_id
        self._name, self._python, self._stuck = manifests.head_name(job_id), "", StuckPods()

    @property
    def store(self) -> str:
        return f"{head_store(self._options)}/{self._job_id}"

    @property
    def own_options(self) -> Mapping[str, str]:
        kept = {name: value for name, value in self._options.items() if name not in OF_SUBMITTER}
        apart = {HEAD: WITHIN} if is_apart(self._options) else {}
        return {**kept, **apart, "namespace": self._api.namespace}

    @property
    def advice(self) -> str:
        kept = HEAD_CLAIM in self._options or not is_apart(self._options)
        return "" if kept else "A volume claim for the head keeps it: submit with --kubernetes head-claim=NAME"

    def refused(self, error: Exception) -> bool:
        return isinstance(error, ApiError) and error.status not in PASSING

    def start(self, python: str) -> None:
        self._python = python
        if self._job() is None:
            program = [*self._program, "serve", *self._aim]
            self._api.create(self._jobs, manifests.head_job(self._job_id, self._options, program, self._account))

    def state(self) -> HeadState:
        job = self._job()
        if job is None:
            return HeadState(HeadPhase.ABSENT, "its Job is gone")
        pods = self._own_pods()
        state, reason = parse.job_state(job, parse.current(pods), self._stuck.told(self._api, pods, [job]))
        if state == parse.RUNNING:
            return HeadState(HeadPhase.RUNNING)
        phase = HeadPhase.WAITING
        if parse.is_over(job):
            phase = HeadPhase.ENDED if state == parse.SUCCEEDED else HeadPhase.FAILED
        failed = int((job.get("status") or {}).get("failed") or 0)
        return HeadState(phase, f"{state}: {reason}" if reason else state, failed)

    def run(self, arguments: Sequence[str], data: bytes, limit_s: float) -> bytes:
        command = [*self._program, arguments[0], *self._aim, *arguments[1:]]
        status, said, errors = self._api.execute(self._pod(), command, data, limit_s)
        if status:
            raise ClusterError(f"the head of {self._job_id} says: {errors.decode(errors='replace').strip()[-600:]}")
        return said

    def follow(self, arguments: Sequence[str], data: bytes, silent_s: float) -> Iterator[bytes]:
        command = [*self._program, arguments[0], *self._aim, *arguments[1:]]
        return self._api.follow(self._pod(), command, data, silent_s)

    def remove(self) -> None:
        """The Job of the head first, which would request other nodes, then those of the nodes, then their pods."""
        self._api.delete(f"{self._jobs}/{self._name}")
        of_job = f"{manifests.JOB}={self._job_id}"
        nodes = workload(self._options).path(self._api.namespace)
        for job in self._api.list(nodes, of_job)[0]:
            self._api.delete(f"{nodes}/{job['metadata']['name']}")
        for pod in [*self._api.list(self._pods, of_job)[0], *self._own_pods()]:
            self._api.delete(f"{self._pods}/{pod['metadata']['name']}", grace_s=1)

    def close(self) -> None:
        self._api.close()

    # -- how ---------------------------------------------------------------------------------------------------

    def _job(self) -> dict[str, Any] | None:
        found, _ = self._api.list(self._jobs, f"{manifests.HEAD}={self._job_id}")
        return next(iter(found), None)

    def _own_pods(self) -> list[dict[str, Any]]:
        return self._api.list(self._pods, f"{JOB_NAME}={self._name}")[0]

    def _pod(self) -> str:
        """The name of the pod that runs now."""
        pod = parse.current(self._own_pods())
        if pod is None or parse.is_leaving(pod) or pod.get("status", {}).get("phase") != parse.RUNNING:
            raise ClusterError(f"the head of {self._job_id} has no pod that runs")
        found: Any = pod["metadata"]["name"]
        return str(found)

    @property
    def _program(self) -> list[str]:
        return [self._python, "-m", "jupyter_hyperpod.supervisor.head_pod"]

    @property
    def _aim(self) -> list[str]:
        return ["--store", self.store, "--job", self._job_id]

    @property
    def _account(self) -> str:
        return self._options.get(ACCOUNT, "default")

    @property
    def _jobs(self) -> str:
        return f"/apis/batch/v1/namespaces/{self._api.namespace}/jobs"

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self._api.namespace}/pods"
