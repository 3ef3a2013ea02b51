"""The agent's process: one per node and job. It forks the worker, captures its output, notices its end, and relays.

It decides nothing: it reports facts to the coordinator and carries out its orders. It must stay single-threaded,
because it forks. Without a coordinator it keeps the worker training and tries to reconnect.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import sys
import time
from functools import partial
from typing import Any

from ...core.units import first_line
from ...storage.environment import adopt, begin_with
from ...storage.journal_writer import JournalWriter
from ...storage.output import OutputRelay
from ..connection import Channel, Message
from ..context import Context
from ..sidecars import health_agent
from ..worker import main as worker
from .coordinator_link import CoordinatorLink, unregister
from .replica_processes import ReplicaProcesses, import_ahead
from .throttle import Throttle
from .worker_process import Output, WorkerProcess

BEAT_S = 0.1
SAID = 200  # characters of an error's message in a warning
# messages to the agent itself; all others are passed to the worker
OWN_MESSAGES = ("release", "restart", "signal", "throttle", "preempt", "elastic", "probe", "resume")


class Agent:
    """State of one agent; `run` is its whole life."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.reporter = JournalWriter(context.job.events, f"agent-{context.node}")
        self.output = OutputRelay(context.job, context.node, self.reporter)
        self.selector = selectors.DefaultSelector()
        self.coordinator = CoordinatorLink(context, self.selector)
        self.throttle: Throttle | None = None
        self.process: WorkerProcess | ReplicaProcesses | None = None
        self.member = ""
        self.rank: int | None = None
        self.status: Message = {}
        self.exit_code: int | None = None
        self.lease = self.coordinator.lease
        self.held = False  # the worker is stopped, because its coordinator may have given it up
        self._next_beat_s = 0.0
        self._ended_s = 0.0  # when the worker ended
        self._preempted = False
        self._leave_by_s: float | None = None

    def run(self) -> int:
        """Serve until released; returns the exit status of the agent."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._on_signal)
        self.beside = health_agent(self.context)
        self._start_worker()
        while self.exit_code is None:
            self._keep_lease()
            if self.coordinator.connect_if_needed():
                self._register()
            if self.coordinator.exit_code is not None:
                self.exit_code = self.coordinator.exit_code
            self._beat()
            self._leave_if_preempted()
            for key, _ in self.selector.select(self._patience_s()):
                self._ready(key.fileobj)
            self._flush_partial_output()
            self._push()
            self.reporter.flush()
        self._end_worker()
        self.output.close()
        self.reporter.close()
        self.coordinator.close()  # last: it journals the job's end when this connection has ended
        return self.exit_code

    def _patience_s(self) -> float:
        """How long the loop may wait for something to happen."""
        usual_s = 0.02 if self.coordinator.channel is None else BEAT_S / 2
        if self.throttle is None:
            return usual_s
        rest_s = self.throttle.tick(time.monotonic())
        if rest_s is None:
            self.throttle = None
            return usual_s
        return min(usual_s, rest_s)

    # ---- the worker ---------------------------------------------------------------------------------------

    def _start_worker(self) -> None:
        context, size = self.context, self.context.spec.replica
        main = partial(worker.main, context)
        process: WorkerProcess | ReplicaProcesses
        if size > 1:
            import_ahead("torch.distributed.fsdp")
            process = ReplicaProcesses(size, lambda shard: partial(main, shard=shard))
        else:
            process = WorkerProcess(main)
        self.process = process
        self.member = context.member(process.pid)
        self.rank = None
        self.held = False
        self.status = {}
        self.output.begin()
        sources: list[Any] = [*process.pidfds, *process.channels, *process.outputs]
        for source in sources:
            self.selector.register(source, selectors.EVENT_READ)

    def _end_worker(self) -> None:
        """Kill the worker if it lives, journal its last output and report its end."""
        process, self.process, self.throttle = self.process, None, None
        if process is None:
            return
        self._ended_s = time.monotonic()
        process.signal(signal.SIGKILL)
        code = process.reap()
        self._relay_up(process)
        for source in (*process.pidfds, *process.channels, *process.outputs):
            unregister(self.selector, source)
        for output in process.outputs:
            self._journal_output(output.stream, output.drain())
        process.close()
        self.status["exited"] = code
        self.coordinator.tell(
            {"type": "exited", "member": self.member, "code": code, "ago_s": time.monotonic() - self._ended_s}
        )

    def _relay_up(self, process: WorkerProcess | ReplicaProcesses) -> None:
        for message in process.receive():
            kind = message["type"]
            if kind == "error":
                self._drain_before(process)
                identity = {"member": self.member, "node": self.context.node, "rank": self.rank}
                if self.rank is not None:
                    self.reporter.write("user.error", identity | message["error"])
                else:
                    said = first_line(message["error"]["message"], SAID) or message["error"]["type"]
                    text = f"the cell failed on {self.context.node}, which stands by: {said}"
                    self.reporter.write("warning.raised", {"text": text})
            if kind in ("hello", "session", "finished", "done", "error"):
                self.status[kind] = message
            if kind == "session":
                self.status.pop("finished", None)
            if kind == "hello":
                self._register()
            elif kind == "throttle":
                self._throttle(message)
            elif kind == "preempt":
                self._preempted = True
            else:
                self.coordinator.tell(message | {"member": self.member})
        for channel in process.channels:
            if channel.closed:
                unregister(self.selector, channel)

    def _drain_before(self, process: WorkerProcess | ReplicaProcesses) -> None:
        """Output printed before an error is journaled before it."""
        for output in process.outputs:
            self._journal_output(output.stream, output.read())

    def _journal_output(self, stream: str, text: str) -> None:
        self.output.write(self.member, self.rank, stream, text)

    def _flush_partial_output(self) -> None:
        for output in self.process.outputs if self.process else ():
            self._journal_output(output.stream, output.overdue())

    # ---- the coordinator ----------------------------------------------------------------------------------

    def _register(self) -> None:
        """Register with the coordinator; after a reconnection, also repeat the worker's reports and its end."""
        hello = self.status.get("hello")
        if hello is None:
            return
        status = {key: value for key, value in self.status.items() if key != "hello"}
        if "exited" in status:
            status["ago_s"] = time.monotonic() - self._ended_s
        self.coordinator.tell(
            {
                "type": "register",
                "node": self.context.node,
                "member": self.member,
                "pid": hello["pid"],
                "host": hello["host"],
                "port": hello["port"],
                "rank": self.rank,
                "spare": self.context.spare,
                "status": status,
            }
            | ({"ports": hello["ports"]} if "ports" in hello else {})
        )

    def _push(self) -> None:
        """Send pending bytes."""
        if self.process is not None:
            self.process.channel.push()
            if self.process.overdue:
                self._relay_up(self.process)
        self.coordinator.push()

    def _keep_lease(self) -> None:
        """Stop the worker when the lease has run out; only the coordinator can resume it, since it may be fenced."""
        self.lease.look(self.coordinator.channel, time.monotonic())
        process = self.process
        if self.rank is None:
            self.lease.lapsed = False
        elif process is not None and self.lease.lapsed and not self.held:
            self._unthrottle()
            self.held = True
            process.hold()
            who = f"{self.member} on {self.context.node}"
            text = f"the coordinator's host is silent: {who} stands still until it answers"
            self.reporter.write("warning.raised", {"text": text})
        if process is not None:
            process.progress.allow(-math.inf if self.held else self.lease.until_s)

    def _beat(self) -> None:
        now = time.monotonic()
        channel = self.coordinator.channel
        if channel is None or self.process is None or now < self._next_beat_s:
            return
        self._next_beat_s = now + BEAT_S
        if self.beside is not None:
            self.beside.poll()  # one that has ended is collected
        counter, step, phase = self.process.progress.read()
        self.coordinator.tell(
            {
                "type": "beat",
                "member": self.member,
                "counter": counter,
                "step": step,
                "phase": phase,
                "calls": self.process.progress.calls,
                "stopped": self.throttle is None and not self.held and self.process.stopped(),
                "held_s": now if self.held else None,
                "pace": self.process.progress.pace(),
            }
        )
        self.lease.beat(channel, now)

    def _leave_if_preempted(self) -> None:
        """Report that this node will be taken away. A worker that does not leave in time is an ordinary loss."""
        now = time.monotonic()
        if self._leave_by_s is None and self._preempted:
            grace_s = self.context.spec.grace_s
            self._leave_by_s = now + grace_s
            self.status["leaving"] = {"type": "leaving", "grace_s": grace_s}
            self.coordinator.tell(self.status["leaving"] | {"member": self.member})
        elif self._leave_by_s is not None and now > self._leave_by_s:
            self.exit_code = 0

    def _obey(self, message: Message) -> None:
        kind = message["type"]
        if kind == "release":
            self.exit_code = 0
        elif kind == "restart":
            self._end_worker()
            self._start_worker()
        elif kind == "preempt":
            self._preempted = True
        elif self.process is None or message.get("member") != self.member:
            return
        elif kind == "elastic":
            self._elastic(message)
        elif kind == "throttle":
            self._throttle(message)
        elif kind == "signal":
            self._unthrottle()
            self.process.signal(message["number"])
        elif kind == "resume" and self.held and self.lease.restore(message["sent_s"], time.monotonic()):
            self.held = False
            self.process.resume()

    def _elastic(self, message: Message) -> None:
        """Propose an elastic event to the worker, and report whether it was in time."""
        assert self.process is not None
        at, progress = message["at"], self.process.progress
        ok = True
        if message["final"] or not at:
            progress.decide(at)
        else:
            ok = progress.propose(at)
        self.status["elastic"] = {"at": at, "final": message["final"]}
        self.coordinator.tell({"type": "elastic", "member": self.member, "at": at, "ok": ok, "calls": progress.calls})

    def _throttle(self, message: Message) -> None:
        self._unthrottle()
        if self.process is not None and not self.held:
            self.throttle = Throttle(self.process, message["factor"], time.monotonic() + message["duration_s"])

    def _unthrottle(self) -> None:
        if self.throttle is not None:
            self.throttle.end()
            self.throttle = None

    # ---- the loop -----------------------------------------------------------------------------------------

    def _ready(self, source: Any) -> None:
        process = self.process
        if source is self.coordinator.channel:
            self._hear_coordinator()
        elif process is None:
            return
        elif isinstance(source, Channel):
            self._relay_up(process)
        elif source in process.pidfds:
            if process.over(source):
                self._end_worker()
            else:
                unregister(self.selector, source)
                self._relay_up(process)
        elif isinstance(source, Output):
            self._journal_output(source.stream, source.read())
            if source.ended:
                unregister(self.selector, source)

    def _hear_coordinator(self) -> None:
        for message in self.coordinator.hear():
            if message["type"] in OWN_MESSAGES:
                self._obey(message)
                continue
            if "rank" in message:
                self.rank = message["rank"]
            if message["type"] == "run":
                self.status["run"] = message
            if self.process is not None:
                self.process.channel.send(message)

    def _on_signal(self, number: int, _: object) -> None:
        """SIGUSR1 and SIGTERM are how a scheduler says that a node is preempted; a second SIGTERM means at once."""
        if number == signal.SIGTERM and self._preempted:
            self.exit_code = 128 + signal.SIGTERM
        self._preempted = True


def main() -> int:
    """Entry point of ``python -m jupyter_hyperpod.runtime.agent.main``; everything is in the environment."""
    context = Context.from_environment()
    adopt(context.job)
    import_ahead("numpy", "torch")
    return Agent(context).run()


if __name__ == "__main__":
    begin_with(Context.from_environment().job)
    code = main()
    sys.stdout.flush()
    os._exit(code)
