"""A stand-in for HyperPod's training operator, whose own program is not published: it does what its documents say.

    python -m tests.backends.kubernetes.stand_in_operator KUBECONFIG

It makes the pods of each HyperPodPyTorchJob, starts the programs in them through port 8080 when all are ready, lets
them end when all have completed, and starts anew, or gives up, where one is lost. The other end of that port was tried
with the operator's own agent (hyperpod-elastic-agent 1.1.3), by hand.
"""

from __future__ import annotations

import copy
import http.client
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyter_hyperpod.backends.kubernetes.client import Api, ApiError
from jupyter_hyperpod.backends.kubernetes.kubeconfig import read_access
from jupyter_hyperpod.backends.kubernetes.workloads.protocol import PORT
from jupyter_hyperpod.backends.kubernetes.workloads.workload import OPERATED, OPERATOR_GROUP
from jupyter_hyperpod.core.errors import ClusterError

LOOK_S, ANSWERS_S = 0.2, 2.0
OF_JOB = "HPJob"  # the label by which the vendor's command line finds the pods of a job
ENDED = ("Completed", "Failed")
DEFINITION = Path(__file__).parents[2] / "data" / "kubernetes" / "hyperpodpytorchjobs.yaml"
Object = Mapping[str, Any]


def ask(address: str, path: str, request: Object | None = None, port: int = PORT) -> dict[str, Any] | None:
    """What the program of a pod answers; None where it does not."""
    connection = http.client.HTTPConnection(address, port, timeout=ANSWERS_S)
    try:
        content = None if request is None else json.dumps(request)
        connection.request("GET" if path == "/status" else "POST", path, content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        told = answer.read()
        return (json.loads(told) if told else {}) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def start_request(rank: int, count: int, faults: int, master: str) -> dict[str, Any]:
    """What a pod is told when all are ready."""
    return {"rank": rank, "nnodes": count, "faultCount": faults, "master_addr": master, "master_port": "29500"}


class Operator:
    """What it remembers: how often each job was started anew."""

    def __init__(self, api: Api) -> None:
        self._api, self._faults = api, dict[str, int]()

    def look(self) -> None:
        """Do for each job what is next."""
        jobs, _ = self._api.list(f"/apis/{OPERATOR_GROUP}/{OPERATED.version}/{OPERATED.plural}")
        for job in jobs:
            told = {one["type"] for one in job.get("status", {}).get("conditions", ())}
            if not told & set(ENDED) and not job["metadata"].get("deletionTimestamp"):
                with suppress(ClusterError):
                    self._serve(job, "Running" in told)

    def _serve(self, job: Object, runs: bool) -> None:
        wanted = [
            (f"{job['metadata']['name']}-{spec['name']}-{number}", spec)
            for spec in job["spec"]["replicaSpecs"]
            for number in range(spec.get("replicas", 0))
        ]
        space = f"/api/v1/namespaces/{job['metadata']['namespace']}/pods"
        there = {
            one["metadata"]["name"]: one for one in self._api.list(space, f"{OF_JOB}={job['metadata']['name']}")[0]
        }
        there = {name: pod for name, pod in there.items() if not pod["metadata"].get("deletionTimestamp")}
        phases = {name: pod.get("status", {}).get("phase", "Pending") for name, pod in there.items()}
        lost = [name for name, _ in wanted if phases.get(name, "Lost") in ("Lost", "Failed")]
        if runs and lost:
            self._start_anew(job, list(there.values()), lost, space)
            return
        for name, spec in wanted:
            if name not in there:
                with suppress(ApiError):
                    self._api.create(space, pod_of(job, name, spec))
        if set(phases.values()) <= {"Running", "Succeeded"} and len(there) == len(wanted):
            self._talk(job, [there[name] for name, _ in wanted])

    def _start_anew(self, job: Object, pods: Sequence[Object], lost: Sequence[str], space: str) -> None:
        name, policy = job["metadata"]["name"], job["spec"].get("runPolicy", {}).get("restartPolicy", {})
        allowed = policy.get("numRestartBeforeFullJobRestart", 0) + policy.get("maxFullJobRestarts", 0)
        self._faults[name] = faults = self._faults.get(name, 0) + 1
        if faults > allowed:
            self._say(job, "Failed", f"{', '.join(lost)} failed")
            return
        for pod in pods:
            ask(pod["status"].get("podIP", ""), "/stop", {"restart_mode": "plr"})
            if pod["metadata"]["name"] in lost:
                self._api.delete(f"{space}/{pod['metadata']['name']}", grace_s=0)
        self._say(job, "Starting", "it is started anew")

    def _talk(self, job: Object, pods: Sequence[Object]) -> None:
        addresses = [pod["status"].get("podIP", "") for pod in pods]
        answers = [ask(one, "/status") if one else None for one in addresses]
        states = {(one or {}).get("status", "") for one in answers}
        if {pod["status"]["phase"] for pod in pods} == {"Succeeded"}:
            self._say(job, "Completed", "all pods have ended well")
        elif states == {"ready"}:
            faults = self._faults.get(job["metadata"]["name"], 0)
            for rank, address in enumerate(addresses):
                ask(address, "/start", start_request(rank, len(pods), faults, addresses[0]))
            self._say(job, "Running", "all pods were started")
        elif states == {"completed"}:
            for address in addresses:
                ask(address, "/shutdown", {})

    def _say(self, job: Object, kind: str, message: str) -> None:
        about = job["metadata"]
        told = [{"type": kind, "status": "True", "message": message}]
        path = f"{OPERATED.path(about['namespace'])}/{about['name']}/status"
        self._api.patch(path, {"status": {"conditions": told}})


def pod_of(job: Object, name: str, spec: Object) -> dict[str, Any]:
    """A pod as the template of a replica has it, which goes when its job does."""
    about, template = job["metadata"], copy.deepcopy(spec["template"])
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": about["name"], "uid": about["uid"]}
    template["metadata"] = {
        "name": name,
        "labels": {**template.get("metadata", {}).get("labels", {}), OF_JOB: about["name"]},
        "ownerReferences": [{**owner, "controller": True}],
    }
    return {"apiVersion": "v1", "kind": "Pod", **template}


def main() -> None:
    """Look after all jobs, until this process is ended."""
    with Api(read_access(kubeconfig=Path(sys.argv[1]))) as api:
        operator = Operator(api)
        while True:
            with suppress(ClusterError):
                operator.look()
            time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
