"""The preloaded interpreter of an environment that is not the cluster's own. It forks one arm per node.

    PYTHON -m jupyter_hyperpod.backends.local.environment_zygote --parent PID --directory DIR --socket NAME …

The cluster's zygote starts it with the environment's own Python, and it ends with that zygote. An arm belongs to its
node: it forks the node's jobs of this environment, in a session of its own, and ends with the node.
"""

from __future__ import annotations

import argparse
import os
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from ...core.errors import ProtocolError
from ...core.spec import LaunchPlan
from ...system.diagnostics import note, open_log
from ...system.json_lines import JsonLineChannel, Message, listen
from ...system.processes import Identity, alive, follow_parent, identify, signal_group
from ..forked import become, redirect, reset_signals
from ..preload import ready_to_fork
from ..source import source_digest
from ..types import HEAD
from .serve import RequestServer


class EnvironmentZygote(RequestServer):
    """Serves arm and end."""

    def __init__(self, directory: Path, listener: socket.socket, path: Path, digest: str) -> None:
        super().__init__(listener, path)
        self._directory, self._digest = directory, digest

    def handle(self, message: Message, channel: JsonLineChannel) -> None:
        if message["op"] == "arm":
            if source_digest() != self._digest:  # the next one imports what was installed or edited meanwhile
                self.running = False
                return
            node, name = Identity(message["pid"], message["start"]), str(message["node"])
            child = self._fork_arm(name, node, message["socket"])
            channel.send({"event": "arm", "pid": child.pid, "start": child.start})
        elif message["op"] == "end":
            self.running = False
        else:
            raise ProtocolError(f"unknown request {message['op']!r}")

    def ended(self, child: Identity, about: Any, status: int) -> None:
        """Arms are watched by their nodes; here they are only collected."""

    def before_reaping(self, child: Identity) -> None:
        """Nothing that an arm has forked outlives it."""
        signal_group(child, signal.SIGKILL)

    def _fork_arm(self, name: str, node: Identity, socket_name: str) -> Identity:
        listener = listen(self._directory, socket_name)
        log = open_log(self._directory / "logs", name)
        path = self._directory / socket_name
        try:
            return self.fork(lambda: run_arm(name, node, listener, path, self._digest, log), name)
        finally:
            listener.close()
            os.close(log)


class Arm(RequestServer):
    """Serves start and signal for one node."""

    def __init__(self, name: str, node: Identity, listener: socket.socket, path: Path, digest: str) -> None:
        super().__init__(listener, path)
        self._name, self._leads = name, name == HEAD
        self._node, self._digest = node, digest
        self.selector.register(os.pidfd_open(node.pid), selectors.EVENT_READ, self._node_ended)
        self.running = alive(node)

    def _node_ended(self) -> None:
        self.running = False

    def handle(self, message: Message, channel: JsonLineChannel) -> None:
        operation = message["op"]
        if operation == "start":
            plan = message["plan"]
            plan = LaunchPlan(**{**plan, "arguments": tuple(plan["arguments"])})
            self._start(plan, message["module"], message["names"], channel)
        elif operation == "signal":
            self._signal(message["job"], message["signal"])
        else:
            raise ProtocolError(f"unknown request {operation!r}")

    def left(self, channel: JsonLineChannel) -> None:
        """The node has no use for this arm any more."""
        self.running = bool(self.channels)

    def ended(self, child: Identity, about: Any, status: int) -> None:
        self.broadcast({"event": "exited", "job": about, "pid": child.pid, "start": child.start, "status": status})

    def before_reaping(self, child: Identity) -> None:
        """A head leads a group: nothing of it stays behind."""
        if self._leads:
            signal_group(child, signal.SIGKILL)

    def _start(self, plan: LaunchPlan, module: str, names: dict[str, str], channel: JsonLineChannel) -> None:
        if source_digest() != self._digest:
            channel.send({"event": "stale", "job": plan.job_id})
            return
        me = os.getpid()
        try:
            log = open_log(Path(plan.log_directory), self._name)
            try:
                child = self.fork(lambda: become(plan, module, log, me, names, self._leads), plan.job_id)
            finally:
                os.close(log)
        except OSError as error:
            note(f"cannot start {module} of {plan.job_id}: {error}")
            channel.send({"event": "refused", "job": plan.job_id, "reason": f"{module} cannot be started: {error}"})
            return
        channel.send({"event": "started", "job": plan.job_id, "pid": child.pid, "start": child.start})

    def _signal(self, job_id: str, number: int) -> None:
        for child, _, about in self.children.values():
            if about == job_id and self._leads:
                signal_group(child, number)
            elif about == job_id:
                os.kill(child.pid, number)


def run_arm(name: str, node: Identity, listener: socket.socket, path: Path, digest: str, log: int) -> int:
    """An arm's whole life, from fork to exit."""
    os.setsid()
    keep = os.dup(listener.fileno())
    listener.detach()
    redirect(log, keep=keep)
    reset_signals()
    try:
        arm = Arm(name, node, socket.socket(fileno=keep), path, digest)
        arm.run()
        for child, _, _ in arm.children.values():
            signal_group(child, signal.SIGKILL)
    finally:
        path.unlink(missing_ok=True)
        signal_group(identify(os.getpid()), signal.SIGKILL)
    return 0


def main() -> int:
    """Preload, then serve until the cluster's zygote has gone."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--listener", type=int, required=True)
    parser.add_argument("--preload", default="")
    options = parser.parse_args()
    if not follow_parent(options.parent):
        return 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    digest = source_digest()
    where = ["--parent", str(options.parent), "--directory", options.directory, "--socket", options.socket]
    again = ["-m", __spec__.name, *where, "--listener", str(options.listener)]
    ready_to_fork([name for name in options.preload.split(",") if name], again, options.listener)
    listener = socket.socket(fileno=options.listener)
    listener.setblocking(False)
    directory = Path(options.directory)
    EnvironmentZygote(directory, listener, directory / options.socket, digest).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
