"""Manages the worker processes of one replica for their agent: they start and end together."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable

from ..connection import Channel
from ..progress import WorkerProgress
from ..protocol.codec import Message
from ..protocol.facts import CellFailed
from .worker_process import Output, WorkerMain, WorkerProcess

# how long an exception is held back: the death of another rank, not the user's code, may have caused it
ERROR_HELD_S = 1.0


class ReplicaProcesses:
    """``size`` forked ranks of one replica; shard 0 leads. When one dies, the others are ended.

    It has the methods of `WorkerProcess` that the agent needs. The caller must be single-threaded.
    """

    def __init__(self, size: int, main: Callable[[int], WorkerMain]) -> None:
        pairs = [socket.socketpair() for _ in range(size - 1)]
        self.processes = [WorkerProcess(main(0), [ours for ours, _ in pairs])]
        self.processes += [WorkerProcess(main(shard), [pairs[shard - 1][1]]) for shard in range(1, size)]
        for pair in pairs:
            for end in pair:
                end.close()
        self.leader = self.processes[0]
        self.pid = self.leader.pid
        self.channel: Channel = self.leader.channel
        self.progress = _Progress([process.progress for process in self.processes])
        self.outputs: list[Output] = [output for process in self.processes for output in process.outputs]
        self._inbox: list[Message] = []
        self._error: CellFailed | None = None
        self._exits: dict[int, int] = {}  # pidfd -> exit status of those that ended by themselves, first come first

    @property
    def channels(self) -> list[Channel]:
        """Where the ranks can be heard."""
        return [process.channel for process in self.processes]

    @property
    def pidfds(self) -> list[int]:
        """Each is readable when its rank has ended."""
        return [process.pidfd for process in self.processes]

    @property
    def overdue(self) -> bool:
        """Whether an error was held back long enough: no rank died, so it is the program's error."""
        return self._error is not None and time.monotonic() - self._error.at_s > ERROR_HELD_S

    def receive(self) -> list[Message]:
        """The messages of the ranks; the first error only once it is clear that no death caused it."""
        self._hear()
        messages, self._inbox = self._inbox, []
        if self._error is not None and not self._killed and (self.overdue or len(self._exits) == len(self.processes)):
            messages.append(self._error)
            self._error = None
        return messages

    def send(self, order: Message) -> None:
        """Pass an order on to the leader."""
        self.leader.send(order)

    def over(self, pidfd: int) -> bool:
        """The rank behind `pidfd` has ended: True if the replica has, too."""
        self._exits[pidfd] = _exit_status(pidfd)
        self._hear()
        well = self._exits[pidfd] == 0 or (self._error is not None and not self._killed)
        return not well or len(self._exits) == len(self.processes)

    def signal(self, number: int) -> None:
        """Signal the leader: if it dies of it, so do the others."""
        self.leader.signal(number)

    def hold(self) -> None:
        """Stop every rank and what it has started."""
        for process in self.processes:
            process.hold()

    def resume(self) -> None:
        """Undo `hold`."""
        for process in self.processes:
            process.resume()

    def stopped(self) -> bool:
        """True while any rank is stopped."""
        return any(process.stopped() for process in self.processes)

    def reap(self) -> int:
        """End what still runs; the exit status of the first rank that did not end well, 0 if all did."""
        for process in self.processes:
            process.signal(signal.SIGKILL)
        statuses = [process.reap() for process in self.processes]
        return next((status for status in self._exits.values() if status), next(filter(None, statuses), 0))

    def close(self) -> None:
        """Release every descriptor."""
        for process in self.processes:
            process.close()

    @property
    def _killed(self) -> bool:
        """Whether a rank died of a signal."""
        return any(status < 0 for status in self._exits.values())

    def _hear(self) -> None:
        for process in self.processes:
            for message in process.receive() if not process.channel.closed else ():
                if not isinstance(message, CellFailed):
                    self._inbox.append(message)
                elif self._error is None or message.at_s < self._error.at_s:
                    self._error = message


class _Progress:
    """The combined progress of all ranks: it stops only when none of them moves."""

    def __init__(self, ranks: list[WorkerProgress]) -> None:
        self._ranks = ranks

    def read(self) -> tuple[int, int, str]:
        """Return (counter, step, phase): the leader's step and phase, unless another rank still computes."""
        seen = [rank.read() for rank in self._ranks]
        _, step, phase = next((one for phase in ("warm-up", "compute") for one in seen if one[2] == phase), seen[0])
        return sum(counter for counter, _, _ in seen), step, phase

    @property
    def calls(self) -> int:
        """Calls of elastic_event_detected() by the rank that is furthest; 0 until every rank has made one."""
        calls = [rank.calls for rank in self._ranks]
        return max(calls) if all(calls) else 0

    def propose(self, at: int) -> bool:
        """As `WorkerProgress.propose`, for every rank or for none."""
        if all(rank.propose(at) for rank in self._ranks):
            return True
        self.decide(0)
        return False

    def decide(self, at: int) -> None:
        """As `WorkerProgress.decide`, for every rank."""
        for rank in self._ranks:
            rank.decide(at)

    def pace(self) -> tuple[int, float]:
        """Return (step, seconds for a micro-batch of it) of the slowest rank: the others wait for it."""
        return max((rank.pace() for rank in self._ranks), key=lambda pace: pace[1])

    def times(self) -> tuple[int, float, float, float]:
        """As `WorkerProgress.times`, of the first rank: they act alike."""
        return self._ranks[0].times()

    def allow(self, until_s: float) -> None:
        """Let every rank journal until ``until_s`` (monotonic clock)."""
        for rank in self._ranks:
            rank.allow(until_s)


def _exit_status(pidfd: int) -> int:
    """As subprocess has it, negative for a signal; the process stays to be reaped."""
    ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
