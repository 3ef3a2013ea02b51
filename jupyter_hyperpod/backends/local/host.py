"""Manages this machine for the supervisor: one zygote, the nodes forked from it, and the host of the jobs' heads.

Nodes do not need this object: when the supervisor dies they go on, and a new one adopts them through their sockets.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from functools import partial

from ...core.errors import ClusterError, ProtocolError
from ...core.spec import Handle, LaunchPlan
from ...system.diagnostics import note
from ...system.json_lines import JsonLineChannel, Message, connect
from ...system.processes import Identity, alive, signal_group
from ..futures import refused, settled
from ..types import HEAD, SHARED_NETWORK, Element, ExitReport, LaunchRequest, NodeReport, Surroundings
from . import devices
from .elements import Elements
from .interpreter import WarmInterpreter
from .known_node import LocalNode
from .network import HEAD_INDEX, NetworkPlace, Switch

HELLO_TIMEOUT_S = 1.0
PING_EVERY_S = 0.5
SILENT_PINGS = 6
QUICK_LOSS_S = 1.0
QUICK_LOSS_PAUSE_S = 0.5
CUT_OFF = "cut off from the network; `jupyter hyperpod cluster heal` brings it back"


class LocalHost:
    """The local backend; see `backends.base.Host`. Registers callbacks with the supervisor's selector."""

    problem = ""
    fresh_s = nodes_s = math.inf  # what it tells is always new

    def __init__(self, surroundings: Surroundings) -> None:
        self.directory = surroundings.directory
        self.isolated = surroundings.isolated
        self.nodes: dict[str, LocalNode] = {}
        self.head = LocalNode(HEAD)
        self._selector = surroundings.selector
        self._report = surroundings.report
        self._switch: Switch | None = None
        self._zygote = WarmInterpreter(surroundings, self._on_zygote, self._without_zygote)
        self._elements = Elements()
        self._pinged_s = 0.0

    @property
    def _places(self) -> list[LocalNode]:
        """Wherever processes of jobs run."""
        return [self.head, *self.nodes.values()]

    # -- coming up ---------------------------------------------------------------------------------------------

    def open(self, shape: Mapping[str, bool]) -> None:
        """Adopt what still runs from an earlier supervisor, and start the rest; `shape` is name -> spare.

        Raises ClusterError where isolated networks are asked for and this machine cannot have them.
        """
        self.nodes = _nodes(shape)
        for node in self._places:
            self._adopt(node)
        if self._switch is not None:
            for node in self.nodes.values():
                if node.index in self._switch.cut_off():
                    node.cut, node.reason = True, CUT_OFF
        elif self.isolated:
            self._switch = Switch.create()
        self._zygote.heads_only = not shape
        self._zygote.open()

    def extend(self, shape: Mapping[str, bool]) -> None:
        self.nodes = _nodes(shape)
        if self._zygote.heads_only and shape:  # each job's process would import by itself what this one has not
            self._zygote.heads_only = False
            self._zygote.end()
            self._zygote.start()
        for node in self.nodes.values() if self._zygote.ready else ():
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

    def _attach(self, node: LocalNode, channel: JsonLineChannel, process: Identity) -> None:
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
        node.arms = [Identity(*process) for process in hello["arms"]]
        self._report(NodeReport(node.name, True, f"incarnation {node.incarnation} is up"))

    # -- what the zygote says ----------------------------------------------------------------------------------

    def _on_zygote(self, message: Message) -> None:
        if message["event"] == "hello":
            known = {node.pid for node in self._places}
            for name, (pid, start) in message["nodes"].items():
                if pid not in known:
                    note(f"{name} (process {pid}) of an earlier supervisor does not answer and is ended")
                    signal_group(Identity(pid, start), signal.SIGKILL)
            note(f"ready to fork, preloaded: {', '.join(message['loaded']) or 'nothing'}")
            for node in self._places:
                if node.channel is None:
                    self._spawn(node)
        elif message["event"] == "spawned":
            self._on_spawned(message)

    def _without_zygote(self, reason: str) -> None:
        for node in self.nodes.values():
            if node.channel is None:
                node.reason = reason

    # -- nodes -------------------------------------------------------------------------------------------------

    def _spawn(self, node: LocalNode) -> None:
        node.state, node.reason, node.incarnation = "starting", "", node.incarnation + 1
        node.spawned_s = time.monotonic()
        node.cut = False
        place = None if self._switch is None else asdict(NetworkPlace(self._switch.path, node.index))
        request = {"op": "spawn", "name": node.name, "incarnation": node.incarnation, "spare": node.spare}
        if not self._zygote.send({**request, "listener": f"{node.name}.sock", "place": place}):
            node.reason = "waits for the preloaded interpreter"

    def _on_spawned(self, message: Message) -> None:
        node = self.head if message["name"] == HEAD else self.nodes[message["name"]]
        process = Identity(message["pid"], message["start"])
        channel = connect(self.directory, f"{node.name}.sock")
        if channel is None:
            signal_group(process, signal.SIGKILL)
            node.state, node.reason = "lost", "it ended as soon as it was started"
            node.again_s = time.monotonic() + QUICK_LOSS_PAUSE_S
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
        elif event == "arms":
            node.arms = [Identity(*process) for process in message["arms"]]
        elif event == "exited":
            self._forget(node, message["job"], message["status"])

    def _forget(self, node: LocalNode, job_id: str, status: int | None) -> None:
        node.sessions.pop(job_id, None)
        if node.jobs.pop(job_id, None) is not None:
            lived_s = time.monotonic() - node.born_s.pop(job_id, time.monotonic())
            if node is not self.head:
                self._elements.ended(job_id, node.name, status)
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
        node.again_s = now_s + (QUICK_LOSS_PAUSE_S if now_s - node.spawned_s < QUICK_LOSS_S else 0.0)
        self._respawn(now_s)

    def _respawn(self, now_s: float) -> None:
        """Replace what was lost; a node that dies as soon as it is born has to wait a little."""
        for node in self._places:
            if self._zygote.ready and node.state == "lost" and now_s >= node.again_s:
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
        self._zygote.tick(now_s)
        self._respawn(now_s)
        if now_s - self._pinged_s < PING_EVERY_S:
            return
        self._pinged_s = now_s
        self._zygote.send({"op": "ping"})
        for node in self._places:
            if node.channel is None:
                continue
            if node.unanswered >= SILENT_PINGS:
                self._lose(node, f"it did not answer for {SILENT_PINGS * PING_EVERY_S:g} s")
            elif node.channel.send({"op": "ping"}):
                node.unanswered += 1

    # -- what the supervisor asks for --------------------------------------------------------------------------

    @property
    def warm_key(self) -> str:
        """The digest of the source that the zygote has loaded; "" as long as there is none."""
        return self._zygote.warm_key

    @property
    def renewable(self) -> bool:
        return self._zygote.ready and not any(node.jobs for node in self._places)

    def renew(self) -> None:
        for node in self._places:
            self._end(node)
            node.state, node.reason = "starting", "loads the changed source"
        self._zygote.end()
        self._zygote.start()

    def launch(self, plan: LaunchPlan, request: LaunchRequest) -> Future[int]:
        batch = self._elements.batch()
        begun = [node for node in request.nodes if self._begin(plan, self.nodes[node])]
        for node in begun:
            self._elements.begun(plan.job_id, node, batch)
        return settled(batch) if begun else refused(ClusterError(f"not up: {', '.join(request.nodes) or 'no node'}"))

    def launch_head(self, plan: LaunchPlan) -> bool:
        return self._begin(plan, self.head)

    def _begin(self, plan: LaunchPlan, place: LocalNode) -> bool:
        if place.channel is None or place.state == "starting" or plan.job_id in place.jobs:
            return False
        own = devices.shares(devices.visible(os.environ), {node.name: node.spare for node in self.nodes.values()})
        share = {devices.VARIABLE: ",".join(own[place.name])} if place.name in own else {}
        if not place.channel.send({"op": "start", "plan": {**asdict(plan), "env": {**share, **plan.env}}}):
            return False
        place.jobs[plan.job_id] = Handle(plan.job_id, place.name, 0)
        place.born_s[plan.job_id] = time.monotonic()
        return True

    def observe(self, job_id: str, since_s: float = -1.0) -> list[Element]:
        return self._elements.of(job_id, self.nodes.values())

    def ends(self, elements: Sequence[Element]) -> Future[list[Element]]:
        """Nothing: `observe` reports every end until the job is released."""
        return settled([])

    def cancel(self, job_id: str, names: Collection[str]) -> Future[None]:
        for name in names:
            self._signal(job_id, self.nodes[name], signal.SIGKILL)
        return settled(None)

    def release(self, job_id: str) -> Future[None]:
        """Kill all of the job's processes on this machine, its head, too."""
        for place in self._places:
            self._signal(job_id, place, signal.SIGKILL)
        self._elements.release(job_id, self._places)
        return settled(None)

    def signal(self, job_id: str, name: str, number: int) -> Future[None]:
        self._signal(job_id, self.head if name == HEAD else self.nodes[name], number)
        return settled(None)

    def _signal(self, job_id: str, place: LocalNode, number: int) -> None:
        if place.channel is not None and job_id in place.jobs:
            place.channel.send({"op": "signal", "job": job_id, "signal": number})

    def log(self, name: str) -> str:
        return name

    def signal_node(self, node: str, number: int) -> bool:
        place = self.nodes.get(node)
        if place is None or place.process is None:
            return False
        there = signal_group(place.process, number)
        for arm in place.arms:
            signal_group(arm, number)
        return there

    def cut(self, node: str) -> None:
        self._network().cut(self.nodes[node].index)
        self.nodes[node].cut, self.nodes[node].reason = True, CUT_OFF

    def heal(self, node: str) -> None:
        self._network().heal(self.nodes[node].index)
        self.nodes[node].cut, self.nodes[node].reason = False, ""

    def _network(self) -> Switch:
        if self._switch is None:
            raise ClusterError(SHARED_NETWORK)
        return self._switch

    def close(self, timeout_s: float = 3.0) -> None:
        """End every node, the heads and the zygote, wait until they are gone, and remove their sockets."""
        ending = [node.process for node in self._places if node.process is not None]
        ending += [arm for node in self._places for arm in node.arms]
        for node in self._places:
            self._end(node)
            node.state = "stopped"
        if self._zygote.identity is not None:
            ending.append(self._zygote.identity)
        self._zygote.end()
        deadline = time.monotonic() + timeout_s
        while any(alive(process) for process in ending) and time.monotonic() < deadline:
            time.sleep(0.002)
        for path in self.directory.glob("*.sock"):
            path.unlink(missing_ok=True)
        if self._switch is not None:
            self._switch.close()
            self._switch = None

    def _end(self, node: LocalNode) -> None:
        self._detach(node)
        self._kill(node)
        node.jobs.clear()
        node.born_s.clear()

    def _kill(self, node: LocalNode) -> None:
        """Kill the node's process group, its arms, and the groups that heads lead for themselves."""
        for leader in (*([node.process] if node.process else []), *node.arms):
            signal_group(leader, signal.SIGKILL)
        if node.name == HEAD:
            for leader in node.sessions.values():
                signal_group(leader, signal.SIGKILL)
        node.process = None
        node.arms.clear()
        node.sessions.clear()


def _nodes(shape: Mapping[str, bool]) -> dict[str, LocalNode]:
    numbered = enumerate(shape.items(), HEAD_INDEX + 1)
    return {name: LocalNode(name, spare=spare, index=index) for index, (name, spare) in numbered}
