"""The agent: one per node and job. It forks the worker, captures its output, notices its end, and relays.

It decides nothing: it reports facts to the coordinator and carries out its orders. It must stay single-threaded,
because it forks. Without a coordinator it keeps the worker training and tries to reconnect.
"""

from __future__ import annotations

import math
import selectors
import signal
import time
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from ...core.units import first_line
from ...policy import membership
from ...storage.apart.hand_in import settle
from ...storage.journal_writer import JournalWriter
from ...storage.output.output_relay import OutputRelay
from ...system.diagnostics import note
from ..connection import Channel
from ..context import Context
from ..protocol import facts, orders
from ..protocol.codec import Message, Process
from ..protocol.dispatch import handlers, handles
from ..sidecars import health_agent
from ..worker import main as worker
from .coordinator_link import CoordinatorLink, unregister
from .libraries import import_ahead
from .node_sampler import NodeSampler
from .replica_processes import ReplicaProcesses
from .throttle import Throttle
from .worker_process import Output, WorkerProcess

READS = 8  # of a worker's messages, for the displays whose marks have come
SETTLES_S = 0.5  # shorter than a silence that counts as a loss; a head that takes longer gets the rest later
FAREWELL_S = 1.2  # shorter than the coordinator waits for the last agent
SAID = 200  # characters of an error's message in a warning


class Agent:
    """State of one agent; `run` is its whole life."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.reporter = JournalWriter(context.job.events, f"agent-{context.node}")
        self.output = OutputRelay(context.job, context.node, self.reporter, context.spec.output_cap)
        self.selector = selectors.DefaultSelector()
        self.coordinator = CoordinatorLink(context, self.selector)
        self.throttle: Throttle | None = None
        self.process: WorkerProcess | ReplicaProcesses | None = None
        self._ending: WorkerProcess | ReplicaProcesses | None = None  # has ended; its last output is read
        self.member = ""
        self.rank: int | None = None
        self.status = facts.WorkerStatus()
        self.hello: facts.WorkerReady | None = None
        self._handlers = handlers(self)
        self.exit_code: int | None = None
        self.lease = self.coordinator.lease
        self.held = False  # the worker is stopped, because its coordinator may have fenced it
        self._next_beat_s = 0.0
        self._beat_interval_s = membership.beat_interval_s(context.spec.nodes)
        self._sampler = NodeSampler(context.spec)
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
            self.output.flush()
            self.reporter.flush()
        self._end_worker()
        self.output.close()
        self.reporter.close()
        self._settle(FAREWELL_S)
        self.coordinator.close()  # last: it journals the job's end when this connection has ended
        return self.exit_code

    def _settle(self, limit_s: float = SETTLES_S) -> None:
        """Have all that was written here where readers see it, before the coordinator is told of an end."""
        if problem := settle(self.context.job.path, limit_s):
            note(f"{self.context.node}: {problem}")

    def _patience_s(self) -> float:
        """How long the loop may wait for something to happen."""
        usual_s = 0.02 if self.coordinator.channel is None else membership.BEAT_S / 2
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
        self.status, self.hello = facts.WorkerStatus(), None
        self.output.begin()
        sources: list[Any] = [*process.pidfds, *process.channels, *process.outputs]
        for source in sources:
            self.selector.register(source, selectors.EVENT_READ)

    def _end_worker(self) -> None:
        """Kill the worker if it lives, journal its last output and report its end."""
        process, self.process, self.throttle = self.process, None, None
        if process is None:
            return
        self._ending = process
        self._ended_s = time.monotonic()
        process.signal(signal.SIGKILL)
        code = process.reap()
        self._relay_up(process)
        for source in (*process.pidfds, *process.channels, *process.outputs):
            unregister(self.selector, source)
        for output in process.outputs:
            self._journal_output(output, output.drain())
        process.close()
        self._ending = None
        self.status = replace(self.status, exited=code)
        self._send(facts.WorkerExited(code, time.monotonic() - self._ended_s))

    def _relay_up(self, process: WorkerProcess | ReplicaProcesses) -> None:
        for fact in process.receive():
            if (handler := self._handlers.get(type(fact))) is not None:
                handler(fact)
            if Process.COORDINATOR in fact.receivers:
                self._send(fact)
        for channel in process.channels:
            if channel.closed:
                unregister(self.selector, channel)

    @handles(facts.WorkerReady)
    def _ready_to_run(self, hello: facts.WorkerReady) -> None:
        self.hello = hello
        self._register()

    @handles(facts.SessionOpened)
    def _opened(self, session: facts.SessionOpened) -> None:
        self.status = replace(self.status, session=session, finished=None)

    @handles(facts.SessionFinished)
    def _finished(self, finished: facts.SessionFinished) -> None:
        self.status = replace(self.status, finished=finished)

    @handles(facts.CellDone)
    def _done(self, done: facts.CellDone) -> None:
        self.status = replace(self.status, done=done)
        self._settle()

    @handles(facts.CellFailed)
    def _failed(self, failed: facts.CellFailed) -> None:
        """Journal the error, after what was printed before it."""
        self.status = replace(self.status, error=failed)
        process = self.process or self._ending
        for output in process.outputs if process is not None else ():
            self._journal_output(output, output.read())
        error, node = failed.error, self.context.node
        if self.rank is not None:
            found = asdict(error) | {"traceback": list(error.traceback)}
            self.reporter.write("user.error", {"member": self.member, "node": node, "rank": self.rank} | found)
        else:
            said = first_line(error.message, SAID) or error.type
            self.reporter.write("warning.raised", {"text": f"the cell failed on {node}, which stands by: {said}"})
        self._settle()

    @handles(facts.OutputShown)
    def _shown(self, shown: facts.OutputShown) -> None:
        self.output.expect(shown.number, shown.text, shown.shown)

    def _journal_output(self, output: Output, text: str) -> None:
        process = self.process or self._ending
        for _ in range(READS):
            if process is not None and self.output.lacks(text):
                self._relay_up(process)  # its displays were sent before their marks
        self.output.write(self.member, self.rank, output.stream, text, output.label)

    def _flush_partial_output(self) -> None:
        for output in self.process.outputs if self.process else ():
            self._journal_output(output, output.overdue())

    # ---- the coordinator ----------------------------------------------------------------------------------

    def _register(self) -> None:
        """Register with the coordinator; after a reconnection, also repeat the worker's reports and its end."""
        hello, context = self.hello, self.context
        if hello is None:
            return
        status = self.status
        if status.exited is not None:
            status = replace(status, ago_s=time.monotonic() - self._ended_s)
        self._send(
            facts.Register(
                *(context.node, hello.pid, hello.host, hello.port, self.rank, context.spare, status, hello.ports),
                unpacks=True,
                patches=True,
            )
        )

    def _send(self, fact: Message) -> None:
        self.coordinator.send(self.member, fact)

    def _push(self) -> None:
        """Send pending bytes."""
        if self.process is not None:
            self.process.channel.push()
            if self.process.overdue:
                self._relay_up(self.process)
        self.coordinator.push()

    def _keep_lease(self) -> None:
        """Stop the worker when the lease has run out; only the coordinator can resume it, since it may be fenced."""
        self.lease.update(self.coordinator.channel, time.monotonic())
        process = self.process
        if self.rank is None:
            self.lease.lapsed = False
        elif process is not None and self.lease.lapsed and not self.held:
            self._unthrottle()
            self.held = True
            self._next_beat_s = 0.0  # the coordinator is asked at once
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
        self._next_beat_s = now + self._beat_interval_s
        if self.beside is not None:
            self.beside.poll()  # one that has ended is collected
        progress = self.process.progress
        counter, step, phase = progress.read()
        stopped = self.throttle is None and not self.held and self.process.stopped()
        held_s = now if self.held else None
        lease_s = self.lease.next_s(self._beat_interval_s, now)
        self._send(facts.Beat(counter, step, phase, progress.calls, stopped, held_s, progress.pace(), lease_s))
        self.lease.beat(channel, now, lease_s)
        if (sampled := self._sampler.due(now, progress.times())) is not None:
            self._send(sampled)

    def _leave_if_preempted(self) -> None:
        """Report that this node will be taken away. A worker that does not leave in time is an ordinary loss."""
        now = time.monotonic()
        if self._leave_by_s is None and self._preempted:
            grace_s = self.context.spec.grace_s
            self._leave_by_s = now + grace_s
            leaving = facts.NodePreempted(grace_s)
            self.status = replace(self.status, leaving=leaving)
            self._send(leaving)
        elif self._leave_by_s is not None and now > self._leave_by_s:
            self.exit_code = 0

    def _mine(self, member: str | None) -> bool:
        """Whether an order is for the worker that runs now, not for the one before it."""
        return self.process is not None and member in (None, self.member)

    @handles(orders.Release)
    def _release(self, order: orders.Release) -> None:
        self.exit_code = 0

    @handles(orders.Restart)
    def _restart(self, order: orders.Restart) -> None:
        self._end_worker()
        self._start_worker()

    @handles(orders.ProbeHost)
    def _probed(self, order: orders.ProbeHost) -> None:
        """This host has confirmed it, which is all that was asked."""

    @handles(orders.PreemptNode)
    def _preempt(self, order: orders.PreemptNode) -> None:
        self._preempted = True

    @handles(orders.RunCell)
    def _run_cell(self, order: orders.RunCell) -> None:
        self.rank = order.rank
        self.status = replace(self.status, run=order)

    @handles(orders.FormGeneration)
    def _form(self, order: orders.FormGeneration) -> None:
        self.rank = order.rank
        self._beat_interval_s = membership.beat_interval_s(len(order.members))
        self._sampler.nodes = len(order.members)

    @handles(orders.SendSignal)
    def _signal(self, order: orders.SendSignal) -> None:
        if self.process is not None and self._mine(order.member):
            self._unthrottle()
            self.process.signal(order.number)

    @handles(orders.ResumeWorker)
    def _resume(self, order: orders.ResumeWorker) -> None:
        if self.process is not None and self._mine(order.member) and self.held:
            if self.lease.restore(order.sent_s, order.lease_s, time.monotonic()):
                self.held = False
                self.process.resume()

    @handles(orders.CallElasticEvent)
    def _elastic(self, order: orders.CallElasticEvent) -> None:
        """Propose an elastic event to the worker, and report whether it was in time."""
        if self.process is None or not self._mine(order.member):
            return
        progress, ok = self.process.progress, True
        if order.final or not order.at:
            progress.decide(order.at)
        else:
            ok = progress.propose(order.at)
        self.status = replace(self.status, elastic=order)
        self._send(facts.ElasticAnswer(order.at, ok, progress.calls))

    @handles(orders.ThrottleWorker)
    def _throttle(self, order: orders.ThrottleWorker) -> None:
        if not self._mine(order.member):
            return
        self._unthrottle()
        if self.process is not None and not self.held:
            self.throttle = Throttle(self.process, order.factor, time.monotonic() + order.duration_s)

    def _unthrottle(self) -> None:
        if self.throttle is not None:
            self.throttle.end()
            self.throttle = None

    # ---- the loop -----------------------------------------------------------------------------------------

    def _ready(self, source: Any) -> None:
        process = self.process
        if source is self.coordinator.channel:
            self._receive_orders()
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
            self._journal_output(source, source.read())
            if source.ended:
                unregister(self.selector, source)

    def _receive_orders(self) -> None:
        for order in self.coordinator.receive():
            if (handler := self._handlers.get(type(order))) is not None:
                handler(order)
            if Process.WORKER in order.receivers and self.process is not None:
                self.process.send(order)

    def _on_signal(self, number: int, _: object) -> None:
        """SIGUSR1 and SIGTERM are how a scheduler says that a node is preempted; a second SIGTERM means at once."""
        if number == signal.SIGTERM and self._preempted:
            self.exit_code = 128 + signal.SIGTERM
        self._preempted = True
