"""Starts a node's jobs of other environments than the cluster's own: by the arm of each environment.

An arm is forked from the environment's preloaded interpreter (`environment_zygote.py`), which the cluster's zygote
starts. The first job of an environment waits until that interpreter has imported what jobs need; later ones begin in
milliseconds. An arm leads a session of its own and ends with the node; the supervisor signals both. Where an
environment cannot have one, for example because its jupyter_hyperpod is older, each job starts its own interpreter.
"""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from ...core.errors import ClusterError, ProtocolError
from ...core.spec import LaunchPlan
from ...system.diagnostics import note
from ...system.json_lines import JsonLineChannel, Message, connect
from ...system.processes import Identity, is_stopped, signal_group

ZYGOTE = "warm.sock"
ANSWER_S = 2.0
IDLE_S = 1800.0
MOST_IDLE = 2
UNFIT_S = 60.0  # an environment that cannot be preloaded is not tried again for so long
PRELOAD_S, SILENT_S = 60.0, 10.0  # so long a job waits for an interpreter that says nothing, and for an arm
STOPPED_S = 2.0  # and so long for one that is stopped
KILLED = -9


class NodePlace(Protocol):
    """What this needs of its node."""

    path: Path
    selector: selectors.BaseSelector
    me: Identity

    @property
    def title(self) -> str:
        """The node's name."""

    def names(self) -> Mapping[str, str]:
        """Variables that say where a process runs."""

    def start_cold(self, plan: LaunchPlan, module: str) -> Identity:
        """Start an interpreter for one job. Raises OSError."""

    def broadcast(self, message: Message) -> None:
        """Tell every supervisor."""


@dataclass(eq=False)
class KnownArm:
    """One arm as the node knows it. ``waiting``: what has not started yet; ``processes``: its forks; both by job."""

    python: str
    socket: str
    channel: JsonLineChannel
    zygote: int  # the process that forks it
    process: Identity | None = None  # None until it has been forked
    used_s: float = 0.0
    asked_s: float = 0.0  # when it was asked for, or to start what has waited for longest
    waiting: dict[str, tuple[LaunchPlan, str]] = field(default_factory=dict)
    processes: dict[str, Identity] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.processes


class ForeignEnvironments:
    """The arms of one node."""

    def __init__(self, place: NodePlace) -> None:
        self._place = place
        self._directory = place.path.parent
        self._present: dict[str, KnownArm] = {}
        self._retired: list[KnownArm] = []  # stale: they live as long as their forks
        self._unfit_s: dict[str, float] = {}

    def start(self, plan: LaunchPlan, module: str) -> None:
        """Start ``module`` in the plan's environment: now, or once its interpreter is ready. The supervisors hear."""
        arm = None
        if time.monotonic() - self._unfit_s.get(plan.python, -UNFIT_S) >= UNFIT_S:
            arm = self._present.get(plan.python) or self._request(plan.python)
        if arm is None:
            self._start_cold(plan, module)
            return
        if not arm.waiting:
            arm.asked_s = time.monotonic()
        arm.waiting[plan.job_id] = plan, module
        if arm.process is not None:
            self._send(arm, plan, module)

    def signal(self, job_id: str, number: int) -> None:
        """Send a signal to the job's process, if it is here; one that has not begun never begins."""
        for arm in self._all():
            if arm.process is None and arm.waiting.pop(job_id, None) is not None:
                self._place.broadcast({"event": "exited", "job": job_id, "pid": 0, "start": 0, "status": -number})
            elif job_id in arm.waiting or job_id in arm.processes:
                arm.channel.send({"op": "signal", "job": job_id, "signal": number})

    def jobs(self) -> dict[str, list[int]]:
        """Job -> its process: pid, and start in clock ticks."""
        return {job: [p.pid, p.start] for arm in self._all() for job, p in arm.processes.items()}

    def arms(self) -> list[list[int]]:
        """The arms' own processes, each of which leads a session."""
        return [[arm.process.pid, arm.process.start] for arm in self._all() if arm.process is not None]

    def tick(self, now_s: float) -> None:
        """End arms that are no longer needed, and those that do not answer."""
        for arm in self._all():
            patience_s, pid = (PRELOAD_S, arm.zygote) if arm.process is None else (SILENT_S, arm.process.pid)
            silent_s = now_s - arm.asked_s if arm.waiting else 0.0
            if silent_s > patience_s or (silent_s > STOPPED_S and is_stopped(pid)):
                self._give_up(arm)
        idle = sorted((arm for arm in self._present.values() if arm.idle), key=lambda arm: arm.used_s)
        over = idle[: max(0, len(idle) - MOST_IDLE)]
        for arm in self._all():
            if arm.idle and (arm in over or arm in self._retired or now_s - arm.used_s > IDLE_S):
                self._hang_up(arm)

    def _all(self) -> list[KnownArm]:
        return [*self._present.values(), *self._retired]

    def _request(self, python: str) -> KnownArm | None:
        """Ask the environment's interpreter for an arm; None where there cannot be one."""
        zygote = connect(self._directory, ZYGOTE)
        channel = None
        if zygote is not None:
            try:
                answer = zygote.ask({"op": "environment", "python": python}, ANSWER_S)
                channel = connect(self._directory, answer["socket"])
            except (ClusterError, ProtocolError, LookupError) as error:
                note(f"{python} cannot be preloaded: {error}")
            finally:
                zygote.close()
        if channel is None:
            return None
        name = f"{self._place.title}.{sha256(python.encode()).hexdigest()[:8]}.sock"
        arm = self._present[python] = KnownArm(python, name, channel, answer["pid"], used_s=time.monotonic())
        self._place.selector.register(channel, selectors.EVENT_READ, partial(self._read, arm))
        me = self._place.me
        channel.send({"op": "arm", "node": self._place.title, "pid": me.pid, "start": me.start, "socket": name})
        return arm

    def _read(self, arm: KnownArm) -> None:
        try:
            for message in arm.channel.receive():
                self._on_message(arm, message)
        except (ProtocolError, LookupError, TypeError) as error:
            note(f"the interpreter of {arm.python} sent nonsense: {error!r}")
            arm.channel.closed = True
        if arm.channel.closed:
            self._ended(arm)

    def _on_message(self, arm: KnownArm, message: Message) -> None:
        event = message["event"]
        if event == "arm":
            self._begin(arm, Identity(message["pid"], message["start"]))
        elif event == "stale":
            plan, module = arm.waiting.pop(message["job"])
            if self._present.get(arm.python) is arm:
                self._retired.append(self._present.pop(arm.python))
            self.start(plan, module)
        elif event == "started":
            arm.waiting.pop(message["job"], None)
            arm.processes[message["job"]] = Identity(message["pid"], message["start"])
            self._place.broadcast(message)
        elif event in ("exited", "refused"):
            arm.waiting.pop(message["job"], None)
            arm.processes.pop(message["job"], None)
            arm.used_s = time.monotonic()
            self._place.broadcast(message)

    def _begin(self, arm: KnownArm, process: Identity) -> None:
        """The arm is there: talk to it, no longer to the interpreter that forked it."""
        channel = connect(self._directory, arm.socket)
        if channel is None:
            arm.channel.closed = True
            return
        self._place.selector.unregister(arm.channel)
        arm.channel.close()
        arm.channel, arm.process, arm.asked_s = channel, process, time.monotonic()
        self._place.selector.register(channel, selectors.EVENT_READ, partial(self._read, arm))
        self._place.broadcast({"event": "arms", "arms": self.arms()})
        for plan, module in arm.waiting.values():
            self._send(arm, plan, module)

    def _send(self, arm: KnownArm, plan: LaunchPlan, module: str) -> None:
        arm.used_s = time.monotonic()
        arm.channel.send({"op": "start", "plan": asdict(plan), "module": module, "names": dict(self._place.names())})

    def _ended(self, arm: KnownArm) -> None:
        """An arm has ended, and the kernel has ended its forks with it; or there never was one."""
        renewed = arm.process is None and arm.python not in self._unfit_s
        self._hang_up(arm)
        for job_id, process in arm.processes.items():
            facts = {"pid": process.pid, "start": process.start, "status": KILLED}
            self._place.broadcast({"event": "exited", "job": job_id, **facts})
        if arm.process is None:
            # once, it may have been an interpreter that is renewed because a package was installed
            self._unfit_s[arm.python] = -UNFIT_S if renewed else time.monotonic()
        for plan, module in arm.waiting.values():
            self.start(plan, module)

    def _start_cold(self, plan: LaunchPlan, module: str) -> None:
        try:
            child = self._place.start_cold(plan, module)
        except OSError as error:
            note(f"cannot start {module} of {plan.job_id}: {error}")
            reason = f"{module} cannot be started with {plan.python}: {error}"
            self._place.broadcast({"event": "refused", "job": plan.job_id, "reason": reason})
            return
        facts = {"pid": child.pid, "start": child.start}
        self._place.broadcast({"event": "started", "job": plan.job_id, **facts})

    def _give_up(self, arm: KnownArm) -> None:
        """It stands still: end it, or the interpreter that should have forked it, and start what waits otherwise."""
        note(f"the interpreter of {arm.python} does not answer and is ended")
        if arm.process is not None:
            signal_group(arm.process, signal.SIGKILL)
        elif (zygote := connect(self._directory, ZYGOTE)) is not None:
            zygote.send({"op": "drop", "python": arm.python})
            zygote.close()
        self._ended(arm)

    def _hang_up(self, arm: KnownArm) -> None:
        """Close the connection, at which an arm ends, and forget it."""
        self._place.selector.unregister(arm.channel)
        arm.channel.close()
        if self._present.get(arm.python) is arm:
            del self._present[arm.python]
        if arm in self._retired:
            self._retired.remove(arm)
        self._place.broadcast({"event": "arms", "arms": self.arms()})
