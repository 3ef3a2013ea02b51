"""A real Kubernetes of several nodes on one machine: each in namespaces of its own, with containerd and a kubelet.

The programs of the control plane run on the host ``ctl``, nodes are ``n1``…, and pods run in namespaces within their
node's. Killing a node's process 1 is a power cut. Hollow nodes say that their pods run, and run none.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

from jupyter_hyperpod.core.errors import ClusterError
from tests.support.hosts import Hosts
from tests.support.kubernetes import access, image, settings
from tests.support.kubernetes.asking import Asker, Refused
from tests.support.kubernetes.boot import SELDOM
from tests.support.kubernetes.build import programs
from tests.support.kubernetes.machine import PLACE, groups, make_groups, missing, name, remove_groups, sweep

CONTROLLER = "ctl"
ETCD, API, MANAGER, SCHEDULER = "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"
UP_S = 120.0
HOLLOW_MOST = 32
OWN_TMP = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /tmp && exec "$@"', "sh")  # it leaves things there
NOT_CONNECTED = re.compile(r"TLS handshake timeout|The connection to the server \S+ was refused")  # nothing was sent


class Testbed:
    """``with Testbed(nodes=2) as bed``: all nodes are ready when it is entered, and the team's namespace is there."""

    __test__ = False

    def __init__(self, nodes: int = 2, environment: Mapping[str, str] | None = None, recorded: str = "") -> None:
        """``environment``: what every process finds in its environment, a mark for example. ``recorded``: the user
        whose requests the API server writes down, for `requests`.

        Raises ClusterError where this machine lacks something, with what to do.
        """
        if lacking := missing():
            raise ClusterError(lacking)
        sweep()
        self.nodes = [f"n{i}" for i in range(1, nodes + 1)]
        self.hollow: list[str] = []
        self.directory = Path(tempfile.mkdtemp(prefix=name(), dir=PLACE))
        self.logs = self.directory / "log"
        self.logs.mkdir()
        self.hosts = Hosts(self.logs, environment or {})
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self._asker = Asker(self.kubeconfig, self.network)
        self._lost_s, self._recorded = settings.LOST_S, recorded

    def __enter__(self) -> Testbed:
        try:
            self._write()
            pack = threading.Thread(target=self._pack, name="images")
            pack.start()
            try:
                self._boot_all()
            finally:
                pack.join()
            self.until(lambda: self.ready() == dict.fromkeys(self.nodes, "True"), "all nodes are ready")
            self.until(lambda: all(map(self._has_images, self.nodes)), "all nodes have the images")
            self.kubectl("apply", "-f", "-", text=settings.team_yaml(access.TEAM, access.USER))
            self.until(lambda: self.has_account(access.TEAM), "the team's pods have an account")
            self.until(self._has_rights, "the API server has learnt of the team's rights")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cut the power of everything, and remove files and control groups."""
        self._asker.close()
        self.hosts.close()
        for process in self._programs.values():
            process.wait()
        remove_groups(self.directory.name)
        shutil.rmtree(self.directory, ignore_errors=True)

    # -- use ---------------------------------------------------------------------------------------------------

    def kubectl(
        self, *arguments: str, user: str = access.ADMIN, text: str = "", timeout_s: float = 60.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl on the controller as somebody. Raises ClusterError where it fails or takes too long.

        With ``check``, it is run again where it could not connect: it waits ten seconds for a server, and no longer.
        """
        fixed = [f"--kubeconfig={self.kubeconfig(user)}", f"--cache-dir={self.directory}/discovered"]
        command = [str(programs() / "kubectl"), *fixed, *arguments]
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self.hosts.run(CONTROLLER, *command, text=text, timeout_s=timeout_s, check=check)
            except ClusterError as error:
                if not NOT_CONNECTED.search(str(error)) or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    @contextmanager
    def network(self) -> Iterator[None]:
        """This thread reaches the API and the nodes, and nothing else; so do threads that it starts meanwhile."""
        with self.hosts.joined(CONTROLLER):
            yield

    def get(self, *arguments: str, user: str = access.ADMIN) -> dict[str, Any]:
        """What `kubectl get` says, as data."""
        if (known := self._asker.get(user, *arguments)) is not None:
            return known
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json", user=user).stdout)
        return found

    def find(self, *arguments: str) -> dict[str, Any]:
        """The same for one object; {} where there is none."""
        try:
            return self.get(*arguments)
        except Refused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return {}

    def log(self, pod: str) -> str:
        """What a pod of the team has written."""
        return self._asker.log(access.USER, pod)

    def kubeconfig(self, user: str = access.ADMIN) -> Path:
        """The file with which somebody reaches the API from a host of this testbed."""
        return self.directory / "access" / user

    def ready(self) -> dict[str, str]:
        """Node -> whether Kubernetes holds it for ready: "True", "False", or "Unknown" where it is not heard of."""
        try:
            items = self.get("nodes")["items"]
        except ClusterError:
            items = []
        pairs = ((one["metadata"]["name"], one["status"].get("conditions", [])) for one in items)
        return {node: next((c["status"] for c in told if c["type"] == "Ready"), "Unknown") for node, told in pairs}

    def has_account(self, namespace: str) -> bool:
        """Whether pods of a namespace can start: the controller manager has made their account and its token."""
        return bool(self.find("serviceaccount", "default", "-n", namespace).get("secrets"))

    def until(self, holds: Callable[[], bool], what: str, timeout_s: float = UP_S) -> None:
        """Wait until something holds. Raises ClusterError with what the programs said last."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline:
                raise ClusterError(f"not within {timeout_s:g} s: {what}\n{self.situation()}\n{self._said()}")
            time.sleep(0.1)

    def requests(self, since_s: float) -> list[tuple[str, str]]:
        """Verb and path of each request of the recorded user that has come since then and was answered."""
        lines = (self.logs / settings.AUDIT_LOG).read_text().splitlines()
        found = [json.loads(line) for line in lines if line.endswith("}")]  # the last one may be half written
        came = [(datetime.fromisoformat(one["requestReceivedTimestamp"]).timestamp(), one) for one in found]
        return [(one["verb"], one["requestURI"]) for at_s, one in came if at_s >= since_s]

    def situation(self) -> str:
        """What Kubernetes says of nodes, pods and events, for people: where something waits, the answer is in there."""
        asks = (("nodes", "-o", "wide"), ("pods", "-A", "-o", "wide"), ("events", "-A"))
        try:
            told = [self.kubectl("get", *ask, "--request-timeout=5s", check=False) for ask in asks]
            return "\n".join(one.stdout + one.stderr for one in told)
        except ClusterError as error:
            return str(error)

    # -- faults ------------------------------------------------------------------------------------------------

    def power_cut(self, node: str) -> None:
        """Everything on the node ends at once; nobody is told."""
        self.hosts.power_cut(node)

    def power_on(self, node: str) -> None:
        """Boot a node again; its disk is as it was."""
        self._boot(node)

    def cut(self, node: str) -> None:
        """Let nothing pass between the node and the others; it is not told."""
        self.hosts.bridge(node, "disabled")

    def heal(self, node: str) -> None:
        """Undo `cut`."""
        self.hosts.bridge(node, "forwarding")

    def restore(self) -> None:
        """Every node is switched on, joined and ready again."""
        for node in self.nodes:
            if not self.hosts.is_up(node):
                self.power_on(node)
            self.heal(node)
        self.until(lambda: all(self.ready()[node] == "True" for node in self.nodes), "all nodes are ready again")

    @contextmanager
    def without(self, program: str) -> Iterator[None]:
        """SIGKILL for a program of the control plane; it is started again at the end."""
        self._stop(program)
        try:
            yield
        finally:
            self._start(program)

    def away(self, program: str, for_s: float) -> None:
        """A program of the control plane is away for so many seconds; it is there again when this returns."""
        with self.without(program):
            time.sleep(for_s)
        if program in (API, ETCD):
            self.until(self._answers, "the API answers again")

    def restart(self, program: str) -> None:
        """SIGKILL for a program of the control plane, and start it again."""
        self.away(program, 0)

    def add_hollow(self, count: int) -> list[str]:
        """Add hollow nodes and return their names once they are ready; a lost node is noticed later from now on."""
        if len(self.hollow) + count > HOLLOW_MOST:
            raise ClusterError(f"{len(self.hollow) + count} hollow nodes are wanted and {HOLLOW_MOST} have tokens")
        self._lost_s = settings.HOLLOW_LOST_S
        self.restart(MANAGER)
        added = self._hollow_names()[len(self.hollow) : len(self.hollow) + count]
        self.hollow += added
        for node in added:
            self._start(node)
        self.until(lambda: self.ready().items() >= dict.fromkeys(added, "True").items(), f"{added} are ready")
        return added

    def lose_later(self) -> None:
        """From now on a node that is not heard of counts as ready for an hour, so objects without a kubelet do, too."""
        self._lost_s = settings.UNHEARD_S
        self.restart(MANAGER)

    # -- how ---------------------------------------------------------------------------------------------------

    def _hollow_names(self) -> list[str]:
        return [f"hollow-{i}" for i in range(1, HOLLOW_MOST + 1)]

    def _write(self) -> None:
        (self.directory / "hosts").write_text(settings.hosts(len(self.nodes)))
        (self.directory / settings.AUDIT_RULES).write_text(settings.audit_yaml(self._recorded))
        access.write(self.directory, self.nodes, self._hollow_names())
        (self.directory / "etcd").mkdir(mode=0o700)
        (self.directory / "tmp").mkdir()
        for index, node in enumerate(self.nodes, 1):
            command = [str(programs() / "kubelet"), *settings.kubelet(self.directory, node)]
            texts = {
                "containerd.toml": settings.containerd_toml(),
                "kubelet.yaml": settings.kubelet_yaml(self.directory, node, index),
                "kubelet.command": "\n".join(command),
                "network.json": settings.network_json(index),
            }
            place = self.directory / "nodes" / node
            place.mkdir(parents=True)
            for file, text in texts.items():
                (place / file).write_text(text)

    def _pack(self) -> None:
        made = self.directory / "images.new"
        image.write(made)
        made.rename(self.directory / "images.tar")

    def _boot_all(self) -> None:
        boot = str(Path(__file__).with_name("boot.py"))
        self.hosts.boot(CONTROLLER, settings.address(0), [boot, CONTROLLER, str(self.directory)])
        self.hosts.ip(CONTROLLER, f"addr add {settings.API_SERVICE}/32 dev lo", *settings.routes(0, len(self.nodes)))
        self._start(ETCD)
        self._start(API)
        for node in self.nodes:
            self._boot(node)
        self.until(self._answers, "the API answers")
        self._start(MANAGER)
        self._start(SCHEDULER)

    def _boot(self, node: str) -> None:
        index = self.nodes.index(node) + 1
        group = f"{self.directory.name}/{node}"
        make_groups(group)
        boot = str(Path(__file__).with_name("boot.py"))
        init = [boot, node, str(self.directory), *map(str, groups(group))]
        self.hosts.boot(node, settings.address(index), init, settings.routes(index, len(self.nodes)))

    def _command(self, program: str) -> list[str]:
        if program == ETCD:
            return settings.etcd(self.directory)
        if program in self.hollow:
            arguments = settings.hollow_kubelet(self.directory, program, self.hollow.index(program) + 1)
            return [*OWN_TMP, str(programs() / "kubemark"), *arguments]
        arguments = {
            API: settings.api_server(self.directory, bool(self._recorded)),
            MANAGER: settings.controller_manager(self.directory, self._lost_s),
            SCHEDULER: settings.scheduler(self.directory),
        }[program]
        return [str(programs() / program), *arguments]

    def _start(self, program: str) -> None:
        environment = {"TMPDIR": str(self.directory / "tmp"), **SELDOM}
        log = self.logs / f"{program}.log"
        self._programs[program] = self.hosts.start(CONTROLLER, self._command(program), log, environment)

    def _stop(self, program: str) -> None:
        self.hosts.kill(self._programs[program])

    def _answers(self) -> bool:
        return self.kubectl("get", "--raw", "/readyz", "--request-timeout=5s", check=False).stdout == "ok"

    def _has_rights(self) -> bool:
        asked = ("auth", "can-i", "create", "configmaps", "-n", access.TEAM)
        return self.kubectl(*asked, user=access.USER, check=False).returncode == 0

    def _has_images(self, node: str) -> bool:
        return self.hosts.run(node, "test", "-e", "/run/booted", check=False).returncode == 0

    def _said(self) -> str:
        logs = [*sorted(self.logs.glob("*")), *sorted(self.directory.glob("nodes/*/*.log"))]
        ends = ((path, path.read_text(errors="replace")[-1500:]) for path in logs)
        return "\n".join(f"-- {path.parent.name}/{path.name}\n{end}" for path, end in ends)
