"""The process of one local node, with its own session. It starts a job's processes, by fork where that is equivalent.

Everything a node started dies with it: its processes share its process group, and the kernel kills the
direct ones when the node's own process ends. It needs no supervisor to go on.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...core.errors import ProtocolError
from ...core.spec import LaunchPlan
from ...storage.environment import with_fixed_hashes
from ...system.diagnostics import note, open_log
from ...system.json_lines import JsonLineChannel, Message
from ...system.processes import Identity, die_with_parent, identify, signal_group
from ..forked import become, redirect, reset_signals
from ..source import same_interpreter
from ..types import HEAD
from .foreign import ForeignEnvironments
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
        self,
        who: NodeName,
        warm_key: str,
        listener: socket.socket,
        path: Path,
        place: NetworkPlace | None = None,
    ) -> None:
        super().__init__(listener, path)
        self.who = who
        self.switch = None if place is None else Switch.join(place)
        self.surroundings = {} if place is None else environment(place.index)
        self.warm_key = warm_key
        self.me = identify(os.getpid())
        self.foreign = ForeignEnvironments(self)

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
        own = {about: [child.pid, child.start] for child, _, about in self.children.values()}
        jobs = {"jobs": own | self.foreign.jobs(), "arms": self.foreign.arms()}
        facts = {"pid": self.me.pid, "start": self.me.start, "switch": self.switch.path if self.switch else None}
        return {"event": "hello", **asdict(self.who), **facts, **jobs}

    def tick(self) -> None:
        self.foreign.tick(time.monotonic())

    def _signal(self, job_id: str, number: int) -> None:
        self.foreign.signal(job_id, number)
        for child, _, about in self.children.values():
            if about == job_id:
                if self.who.leads_groups:
                    signal_group(child, number)
                else:
                    os.kill(child.pid, number)

    def _start(self, plan: LaunchPlan, channel: JsonLineChannel) -> None:
        module = plan.head_module if self.who.leads_groups else plan.module
        if not same_interpreter(plan.python) and self.switch is None:
            self.foreign.start(plan, module)
            return
        try:
            if plan.warm_key == self.warm_key and same_interpreter(plan.python):
                child = self._start_warm(plan, module)
            else:
                child = self.start_cold(plan, module)
        except OSError as error:
            note(f"cannot start {module} of {plan.job_id}: {error}")
            channel.send({"event": "refused", "job": plan.job_id, "reason": f"{module} cannot be started: {error}"})
            return
        channel.send({"event": "started", "job": plan.job_id, "pid": child.pid, "start": child.start})

    def _start_warm(self, plan: LaunchPlan, module: str) -> Identity:
        log = open_log(Path(plan.log_directory), self.who.name)
        me, leads = os.getpid(), self.who.leads_groups
        try:
            return self.fork(lambda: become(plan, module, log, me, self.names(), leads), plan.job_id)
        finally:
            os.close(log)

    @property
    def title(self) -> str:
        """The node's name."""
        return self.who.name

    def names(self) -> dict[str, str]:
        """How a process learns where it runs, and whether it stands by for others."""
        return {"HYPERPOD_NODE": self.who.name, "HYPERPOD_SPARE": "1" if self.who.spare else "", **self.surroundings}

    def start_cold(self, plan: LaunchPlan, module: str) -> Identity:
        """Start the plan's own interpreter for `module`. Raises OSError."""
        node = os.getpid()
        directory = plan.working_directory if os.path.isdir(plan.working_directory) else None
        log = open_log(Path(plan.log_directory), self.who.name)
        try:
            process = subprocess.Popen(
                [plan.python, "-m", module, *plan.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
                env=with_fixed_hashes({**os.environ, **plan.env, **self.names()}),
                start_new_session=self.who.leads_groups,
                preexec_fn=lambda: die_with_parent(node),
            )
        finally:
            os.close(log)
        process.returncode = 0  # reaped by `RequestServer`, not by Popen
        return self.track(process.pid, plan.job_id)


def run_node(
    who: NodeName,
    warm_key: str,
    listener: socket.socket,
    path: Path,
    log: int,
    place: NetworkPlace | None,
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
