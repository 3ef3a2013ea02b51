"""Manages a deployment's replicas: decides their number, retires and replaces them, and journals what happens.

The supervisor starts missing replicas; this module chooses the replicas to retire. The stages of a replica are timed
from the decision to start it to its first answer.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tornado.websocket import WebSocketHandler

from ..core.events import GATEWAY
from ..core.views import View
from ..policy.membership import SILENT
from ..policy.serving import SILENT_S, Limits, LoadReading, decide, leave, patience_s, retire
from ..storage.journal import command_writer
from ..storage.journal_writer import JournalWriter
from ..system.processes import activity
from .connection import ReplicaConnections
from .context import HOST, Site
from .pool import PooledReplica, ReplicaPool

AWAY_S = 1.0
RETURN_S = 10.0  # a replica finds another gateway within a few seconds, on slow storage too
STARTING_S = 5.0  # a replica that is being started is known by then
NONE_NEEDED = "no replica; the next request starts one"


class ReplicaManager:
    """``view`` is the fold of the deployment's journal so far."""

    def __init__(self, site: Site, pool: ReplicaPool, journal: JournalWriter, view: View) -> None:
        serve = site.serve
        self.limits = Limits(serve.minimum, site.spec.range.maximum, serve.outstanding, serve.scale_down_delay_s)
        self.wanted = site.spec.nodes
        self.cap: int | None = None
        self.ever_ready = view["started_s"] is not None
        self.generation = view["generation"]
        self.failure: dict[str, Any] | None = None
        self._site, self._pool, self._journal = site, pool, journal
        told = view["deployment"]["replicas"] if view["deployment"] else []
        self._told = {replica["replica"]: {stage["stage"] for stage in replica["stages"]} for replica in told}
        self._recalled = {*self._told}
        since_s = view["submitted_s"] or time.time()
        self._decided_s = deque([since_s] * (0 if told else self.wanted))
        self._readings: deque[LoadReading] = deque()
        self._looked_s = time.monotonic()
        # those of other hosts that answered an earlier gateway and have not reported to this one
        self._awaited = {} if site.asked_host == HOST else {one["member"]: one for one in view["members"]}
        self._awaited_s = 0.0  # for how long
        self._members: list[str] = []
        self._drained_s: dict[str, float] = {}  # node -> when its replicas were told to leave
        self._missed: dict[str, tuple[str, bool]] = {}  # open incident -> node, and whether answers have resumed

    # -- how many ----------------------------------------------------------------------------------------------

    @property
    def target(self) -> int:
        """How many replicas there should be: the wanted number, unless the supervisor lends nodes to other jobs."""
        return self.wanted if self.cap is None else min(self.wanted, self.cap)

    def look(self) -> None:
        """Read the load, decide on the number of replicas, and act on it."""
        now_s = time.monotonic()
        if not self.ever_ready:
            self._readings.clear()  # who could ask nothing yet needs its first replica all the same
        self._readings.append(LoadReading(now_s, self._pool.outstanding))
        horizon_s = now_s - self.limits.scale_down_delay_s - 1.0
        while len(self._readings) > 1 and self._readings[1].time_s < horizon_s:
            self._readings.popleft()
        decision = decide(self._readings, self.wanted, self.limits, now_s)
        if decision.value != self.wanted:
            self._journal.write(
                "decision.made", {"policy": "serving", "value": decision.value, "reason": decision.reason}
            )
            with command_writer(self._site.job.commands, GATEWAY) as commands:
                commands.append("scale", {"target": decision.value})
            self.cap = None
            self._want(decision.value, time.time())
        self._fence_the_silent(now_s)
        self._give_up_the_missing()
        self.adjust()

    def told_to_scale(self, target: int, by_supervisor: bool, decided_s: float) -> None:
        """Take a number from outside: the supervisor lends or returns nodes, or a person wants a number for now."""
        if by_supervisor:
            self.cap = target if target < self.wanted else None
        else:
            self._readings.clear()
            self.cap = None
            self._want(target, decided_s)
        self.adjust()

    def recall(self, target: int) -> None:
        """Restore the last decision of an earlier gateway."""
        self.wanted, self.cap = target, None

    def _want(self, target: int, decided_s: float) -> None:
        more = target - self.wanted
        self.wanted = target
        self._decided_s.extend([decided_s] * more)
        for _ in range(min(-more, len(self._decided_s))):
            self._decided_s.pop()

    def adjust(self) -> None:
        """Retire surplus replicas, take back retired ones that are needed again, end those without requests.

        A replica whose node goes out of service does not count, and is retired once as many others answer.
        """
        staying = [replica for replica in self._pool if not (replica.retired or replica.departing)]
        if len(staying) > self.target:
            loads = {replica.name: replica.outstanding for replica in staying}
            for name in retire(loads, len(staying) - self.target):
                self._pool.replicas[name].retired = True
        for replica in list(self._pool):
            if replica.retired and not (replica.ending or replica.departing) and len(staying) < self.target:
                replica.retired = False
                staying.append(replica)
        going = [replica for replica in self._pool if replica.departing and not replica.retired]
        loads = {replica.name: replica.outstanding for replica in going}
        others = sum(replica.state == "ready" and not replica.retired for replica in staying)
        for name in leave(loads, [r.name for r in going if r.state == "ready"], others, self.target):
            self._pool.replicas[name].retired = True
        for replica in self._pool:
            if replica.retired and not replica.ending and not replica.outstanding:
                replica.ending = True
                replica.say("end")
        self._pool.hand_out()
        self._form()

    def leave_node(self, node: str, told_s: float) -> int:
        """A node goes out of service: its replicas leave once others are ready. Returns how many of them are known.

        ``told_s``: when that was said. One that begins there later has nothing to do with it.
        """
        self._drained_s[node] = told_s
        leaving = [replica for replica in self._pool if _is_on(replica.node, node)]
        for replica in leaving:
            self._depart(replica)
        self.adjust()
        return len(leaving)

    def _depart(self, replica: PooledReplica) -> None:
        if not replica.departing:
            replica.departing = True
            if not replica.retired and replica.name not in self._recalled:
                self._decided_s.append(time.time())  # the supervisor starts another one

    # -- which -------------------------------------------------------------------------------------------------

    def heard(self, facts: Mapping[str, Any], link: WebSocketHandler) -> PooledReplica:
        """Handle a replica's report."""
        replica = self._pool.replicas.get(facts["replica"])
        if replica is None or replica.link is not link:
            replica = self._greet(facts, link)
        before = replica.state
        replica.told_s = time.monotonic()
        replica.heard_s, replica.state, replica.path = time.monotonic(), facts["state"], facts["path"]
        replica.error, replica.progress = facts["error"], (facts["progress"][0], facts["progress"][1])
        replica.load, replica.model = facts.get("load", {}), facts.get("model", "")
        for stage, time_s in facts["stages"].items():
            self._tell(replica, stage, time_s)
        if replica.state == "draining" and not replica.ending:  # it was told to leave at once
            self._depart(replica)
            replica.retired = True
        if replica.state != before:
            self.adjust()
        return replica

    def _greet(self, facts: Mapping[str, Any], link: WebSocketHandler) -> PooledReplica:
        name, started_s = facts["replica"], facts["stages"]["started"]
        decided_s = self._decided_s.popleft() if name not in self._told and self._decided_s else started_s
        address, known = (facts["host"], facts["port"]), self._pool.replicas.get(name)
        if known is not None and known.line.address == address:
            line = known.line  # it has reconnected: its requests in progress have to end if it is given up
        else:
            line = ReplicaConnections(*address, self._site.encryption(facts["host"], name, calls=True))
        replica = PooledReplica(name, facts["node"], facts["pid"], facts["host"], line, link, decided_s, started_s)
        replica.machine = facts.get("machine", "") or socket.gethostname()
        if not replica.here:  # its host is not known by its processes: the journal tells that it is there
            joined = {"member": name, "node": replica.node, "pid": replica.pid, "host": replica.machine}
            self._journal.write("member.joined", joined)
        drained = (told_s for node, told_s in self._drained_s.items() if _is_on(replica.node, node))
        if known is not None and known.departing:
            replica.departing = True
        elif started_s < max(drained, default=-math.inf) + STARTING_S:
            self._depart(replica)
        self._pool.replicas[name] = replica
        self._awaited.pop(name, None)
        return replica

    def answered(self, replica: PooledReplica) -> None:
        """The replica has answered a request."""
        self._tell(replica, "answered", time.time())

    def _tell(self, replica: PooledReplica, stage: str, time_s: float) -> None:
        told = self._told.setdefault(replica.name, set())
        if stage in told:
            return
        told.add(stage)
        took_s = round(max(0.0, time_s - replica.decided_s), 6)
        text = f"the replica on {replica.node} {_STAGES[stage]} {took_s:.2f} s after it was decided upon"
        record = {"replica": replica.name, "node": replica.node, "stage": stage, "took_s": took_s, "text": text}
        self._journal.write("replica.stage", record)

    def left(self, replica: PooledReplica, since_s: float | None = None) -> None:
        """A replica's connection has ended; ``since_s``: its last sign of life before (monotonic clock)."""
        if self._pool.replicas.get(replica.name) is not replica:
            return
        del self._pool.replicas[replica.name]
        replica.line.close()
        asyncio.get_running_loop().call_later(SILENT_S, replica.line.cut)  # its last answers may still arrive
        if replica.error is not None:
            self.failure = replica.error
            text = f"the replica on {replica.node} could not load the model: {replica.error['message']}"
            self._journal.write("warning.raised", {"text": text})
        elif not replica.retired:
            who = f"{replica.pid if replica.here else replica.name}"
            self._lost(who, replica.node, time.monotonic() if since_s is None else since_s)
        if not replica.here and since_s is not None:
            self._journal.write("member.lost", _silent(replica, time.monotonic() - since_s))
        if not (replica.departing or replica.retired) and len(self._pool.replicas) < self.target:
            self._decided_s.append(time.time())
        self.adjust()

    def _lost(self, who: str, node: str, since_s: float) -> None:
        incident = f"r{who}"
        others = len(self._pool.ready())
        self._missed[incident] = node, bool(others)
        answers = "another one answers" if others == 1 else f"{others} others answer"
        goes_on = answers if others else "requests wait for the next one"
        told = {"since_s": round(time.time() - (time.monotonic() - since_s), 6)}
        self._say(incident, "detected", node, f"the replica on {node} was lost; {goes_on}", told)
        if others:
            self._say(incident, "resumed", node, "what it was asked is asked again of the others")

    def _say(self, incident: str, stage: str, node: str, text: str, known: Mapping[str, float] | None = None) -> None:
        record = {"incident": incident, "stage": stage, "cause": "replica lost", "node": node, "rank": None}
        self._journal.write("incident.stage", record | {"rung": None, "text": text} | dict(known or {}))

    def _fence_the_silent(self, now_s: float) -> None:
        away_s, self._looked_s = now_s - self._looked_s, now_s
        self._awaited_s += away_s if away_s <= AWAY_S else 0.0
        for replica in list(self._pool):
            if away_s > AWAY_S:  # this process stood still itself and has not read the reports yet
                replica.heard_s = min(now_s, replica.heard_s + away_s)
            if self._hangs(replica, now_s - replica.heard_s):
                if replica.here:  # its pid is not reused, because its link is open
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(replica.pid, signal.SIGKILL)
                replica.line.cut()  # nothing else ends the requests to an unreachable host
                replica.link.close()
                self.left(replica, replica.told_s)

    def _give_up_the_missing(self) -> None:
        """Replicas that do not come to this gateway are lost: the supervisor replaces their nodes."""
        if not self._awaited or self._awaited_s <= RETURN_S:
            return
        missing, self._awaited = self._awaited, {}
        for name, member in missing.items():
            node = member["node"]
            if any(replica.node == node for replica in self._pool):
                continue  # another one has taken its place there
            self._lost(name, node, time.monotonic() - self._awaited_s)
            lost = {"member": name, "node": node, "rank": member["rank"], "cause": SILENT}
            self._journal.write("member.lost", lost | {"detail": "it did not return to the new gateway"})
            if len(self._pool.replicas) < self.target:
                self._decided_s.append(time.time())

    def _hangs(self, replica: PooledReplica, silent_s: float) -> bool:
        if silent_s < SILENT_S / 2:
            replica.activity = None
            return False
        now = activity(replica.pid) if replica.here else None
        before = replica.activity = replica.activity or now
        computes = now is not None and before is not None and now.ticks > before.ticks
        stopped = now is not None and now.stopped
        return silent_s > patience_s(stopped=stopped, loading=replica.state == "loading", computes=computes)

    def _form(self) -> None:
        """Journal the answering replicas where they have changed, and that lost ones are replaced."""
        ready = self._pool.ready()
        if [replica.name for replica in ready] == self._members:
            return
        gained = {replica.name for replica in ready} - set(self._members)
        self._members = [replica.name for replica in ready]
        self.generation += 1
        members = [
            {"member": r.name, "node": r.node, "rank": rank, "pid": r.pid, "host": r.machine}
            for rank, r in enumerate(ready)
        ]
        record = {"generation": self.generation, "members": members, "spares": [], "target": self.target}
        reason = f"{len(ready)} of {self.target} replicas answer" if self.target else NONE_NEEDED
        self._journal.write("generation.formed", record | {"reason": reason})
        self.ever_ready = self.ever_ready or bool(ready)
        for name in sorted(gained)[: len(self._missed)]:
            incident, (node, resumed) = next(iter(self._missed.items()))
            del self._missed[incident]
            place = self._pool.replicas[name].node
            self._say(incident, "replaced", node, f"the replica on {place} has taken its place")
            if not resumed:
                self._say(incident, "resumed", node, f"{len(ready)} of {self.target} replicas answer")


def _is_on(place: str, node: str) -> bool:
    """Whether a replica's place is on a node; a node with several has a number behind its name."""
    return place == node or place.startswith(f"{node}.")


def _silent(replica: PooledReplica, silent_s: float) -> dict[str, Any]:
    """What is journaled of a replica whose host says nothing any more."""
    detail = f"it gave no sign of life for {silent_s:.1f} s"
    return {"member": replica.name, "node": replica.node, "rank": None, "cause": SILENT, "detail": detail}


_STAGES = {
    "started": "was started",
    "loading": "began to load its weights",
    "loaded": "had its weights",
    "ready": "was ready",
    "answered": "gave its first answer",
}
