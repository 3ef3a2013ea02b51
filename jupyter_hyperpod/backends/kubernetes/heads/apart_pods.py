"""The pods of a job's nodes as its head sees them, where each has a store of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from ....core.errors import ClusterError
from .. import manifests, parse
from ..client import Api
from ..doorbell import Doorbell

LIST_S = 0.5  # at least between two lists
QUIET_S = 5.0  # even if no watch has told of a change: a connection may be dead without a sign


class KubernetesApartPods:
    """See `backends.base.ApartPods`."""

    def __init__(self, api: Api, job_id: str) -> None:
        self._api, self._labels = api, f"{manifests.JOB}={job_id}"
        self._listed_s = 0.0
        self._rung = threading.Event()
        self._bell = Doorbell(self._rung.set)

    def running(self) -> Mapping[str, str]:
        self._listed_s = time.monotonic()
        self._rung.clear()
        self._bell.heard()
        path = f"/api/v1/namespaces/{self._api.namespace}/pods"
        pods, version = self._api.list(path, self._labels)
        self._bell.hang(self._api, self._labels, {path: version})
        return {
            pod["metadata"]["name"]: pod["spec"]["nodeName"]
            for pod in pods
            if pod.get("status", {}).get("phase") == parse.RUNNING and not parse.is_leaving(pod)
        }

    def wait(self, limit_s: float) -> None:
        self._rung.wait(max(limit_s, QUIET_S) if self._bell.quiet() else limit_s)
        time.sleep(max(0.0, self._listed_s + LIST_S - time.monotonic()))  # a hundred pods ring a hundred times

    def run(self, pod: str, command: Sequence[str], data: bytes, limit_s: float) -> bytes:
        status, said, errors = self._api.execute(pod, command, data, limit_s, manifests.CONTAINER)
        if status:
            raise ClusterError(f"{pod} says: {errors.decode(errors='replace').strip()[-600:]}")
        return said

    def close(self) -> None:
        self._bell.close()
        self._api.close()
