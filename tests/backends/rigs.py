"""What the contract needs of each backend beyond its seam: somewhere to run, and a way to break a node.

A backend without a rig fails the contract: add a class here and a line in `RIGS`.
"""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import stat
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import cast

import pytest

from jupyter_hyperpod import backends
from jupyter_hyperpod.backends.base import Host, Runner
from jupyter_hyperpod.backends.types import Element, ElementPhase, LaunchRequest, Report, Surroundings
from jupyter_hyperpod.control.cluster import daemon_environment
from jupyter_hyperpod.core.spec import LaunchPlan
from tests.leaks import marked_processes
from tests.support.kubernetes import IMAGE, TEAM, USER
from tests.support.kubernetes import Testbed as KubernetesTestbed
from tests.support.slurm import CONTROLLER
from tests.support.slurm import Testbed as SlurmTestbed
from tests.support.slurm.machine import PATH

MARK = "CONTRACT_MARK"
_LETTERS = str.maketrans("0123456789", "ghijklmnop")
# what a backend starts: it says where it is, and then ends, or waits to be told, or sleeps
TINY = """
import os, signal, sys, time
def main():
    told = []
    signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
    print("on", os.environ["HYPERPOD_NODE"], os.getcwd(), sys.argv[1:], flush=True)
    what = os.environ["WHAT"]
    while what in ("sleep", "wait") and not told:
        time.sleep(0.01)
    print("told" if told else "ends", flush=True)
    return int(what) if what.isdigit() else 0
if __name__ == "__main__":
    sys.exit(main())
"""


class Rig:
    """One backend at work, driven by hand as a supervisor does."""

    patience_s = 60.0
    options: Mapping[str, str] = {}

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.mark = f"contract-{secrets.token_hex(6)}"
        self.modules = directory / "modules"
        self.modules.mkdir()
        (self.modules / "tiny_job.py").write_text(TINY)
        self.cluster = directory / "cluster"
        self.cluster.mkdir(mode=stat.S_IRWXU)
        self.selector = selectors.DefaultSelector()
        self.reports: list[Report] = []
        self.backend = backends.load(name)
        environment = daemon_environment(os.environ) | {MARK: self.mark}
        self.runner: Runner = self.backend.open(
            Surroundings(self.cluster, self.selector, self.reports.append, environment), self.options
        )
        # a scheduler remembers jobs for minutes, so each rig's jobs have names of their own
        self.job, self.other = (f"{word}-{self.mark[-8:].translate(_LETTERS)}" for word in ("job", "other"))
        self.jobs: set[str] = set()

    # -- driving -----------------------------------------------------------------------------------------------

    def turn(self) -> bool:
        """One turn of a supervisor's loop."""
        for key, _ in self.selector.select(0.01):
            key.data()
        self.runner.tick(time.monotonic())
        return True

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Turn until a condition holds."""
        deadline = time.monotonic() + self.patience_s
        while not condition():
            assert time.monotonic() < deadline, f"{self.name}: not within {self.patience_s:g} s: {what}"
            self.turn()

    def plan(self, what: str, job: str = "") -> LaunchPlan:
        """A job's process that does ``what``: a number to end with, "wait" to be told, or "sleep"."""
        job = job or self.job
        self.jobs.add(job)
        logs = self.directory / "logs"
        logs.mkdir(exist_ok=True)
        return LaunchPlan(
            job_id=job,
            module="tiny_job",
            head_module="tiny_job",
            arguments=("--x", "it's $HOME"),
            env={"WHAT": what, "PYTHONPATH": str(self.modules), MARK: self.mark},
            python=sys.executable,
            working_directory=str(self.directory),
            log_directory=str(logs),
            warm_key="none",
        )

    def launch(self, plan: LaunchPlan, count: int = 1) -> int:
        """Launch so many processes, each on a node of its own; the batch's number."""
        order = self.runner.launch(plan, self.request(plan.job_id, count))
        self.until(order.done, "an answer to a launch")
        return order.result()

    def elements(self, job: str = "") -> dict[str, Element]:
        """The job's elements, by name, as the backend tells of them from now on."""
        since_s, found = time.monotonic(), None
        deadline = since_s + self.patience_s
        while (found := self.runner.observe(job or self.job, since_s)) is None:
            assert time.monotonic() < deadline, f"{self.name} is not read again: {self.runner.problem}"
            self.turn()
        return {element.name: element for element in found}

    def running(self, count: int, job: str = "") -> list[Element]:
        """Wait until so many elements of a job run and have said so."""
        found: list[Element] = []

        def run() -> bool:
            found[:] = [e for e in self.elements(job).values() if e.phase is ElementPhase.RUNNING]
            return len(found) == count and all("on " in self.log(e.name) for e in found)

        self.until(run, f"{count} elements run")
        return found

    def log(self, name: str) -> str:
        """What an element has written."""
        with suppress(FileNotFoundError):
            return (self.directory / "logs" / f"{self.runner.log(name)}.log").read_text()
        return ""

    def left(self) -> dict[int, str]:
        """Processes of jobs that are still there."""
        return {pid: line for pid, line in marked_processes(self.mark, MARK).items() if "tiny_job" in line}

    # -- what each backend does in its own way -----------------------------------------------------------------

    def request(self, job: str, count: int) -> LaunchRequest:
        """A request for so many processes."""
        return LaunchRequest(count=count, options=self.options)

    def impossible(self) -> LaunchRequest:
        """A request that the backend refuses."""
        raise NotImplementedError

    def lose(self, node: str) -> None:
        """End a node at once, without a word."""
        raise NotImplementedError

    def nodes(self) -> set[str]:
        """The names of the nodes there are."""
        raise NotImplementedError

    def close(self) -> None:
        """End everything."""
        for job in self.jobs:
            order = self.runner.release(job)
            self.until(order.done, "an answer to a release")
        self.runner.close()
        self.selector.close()


class LocalRig(Rig):
    """Three nodes on this machine."""

    def __init__(self, name: str, directory: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(name, directory)
        self.host = cast("Host", self.runner)
        self.host.open({"node-1": False, "node-2": False, "node-3": True})
        self.until(lambda: all(node.state == "idle" for node in self.host.nodes.values()), "all nodes are idle")

    def request(self, job: str, count: int) -> LaunchRequest:
        """The supervisor chooses the nodes."""
        free = [node.name for node in self.host.nodes.values() if job not in node.jobs]
        return LaunchRequest(nodes=free[:count])

    def impossible(self) -> LaunchRequest:
        """No node."""
        return LaunchRequest(nodes=())

    def lose(self, node: str) -> None:
        """Kill the node's own process."""
        pid = self.host.nodes[node].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def nodes(self) -> set[str]:
        """Those of the shape."""
        return {"node-1", "node-2", "node-3"}


class TestbedRig(Rig):
    """A testbed of several machines, which may lose their power."""

    __test__ = False  # pytest would take it for tests
    patience_s = 90.0
    bed: SlurmTestbed | KubernetesTestbed

    def __init__(self, name: str, directory: Path) -> None:
        self.undo = ExitStack()
        try:
            self.reach(directory)
            super().__init__(name, directory)
        except BaseException:
            self.undo.close()
            raise

    def reach(self, directory: Path) -> None:
        """Let this process reach the testbed's scheduler, until `undo` is closed."""
        raise NotImplementedError

    def lose(self, node: str) -> None:
        """Cut the node's power."""
        self.bed.power_cut(node)

    def nodes(self) -> set[str]:
        """Those of the testbed."""
        return set(self.bed.nodes)

    def close(self) -> None:
        """Give everything back."""
        try:
            super().close()
        finally:
            self.undo.close()


# stands in PATH before SLURM's own: a door to the controller's machine, where the real command runs
DOOR = """#!/bin/sh
exec nsenter -t {pid} -m -u -i -n -p --wdns="$PWD" -- env {environment} {command} "$@"
"""


class SlurmRig(TestbedRig):
    """The testbed's SLURM, whose commands are reached through a door."""

    options: Mapping[str, str] = {"partition": "train"}

    def __init__(self, name: str, directory: Path, request: pytest.FixtureRequest) -> None:
        self.bed: SlurmTestbed = request.getfixturevalue("switched_on")
        super().__init__(name, directory)

    def reach(self, directory: Path) -> None:
        """A door for each command; nodes are mended at the end."""
        doors = directory / "doors"
        doors.mkdir()
        environment = " ".join(f"{key}='{value}'" for key, value in {**self.bed.environment, "PATH": PATH}.items())
        for command in ("sbatch", "squeue", "scancel", "sinfo", "sacct", "scontrol"):
            text = DOOR.format(pid=self.bed.pid(CONTROLLER), environment=environment, command=command)
            (doors / command).write_text(text)
            (doors / command).chmod(0o755)
        self.undo.callback(self.bed.restore)
        patch = self.undo.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("PATH", str(doors), prepend=os.pathsep)

    def impossible(self) -> LaunchRequest:
        """A partition that is not there."""
        return LaunchRequest(options={"partition": "nowhere"})


# beyond what people may do in their team's namespace: see nodes, and take them out of service
SEES_NODES = """apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: hyperpod-nodes}}
rules: [{{apiGroups: [""], resources: [nodes], verbs: [get, list, patch]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: hyperpod-nodes}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: hyperpod-nodes}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {user}}}]
"""


class KubernetesRig(TestbedRig):
    """The testbed's Kubernetes, in the network of its controller, as a person of a team."""

    def __init__(self, name: str, directory: Path, request: pytest.FixtureRequest) -> None:
        self.bed: KubernetesTestbed = request.getfixturevalue("kubernetes")
        self.bed.kubectl("apply", "-f", "-", text=SEES_NODES.format(user=USER))
        self.options = {"image": IMAGE, "host-path": f"{sys.prefix}:ro,{directory}", "namespace": TEAM}
        super().__init__(name, directory)

    def reach(self, directory: Path) -> None:
        """The network of the controller, and a kubeconfig."""
        self.undo.enter_context(self.bed.network())
        patch = self.undo.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("KUBECONFIG", str(self.bed.kubeconfig(USER)))

    def impossible(self) -> LaunchRequest:
        """A selector that no label can match."""
        return LaunchRequest(options={**self.options, "selector": "no label=x"})


RIGS: dict[str, Callable[[str, Path, pytest.FixtureRequest], Rig]] = {
    "local": LocalRig,
    "slurm": SlurmRig,
    "kubernetes": KubernetesRig,
}
