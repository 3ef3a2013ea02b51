"""This machine as the supervisor sees it: one zygote, the nodes forked from it, and a host for the jobs' heads.

Nodes do not need this object: when the supervisor dies they go on, and a new one adopts them through their sockets.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import ClusterError, ProtocolError
from ...core.spec import Handle, LaunchPlan
from ...system.json_lines import Channel, Message, connect, listen
from ...system.processes import Identity, alive, identify, signal_group
from ..base import Backend, ExitReport, NodeReport, Report
from .network import HEAD_INDEX, SHARED, Place, Switch
from .node import HEAD, open_log, plan_to_json
from .serve import note
from .warm import LOG, SOCKET

HELLO_TIMEOUT_S = 1.0
PING_EVERY_S = 0.5
SILENT_PINGS = 6
STILLBORN_S = 1.0
STILLBORN_PAUSE_S = 0.5
ZYGOTE_PAUSE_S = (0.0, 0.5, 1.0, 2.0, 5.0)
CUT_OFF = "cut off from the network; `jupyter hyperpod cluster heal` brings it back"


@dataclass
class LocalNode:
    """One node: a process group on this machine."""

    name: str
    spare: bool
    index: int = HEAD_INDEX
    state: str = "starting"
    reason: str = "waits for the preloaded interpreter"
    incarnation: int = 0
    process: Identity | None = None
    jobs: dict[str, Handle] = field(default_factory=dict)
    born_s: dict[str, float] = field(default_factory=dict)
    sessions: dict[str, Identity] = field(default_factory=dict)
    channel: Channel | None = None
    pidfd: int = -1
    unanswered: int = 0
    cut: bool = False
    drained: str = ""  # why it gets no new work; empty where it does
    spawned_s: float = 0.0
    again_s: float = 0.0

    @property
    def pid(self) -> int | None:
        """The node's own process."""
        return self.process.pid if self.process else None


class LocalHost:
    """The local backend; see `backends.base.Backend`. Registers callbacks with the supervisor's selector."""

    def __init__(
        self,
        directory: Path,
        selector: selectors.BaseSelector,
        preload: tuple[str, ...],
        report: Callable[[Report], None],
        environment: Mapping[str, str],
        isolated: bool = False,
        heir: Mapping[str, object] | None = None,
    ) -> None:
        """``isolated``: every node has a network of its own, and can be cut off.

        ``heir`` is what the zygote is told, so that it can start the supervisor again: see `heir.Heir`.
        """
        self.directory = directory
        self.nodes: dict[str, LocalNode] = {}
        self.head = LocalNode(HEAD, spare=False)
        self.warm_key = ""
        self._selector = selector
        self._preload = preload
        self._report = report
        self._environment = environment
        self.isolated = isolated
        self._switch: Switch | None = None
        self._heir = heir or {}
        self._zygote: Channel | None = None
        self._zygote_process: subprocess.Popen[bytes] | None = None
        self._zygote_identity: Identity | None = None
        self._zygote_ready = False
        self._zygote_failures = 0
        self._zygote_again_s = 0.0
        self._pinged_s = 0.0

    # -- coming up ---------------------------------------------------------------------------------------------

    def open(self, shape: Mapping[str, bool]) -> None:
        """Adopt what still runs from an earlier supervisor, and start the rest; `shape` is name -> spare.

        Raises ClusterError where isolated networks are asked for and this machine cannot have them.
        """
        self.nodes = {name: LocalNode(name, spare, i) for i, (name, spare) in enumerate(shape.items(), HEAD_INDEX + 1)}
        for node in (self.head, *self.nodes.values()):
            self._adopt(node)
        if self._switch is not None:
            for node in self.nodes.values():
                if node.index in self._switch.cut_off():
                    node.cut, node.reason = True, CUT_OFF
        elif self.isolated:
            self._switch = Switch.create()
        channel = connect(self.directory, SOCKET)
        if channel is not None:
            self._greet_zygote(channel)
        else:
            self._start_zygote()

    def extend(self, shape: Mapping[str, bool]) -> None:
        """Give a host that was opened without nodes some, while it serves the heads of jobs that run elsewhere."""
        self.nodes = {name: LocalNode(name, spare, i) for i, (name, spare) in enumerate(shape.items(), HEAD_INDEX + 1)}
        for node in self.nodes.values() if self._zygote_ready else ():
            self._spawn(node)

    def _adopt(self, node: LocalNode) -> None:
        channel = connect(self.directory, f"{node.name}.sock")
        if channel is None:
            return
        try:
            hello = channel.ask({"op": "hello"}, HELLO_TIMEOUT_S)
        except (ClusterError, ProtocolError) as error:
            note(f"{node.name} cannot be adopted: {error}")
            channel.close()
            return
        process = Identity(hello["pid"], hello["start"])
        if not self._shares_network(hello.get("switch")):
            note(f"{node.name} (process {process.pid}) is in another network and is ended")
            channel.close()
            signal_group(process, signal.SIGKILL)
            return
        self._attach(node, channel, process)
        self._arrived(node, hello)

    def _shares_network(self, switch: str | None) -> bool:
        """Whether a node that was found belongs to the network that is wanted; the first one found names its switch."""
        if switch is None or not self.isolated:
            return switch is None and not self.isolated
        self._switch = self._switch or Switch.adopt(switch)
        return self._switch is not None and self._switch.is_at(switch)

    def _attach(self, node: LocalNode, channel: Channel, process: Identity) -> None:
        node.channel, node.process, node.unanswered = channel, process, 0
        with suppress(OSError):
            node.pidfd = os.pidfd_open(process.pid)
            self._selector.register(node.pidfd, selectors.EVENT_READ, partial(self._lose, node, "its process ended"))
        self._selector.register(channel, selectors.EVENT_READ, partial(self._read_node, node))
        if not alive(process):
            self._lose(node, "its process ended")

    def _arrived(self, node: LocalNode, hello: Message) -> None:
        node.state, node.reason, node.incarnation = "idle", "", hello["incarnation"]
        node.jobs = {job: Handle(job, node.name, process[0]) for job, process in hello["jobs"].items()}
        node.born_s = dict.fromkeys(node.jobs, time.monotonic())
        node.sessions = {job: Identity(*process) for job, process in hello["jobs"].items()}
        self._report(NodeReport(node.name, True, f"incarnation {node.incarnation} is up"))

    # -- the zygote --------------------------------------------------------------------------------------------

    def _start_zygote(self) -> None:
        listener = listen(self.directory, SOCKET)
        log = open_log(self.directory / "logs", LOG)
        arguments = ["--directory", str(self.directory), "--listener", str(listener.fileno())]
        try:
            self._zygote_process = subprocess.Popen(
                [sys.executable, "-m", "jupyter_hyperpod.backends.local.warm", *arguments]
                + ["--preload", ",".join(self._preload)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[listener.fileno()],
                env=dict(self._environment),
                cwd=self.directory,
                start_new_session=True,
            )
        finally:
            listener.close()
            os.close(log)
        self._zygote_identity = identify(self._zygote_process.pid)
        channel = connect(self.directory, SOCKET)
        if channel is None:
            self._lost_zygote()
        else:
            self._greet_zygote(channel)

    def _greet_zygote(self, channel: Channel) -> None:
        self._zygote, self._zygote_ready = channel, False
        self._selector.register(channel, selectors.EVENT_READ, self._read_zygote)
        channel.send({"op": "hello", **self._heir})

    def _read_zygote(self) -> None:
        assert self._zygote is not None
        try:
            for message in self._zygote.receive():
                self._on_zygote(message)
        except ProtocolError as error:
            note(f"the zygote sent nonsense: {error}")
            self._zygote.closed = True
        if self._zygote is not None and self._zygote.closed:
            self._lost_zygote()

    def _on_zygote(self, message: Message) -> None:
        if message["event"] == "hello":
            self._zygote_ready, self._zygote_failures = True, 0
            self.warm_key = message["warm_key"]
            self._zygote_identity = Identity(message["pid"], message["start"])
            known = {node.pid for node in (self.head, *self.nodes.values())}
            for name, (pid, start) in message["nodes"].items():
                if pid not in known:
                    note(f"{name} (process {pid}) of an earlier supervisor does not answer and is ended")
                    signal_group(Identity(pid, start), signal.SIGKILL)
            note(f"ready to fork, preloaded: {', '.join(message['loaded']) or 'nothing'}")
            for node in (self.head, *self.nodes.values()):
                if node.channel is None:
                    self._spawn(node)
        elif message["event"] == "spawned":
            self._on_spawned(message)

    def _lost_zygote(self) -> None:
        if self._zygote is not None:
            with suppress(KeyError, ValueError):
                self._selector.unregister(self._zygote)
            self._zygote.close()
        if not self._zygote_ready:
            self._zygote_failures += 1
        self._zygote, self._zygote_ready = None, False
        if self._zygote_process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._zygote_process.wait(0.5)
        pause_s = ZYGOTE_PAUSE_S[min(self._zygote_failures, len(ZYGOTE_PAUSE_S) - 1)]
        self._zygote_again_s = time.monotonic() + pause_s
        reason = f"the preloaded interpreter ended; see {self.directory / 'logs' / LOG}.log"
        note(f"{reason}; starting another in {pause_s:g} s")
        for node in self.nodes.values():
            if node.channel is None:
                node.reason = reason

    # -- nodes -------------------------------------------------------------------------------------------------

    def _spawn(self, node: LocalNode) -> None:
        node.state, node.reason, node.incarnation = "starting", "", node.incarnation + 1
        node.spawned_s = time.monotonic()
        node.cut = False
        place = None if self._switch is None else asdict(Place(self._switch.path, node.index))
        request = {"op": "spawn", "name": node.name, "incarnation": node.incarnation, "spare": node.spare}
        if self._zygote is None or not self._zygote.send({**request, "listener": f"{node.name}.sock", "place": place}):
            node.reason = "waits for the preloaded interpreter"

    def _on_spawned(self, message: Message) -> None:
        node = self.head if message["name"] == HEAD else self.nodes[message["name"]]
        process = Identity(message["pid"], message["start"])
        channel = connect(self.directory, f"{node.name}.sock")
        if channel is None:
            signal_group(process, signal.SIGKILL)
            node.state, node.reason = "lost", "it ended as soon as it was started"
            node.again_s = time.monotonic() + STILLBORN_PAUSE_S
            return
        self._attach(node, channel, process)
        channel.send({"op": "hello"})

    def _read_node(self, node: LocalNode) -> None:
        channel = node.channel
        if channel is None:
            return
        try:
            for message in channel.receive():
                node.unanswered = 0
                self._on_node(node, message)
        except (ProtocolError, LookupError, TypeError) as error:
            self._lose(node, f"it sent nonsense: {error!r}")
        if channel.closed:
            self._lose(node, "its process ended")

    def _on_node(self, node: LocalNode, message: Message) -> None:
        event = message["event"]
        if event == "hello":
            self._arrived(node, message)
        elif event == "started":
            job = message["job"]
            node.jobs[job] = Handle(job, node.name, message["pid"])
            node.sessions[job] = Identity(message["pid"], message["start"])
        elif event == "refused":
            note(f"{node.name}: {message['reason']}")
            self._forget(node, message["job"], 1)
        elif event == "exited":
            self._forget(node, message["job"], message["status"])

    def _forget(self, node: LocalNode, job_id: str, status: int | None) -> None:
        node.sessions.pop(job_id, None)
        if node.jobs.pop(job_id, None) is not None:
            lived_s = time.monotonic() - node.born_s.pop(job_id, time.monotonic())
            self._report(ExitReport(job_id, node.name, status, lived_s))

    def _lose(self, node: LocalNode, reason: str) -> None:
        if node.channel is None:
            return
        self._detach(node)
        self._kill(node)
        node.state, node.reason = "lost", reason
        note(f"{node.name} is lost: {reason}")
        self._report(NodeReport(node.name, False, reason))
        for job_id in list(node.jobs):
            self._forget(node, job_id, None)
        now_s = time.monotonic()
        node.again_s = now_s + (STILLBORN_PAUSE_S if now_s - node.spawned_s < STILLBORN_S else 0.0)
        self._respawn(now_s)

    def _respawn(self, now_s: float) -> None:
        """Replace what was lost; a node that dies as soon as it is born has to wait a little."""
        for node in (self.head, *self.nodes.values()):
            if self._zygote_ready and node.state == "lost" and now_s >= node.again_s:
                why = node.reason
                self._spawn(node)
                node.reason = node.reason or f"starts again: {why}"

    def _detach(self, node: LocalNode) -> None:
        if node.channel is not None:
            self._selector.unregister(node.channel)
            node.channel.close()
            node.channel = None
        if node.pidfd >= 0:
            self._selector.unregister(node.pidfd)
            os.close(node.pidfd)
            node.pidfd = -1

    def tick(self, now_s: float) -> None:
        """Look after what does not announce itself: nodes that stand still, a zygote to be started again."""
        if self._zygote is None and now_s >= self._zygote_again_s:
            self._start_zygote()
        self._respawn(now_s)
        if now_s - self._pinged_s < PING_EVERY_S:
            return
        self._pinged_s = now_s
        if self._zygote is not None:
            self._zygote.send({"op": "ping"})
        for node in (self.head, *self.nodes.values()):
            if node.channel is None:
                continue
            if node.unanswered >= SILENT_PINGS:
                self._lose(node, f"it did not answer for {SILENT_PINGS * PING_EVERY_S:g} s")
            elif node.channel.send({"op": "ping"}):
                node.unanswered += 1

    # -- what the supervisor asks for --------------------------------------------------------------------------

    @property
    def renewable(self) -> bool:
        """True while nothing runs, so that zygote and nodes can be replaced by fresh ones."""
        return self._zygote_ready and not any(node.jobs for node in (self.head, *self.nodes.values()))

    def renew(self) -> None:
        """Replace zygote and nodes: the installed source has changed since they were loaded."""
        for node in (self.head, *self.nodes.values()):
            self._end(node)
            node.state, node.reason = "starting", "loads the changed source"
        self._end_zygote()
        self._start_zygote()

    def start(self, plan: LaunchPlan, node: str) -> bool:
        """Begin to start the plan's process on `node` ("head": the job's head); False where that node is not up."""
        place = self.head if node == HEAD else self.nodes[node]
        if place.channel is None or place.state == "starting" or plan.job_id in place.jobs:
            return False
        if not place.channel.send({"op": "start", "plan": plan_to_json(plan)}):
            return False
        place.jobs[plan.job_id] = Handle(plan.job_id, node, 0)
        place.born_s[plan.job_id] = time.monotonic()
        return True

    def signal_job(self, job_id: str, node: str, number: int) -> None:
        """Send a signal to the job's process on `node`, if it is there."""
        place = self.head if node == HEAD else self.nodes[node]
        if place.channel is not None and job_id in place.jobs:
            place.channel.send({"op": "signal", "job": job_id, "signal": number})

    def signal_node(self, node: str, number: int) -> bool:
        """Send a signal to everything on `node`; False where it is not up."""
        process = self.nodes[node].process if node in self.nodes else None
        return process is not None and signal_group(process, number)

    def cut(self, node: str) -> None:
        """Cut `node` off the network: nothing reaches it any more, and nobody is told. Raises ClusterError."""
        self._network().cut(self.nodes[node].index)
        self.nodes[node].cut, self.nodes[node].reason = True, CUT_OFF

    def heal(self, node: str) -> None:
        """Undo `cut`. Raises ClusterError."""
        self._network().heal(self.nodes[node].index)
        self.nodes[node].cut, self.nodes[node].reason = False, ""

    def _network(self) -> Switch:
        if self._switch is None:
            raise ClusterError(SHARED)
        return self._switch

    def close(self) -> None:
        """End every node, the heads and the zygote, wait until they are gone, and remove their sockets."""
        ending = [node.process for node in (self.head, *self.nodes.values()) if node.process is not None]
        for node in (self.head, *self.nodes.values()):
            self._end(node)
            node.state = "stopped"
        if self._zygote_identity is not None:
            ending.append(self._zygote_identity)
        self._end_zygote()
        deadline = time.monotonic() + 3.0
        while any(alive(process) for process in ending) and time.monotonic() < deadline:
            time.sleep(0.002)
        for path in self.directory.glob("*.sock"):
            path.unlink(missing_ok=True)
        if self._switch is not None:
            self._switch.close()
            self._switch = None

    def _end_zygote(self) -> None:
        if self._zygote is not None:
            self._selector.unregister(self._zygote)
            self._zygote.close()
        if self._zygote_identity is not None:
            signal_group(self._zygote_identity, signal.SIGKILL)
        if self._zygote_process is not None:
            self._zygote_process.wait()
        self._zygote, self._zygote_ready, self._zygote_identity, self._zygote_process = None, False, None, None

    def _end(self, node: LocalNode) -> None:
        self._detach(node)
        self._kill(node)
        node.jobs.clear()
        node.born_s.clear()

    def _kill(self, node: LocalNode) -> None:
        """Kill the node's process group, and the groups that heads lead for themselves."""
        if node.process is not None:
            signal_group(node.process, signal.SIGKILL)
        if node.name == HEAD:
            for leader in node.sessions.values():
                signal_group(leader, signal.SIGKILL)
        node.process = None
        node.sessions.clear()


if TYPE_CHECKING:
    _conforms: type[Backend] = LocalHost
