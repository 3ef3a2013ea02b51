"""The process of one local node, with its own session. It starts a job's processes, by fork where that is equivalent.

Everything a node started dies with it: its processes share its process group, and the kernel kills the
direct ones when the node's own process ends. It needs no supervisor to go on.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...core.errors import ProtocolError
from ...core.spec import LaunchPlan
from ...storage.environment import tell_loaded_libraries
from ...system.diagnostics import note, open_log
from ...system.json_lines import JsonLineChannel, Message
from ...system.processes import Identity, close_descriptors, die_with_parent, identify, signal_group
from ..source import same_interpreter
from ..types import HEAD
from .network import NetworkPlace, Switch, environment
from .serve import RequestServer


@dataclass(frozen=True, slots=True)
class NodeName:
    """Who a node is: it keeps ``name`` when it is replaced, and counts ``incarnation`` up from 1."""

    name: str
    incarnation: int
    spare: bool

    @property
    def leads_groups(self) -> bool:
        """Heads live beside each other on one host and must not share a group."""
        return self.name == HEAD


class Node(RequestServer):
    """Serves hello, ping, start, signal and end."""

    def __init__(
        self, who: NodeName, warm_key: str, listener: socket.socket, path: Path, place: NetworkPlace | None = None
    ) -> None:
        super().__init__(listener, path)
        self.who = who
        self.switch = None if place is None else Switch.join(place)
        self.surroundings = {} if place is None else environment(place.index)
        self.warm_key = warm_key
        self.me = identify(os.getpid())

    def handle(self, message: Message, channel: JsonLineChannel) -> None:
        operation = message["op"]
        if operation == "hello":
            channel.send(self._hello())
        elif operation == "ping":
            channel.send({"event": "pong"})
        elif operation == "start":
            plan = message["plan"]
            self._start(LaunchPlan(**{**plan, "arguments": tuple(plan["arguments"])}), channel)
        elif operation == "signal":
            self._signal(message["job"], message["signal"])
        elif operation == "end":
            self.running = False
        else:
            raise ProtocolError(f"unknown request {operation!r}")

    def ended(self, child: Identity, about: Any, status: int) -> None:
        self.broadcast({"event": "exited", "job": about, "pid": child.pid, "start": child.start, "status": status})

    def before_reaping(self, child: Identity) -> None:
        """A head leads a group: nothing of it stays behind."""
        if self.who.leads_groups:
            signal_group(child, signal.SIGKILL)

    def _hello(self) -> Message:
        jobs = {about: [child.pid, child.start] for child, _, about in self.children.values()}
        facts = {"pid": self.me.pid, "start": self.me.start, "switch": self.switch.path if self.switch else None}
        return {"event": "hello", **asdict(self.who), **facts, "jobs": jobs}

    def _signal(self, job_id: str, number: int) -> None:
        for child, _, about in self.children.values():
            if about == job_id:
                if self.who.leads_groups:
                    signal_group(child, number)
                else:
                    os.kill(child.pid, number)

    def _start(self, plan: LaunchPlan, channel: JsonLineChannel) -> None:
        warm = plan.warm_key == self.warm_key and same_interpreter(plan.python)
        module = plan.head_module if self.who.leads_groups else plan.module
        try:
            log = open_log(Path(plan.log_directory), self.who.name)
            try:
                if warm:
                    me = os.getpid()
                    child = self.fork(lambda: self._become(plan, module, log, me), plan.job_id)
                else:
                    child = self.track(self._start_cold(plan, module, log).pid, plan.job_id)
            finally:
                os.close(log)
        except OSError as error:
            note(f"cannot start {module} of {plan.job_id}: {error}")
            channel.send({"event": "refused", "job": plan.job_id, "reason": f"{module} cannot be started: {error}"})
            return
        started = {"event": "started", "job": plan.job_id, "pid": child.pid, "start": child.start, "warm": warm}
        channel.send(started)

    def _become(self, plan: LaunchPlan, module: str, log: int, parent: int) -> int:
        """Turn a fresh fork into the job's process: as if ``python -m module`` had been started."""
        die_with_parent(parent)
        if self.who.leads_groups:
            os.setsid()
        redirect(log)
        reset_signals()
        os.environ.update(plan.env)
        os.environ.update(self._names())
        enter(plan)
        sys.argv = [module, *plan.arguments]
        sys.path[0] = os.getcwd()
        tell_loaded_libraries(plan.env)
        main: Callable[[], int | None] = importlib.import_module(module).main
        return main() or 0

    def _names(self) -> dict[str, str]:
        """How a process learns where it runs, and whether it stands by for others."""
        return {"HYPERPOD_NODE": self.who.name, "HYPERPOD_SPARE": "1" if self.who.spare else "", **self.surroundings}

    def _start_cold(self, plan: LaunchPlan, module: str, log: int) -> subprocess.Popen[bytes]:
        node = os.getpid()
        directory = plan.working_directory if os.path.isdir(plan.working_directory) else None
        process = subprocess.Popen(
            [plan.python, "-m", module, *plan.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            env={**os.environ, **plan.env, **self._names()},
            start_new_session=self.who.leads_groups,
            preexec_fn=lambda: die_with_parent(node),
        )
        process.returncode = 0  # reaped by `RequestServer`, not by Popen
        return process


def run_node(
    who: NodeName, warm_key: str, listener: socket.socket, path: Path, log: int, place: NetworkPlace | None
) -> int:
    """A node's whole life, from fork to exit."""
    os.setsid()
    keep = os.dup(listener.fileno())
    listener.detach()
    redirect(log, keep=keep)
    reset_signals()
    node = Node(who, warm_key, socket.socket(fileno=keep), path, place)
    node.run()
    for child, _, _ in node.children.values():
        signal_group(child, signal.SIGKILL)
    signal_group(node.me, signal.SIGKILL)
    return 0


def redirect(log: int, keep: int = -1) -> None:
    """Standard input from nowhere, output and errors to `log`; close all other descriptors but `keep`."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target, inheritable=True)
    os.closerange(3, keep)
    close_descriptors(max(3, keep + 1))


def reset_signals() -> None:
    """What `python -m` would have found."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def enter(plan: LaunchPlan) -> None:
    """Go to the plan's directory; where it is gone (another machine's path), stay and say so."""
    try:
        os.chdir(plan.working_directory or "/")
    except OSError as error:
        note(f"the working directory cannot be entered, {os.getcwd()} is used instead: {error}")
