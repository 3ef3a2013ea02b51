"""Jobs of ours on the testbed's Kubernetes, for benchmarks: their supervisor runs on its controller, faults come from
here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.slurm.rig import ENDLESS, MODEL, PAUSE_S, SUPERVISE, saving
from jupyter_hyperpod.backends.kubernetes.client import Api
from jupyter_hyperpod.backends.kubernetes.kubeconfig import read_access
from jupyter_hyperpod.backends.kubernetes.manifests import JOB
from jupyter_hyperpod.bench.laboratory import LANGUAGE_MODEL, Observer, language_model_env, progress, remove
from jupyter_hyperpod.core.errors import ClusterError
from jupyter_hyperpod.storage.store import Store
from tests.support.kubernetes import ADMIN, CONTROLLER, IMAGE, TEAM, USER, Testbed
from tests.support.kubernetes.machine import groups

OURS = "jupyter_hyperpod"
Part = tuple[list[dict[str, Any]], list[dict[str, Any]]]  # rows and bars
TREE = Path(__file__).resolve().parents[2]
ORDINARY, NICER = 1024, 1.25  # what a process weighs, and how much less for each step of niceness
PODS = f"/api/v1/namespaces/{TEAM}/pods"
BASE, URGENT, SPARE = "bench-base", "bench-urgent", "bench-spare"
CPU = "1500m"  # of a node's two: one pod of ours fills a node
# Three classes, and the right of the user to see nodes, as `setup` gives it.
CLUSTER = f"""apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {{name: {BASE}}}
value: 1000
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {{name: {URGENT}}}
value: 100
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {{name: {SPARE}}}
value: 10
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: bench-nodes}}
rules: [{{apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: bench-nodes}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: bench-nodes}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {USER}}}]
"""
# What a notebook there would do: it submits one cell per line, and says the name of the job.
DESK = """
import json, sys
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.storage.store import Store
store = Store(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    source, fields = json.loads(line)
    print(jobs.submit(store, source, fields), flush=True)
"""


@dataclass
class Rig:
    """``up_s``: how long the testbed took to come up, in seconds. ``api``: of its administrator. ``desk``: a process on
    the controller that submits cells."""

    bed: Testbed
    store: Store
    up_s: float
    api: Api
    desk: subprocess.Popen[str]
    directories: list[str] = field(default_factory=lambda: [sys.prefix, str(TREE)])

    def on(self, *arguments: str, check: bool = True) -> str:
        """What a command of this project prints on the controller."""
        command = [sys.executable, "-m", "jupyter_hyperpod", "--store", str(self.store.root), *arguments]
        env = {"KUBECONFIG": str(self.bed.kubeconfig(USER))}
        return self.bed.hosts.run(CONTROLLER, *command, env=env, check=check, timeout_s=120).stdout

    def submit(self, source: str, **fields: Any) -> Observer:
        """Submit a cell; ``kubernetes`` has further options of it."""
        places = ",".join([*(f"{place}:ro" for place in dict.fromkeys(self.directories)), str(self.store.root)])
        options = {"image": IMAGE, "host-path": places, **fields.pop("kubernetes", {})}
        fixed = {"backend": "kubernetes", "spares": 0, "kubernetes": options, "working_directory": str(self.store.root)}
        assert self.desk.stdin is not None and self.desk.stdout is not None
        print(json.dumps([source, fixed | fields]), file=self.desk.stdin, flush=True)
        if not (job_id := self.desk.stdout.readline().strip()):
            raise ClusterError("the cell was not accepted; what the desk said is above")
        return Observer(self.store, job_id)

    def train(self, name: str, save_every: int = 0, **kubernetes: str) -> Observer:
        """Submit the language model, which saves its state every so many steps, on one node or two."""
        env = language_model_env(self.store, **MODEL, steps=ENDLESS) | {"LM_PAUSE_S": str(PAUSE_S)}
        env |= saving(name, save_every)
        options = {key.replace("_", "-"): value for key, value in kubernetes.items()}
        fields = {"name": name, "nodes": 2, "elastic": "1:2", "env": env, "kubernetes": options}
        return self.submit(LANGUAGE_MODEL.read_text(), **fields)

    def pod(self, name: str, program: str, cpu: str = "", **spec: Any) -> None:
        """Create a bare pod that runs a line of the shell, with the directories that ours have."""
        names = [*dict.fromkeys(self.directories), str(self.store.root)]
        volumes: list[dict[str, Any]] = [
            {"name": f"v{i}", "hostPath": {"path": place}} for i, place in enumerate(names)
        ]
        mounts = [{"name": f"v{i}", "mountPath": place} for i, place in enumerate(names)]
        container: dict[str, Any] = {
            "name": "it",
            "image": IMAGE,
            "command": ["sh", "-c", program],
            "volumeMounts": mounts,
        }
        if cpu:
            container["resources"] = {"requests": {"cpu": cpu}}
        whole = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
        whole |= {"volumes": volumes, **spec}
        with self.bed.network():
            self.api.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole})

    def delete(self, name: str) -> float:
        """Delete a pod as `kubectl delete` does; returns when that was asked for."""
        with self.bed.network():
            asked_s = time.time()
            self.api.delete(f"{PODS}/{name}")
        return asked_s

    def pods(self, job_id: str) -> Mapping[str, list[str]]:
        """Node -> the names of a job's pods there that go on; "" for those that have no node yet."""
        with self.bed.network():
            found, _ = self.api.list(PODS, f"{JOB}={job_id}")
        on_nodes: dict[str, list[str]] = {}
        for pod in found:
            if not pod["metadata"].get("deletionTimestamp") and pod["status"].get("phase") in ("Pending", "Running"):
                on_nodes.setdefault(pod["spec"].get("nodeName", ""), []).append(pod["metadata"]["name"])
        return on_nodes

    def asked_per_s(self, seconds: float) -> tuple[float, int]:
        """Requests of the user in the next ``seconds``, per second, without watches; and the number of watches."""
        began_s = time.time()
        time.sleep(seconds)
        asked = self.bed.requests(began_s)
        watches = [path for verb, path in asked if verb == "watch"]
        return (len(asked) - len(watches)) / seconds, len(watches)

    def until_ready(self, node: str, since_s: float) -> float:
        """Wait until the kubelet of a node that was switched on at ``since_s`` has said that it is ready, and the node
        has no taint; returns when that was seen."""

        def ready() -> bool:
            with self.bed.network():
                found = self.api.get(f"/api/v1/nodes/{node}")
            told = [one for one in found["status"].get("conditions", []) if one["type"] == "Ready"]
            heard_s = [datetime.fromisoformat(one["lastHeartbeatTime"]).timestamp() for one in told]
            # what was heard before the loss is believed for some seconds
            anew = bool(told) and told[0]["status"] == "True" and heard_s[0] >= since_s
            return anew and not found["spec"].get("taints")

        self.bed.until(ready, f"{node} is ready")
        return time.time()

    def until_runs(self, pod: str) -> None:
        """Wait until a pod runs."""
        ask = ("get", "pod", pod, "-n", self.api.namespace, "-o", "jsonpath={.status.phase}")
        self.bed.until(lambda: self.bed.kubectl(*ask, check=False).stdout == "Running", f"{pod} runs")

    def on_nodes(self, watch: Observer) -> list[str]:
        """The nodes of a job's members, by rank."""
        watch.read()
        return [str(member["node"]) for member in watch.view["members"]]


def _weigh(bed: Testbed) -> None:
    """Let pods compete for processors as this process does. A control group weighs as much as one ordinary process,
    however nice those in it are: on a busy machine pods would be measured as they are starved."""
    shares = round(ORDINARY / NICER ** os.nice(0))
    for group in groups(bed.directory.name):
        if (place := group / "cpu.shares").exists():
            place.write_text(str(shares))


@contextmanager
def kubernetes_rig() -> Iterator[Rig]:
    """A testbed of two nodes and a store of its own; both gone afterwards."""
    root = tempfile.mkdtemp(prefix="hyperpod-bench-")
    try:
        store, began_s = Store(root).prepare(), time.monotonic()
        with Testbed(2, recorded=USER) as bed:
            up_s = time.monotonic() - began_s
            progress(f"testbed up after {up_s:.1f} s")
            _weigh(bed)
            bed.kubectl("apply", "-f", "-", text=CLUSTER)
            access = str(bed.kubeconfig(USER))
            bed.hosts.run(CONTROLLER, sys.executable, "-c", SUPERVISE, root, env={"KUBECONFIG": access})
            with bed.network(), Api(replace(read_access(kubeconfig=bed.kubeconfig(ADMIN)), namespace=TEAM)) as api:
                api.get("/version")
            command = bed.hosts.inside(CONTROLLER, [sys.executable, "-c", DESK, root])
            env, pipe = bed.hosts.found({"KUBECONFIG": access}), subprocess.PIPE
            with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env) as desk:
                assert desk.stdin is not None and desk.stdout is not None
                desk.stdout.readline()
                rig = Rig(bed, store, up_s, api, desk)
                try:
                    yield rig
                finally:
                    desk.stdin.close()
                    rig.on("cluster", "stop", check=False)
                    api.close()  # it is used again after the look at its version
    finally:  # after the testbed, whose nodes may be writing there until they are switched off
        remove(root)
