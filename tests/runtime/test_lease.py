"""The lease of a member, on real connections."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from jupyter_hyperpod.policy.membership import BEATS_LOST_S, LEASE_S, SHORT_LEASE_S
from jupyter_hyperpod.runtime.agent.lease import Lease
from jupyter_hyperpod.runtime.connection import Channel, prepare
from jupyter_hyperpod.runtime.coordinator.roster import Member, Signs
from jupyter_hyperpod.runtime.progress import WorkerProgress

Wait = Callable[..., object]


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel]]:
    """An agent's end and the coordinator's end of one greeted connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    prepare(near)
    agent, coordinator = Channel(near, b"secret", initiator=True), Channel(far, b"secret")
    with closing(agent), closing(coordinator):
        deadline = time.monotonic() + 50
        while not (agent.greeted and coordinator.greeted):
            assert time.monotonic() < deadline
            for channel in (agent, coordinator):
                channel.receive()
        yield agent, coordinator


def test_a_coordinator_that_reads_nothing_extends_the_lease(
    channels: tuple[Channel, Channel], eventually: Wait
) -> None:
    agent, _ = channels
    lease = Lease()
    lease.connected(0.0, 0.0)
    agent.send({"type": "beat"})
    lease.beat(agent, 0.3, LEASE_S)

    def extended() -> bool:
        lease.update(agent, 0.4)
        return lease.until_s == 0.3 + LEASE_S

    eventually(extended)
    assert not lease.lapsed
    assert LEASE_S < BEATS_LOST_S


def test_what_ran_out_revives_only_by_a_fresh_answer(channels: tuple[Channel, Channel]) -> None:
    agent, _ = channels
    lease = Lease()
    lease.connected(0.0, 0.0)
    lease.update(agent, SHORT_LEASE_S)
    assert not lease.lapsed
    late_s = SHORT_LEASE_S + 0.1
    lease.extend(late_s, late_s)
    assert lease.lapsed, "a sign of life that comes too late proves nothing about the time before"
    assert not lease.restore(0.5, 0.7, 1.3) and lease.lapsed
    assert lease.restore(late_s, 0.7, late_s + 0.1) and not lease.lapsed
    assert lease.until_s == late_s + 0.7


def test_the_lease_follows_the_longest_gap_once_for_each_silence(
    channels: tuple[Channel, Channel], eventually: Wait
) -> None:
    agent, _ = channels
    lease = Lease()
    lease.connected(0.0, 0.0)
    assert lease.next_s(0.1, 0.0) == SHORT_LEASE_S
    for sent_s in (0.1, 0.2, 0.3):
        agent.send({"type": "beat"})
        lease.beat(agent, sent_s, SHORT_LEASE_S)
    eventually(lambda: agent.confirmed == agent.position)
    lease.update(agent, 0.32)
    assert lease.next_s(0.1, 0.32) == pytest.approx(2.5 * 0.32), "nothing was seen for 0.32 s"
    assert lease.until_s == pytest.approx(0.3 + SHORT_LEASE_S), "what a beat asked for is not changed later"
    lease.beat(agent, 0.35, 0.8)
    assert lease.next_s(0.1, 0.4) == pytest.approx(0.8), "no later beat takes back what an earlier one said"


def test_silence_alone_ends_the_lease(channels: tuple[Channel, Channel]) -> None:
    agent, _ = channels
    lease = Lease()
    lease.connected(0.0, 0.0)
    lease.update(agent, SHORT_LEASE_S + 0.1)
    assert lease.lapsed
    lease.update(agent, SHORT_LEASE_S)
    assert lease.lapsed, "no later look mends it"


def test_what_has_arrived_and_is_not_read_yet_is_a_sign_of_life(
    channels: tuple[Channel, Channel], eventually: Wait
) -> None:
    agent, coordinator = channels
    signs = Signs(0.0, 0.0, 0.0)
    member = Member("a", "node-1", coordinator, "", 0, 1, False, 0.0, 0.0, signs)
    found = member.pulse(1.0)
    assert found.beat_age_s == 1.0 and found.lease_s == LEASE_S, (
        "before its first beat it may have asked for the longest"
    )
    eventually(lambda: member.pulse(1.5).unconfirmed_s is None)  # its host has confirmed the probe
    agent.send({"type": "beat"})
    eventually(lambda: coordinator.arrived > 0)
    assert member.pulse(2.5).beat_age_s == 0.0
    coordinator.receive()
    assert coordinator.arrived == 0 and member.pulse(2.5).beat_age_s == 2.5


def test_nothing_is_asked_of_who_was_never_connected() -> None:
    lease = Lease()
    lease.update(None, 1e9)
    assert not lease.lapsed and lease.until_s == math.inf


def test_the_other_side_that_hangs_up_is_told_from_silence(channels: tuple[Channel, Channel], eventually: Wait) -> None:
    agent, coordinator = channels
    agent.receive()
    assert not agent.closed and not agent.refused
    coordinator.close()
    eventually(lambda: agent.receive() == [] and agent.closed)
    assert agent.refused
    assert agent.confirmed == 0


def test_a_worker_waits_with_its_journal_until_the_lease_holds() -> None:
    progress = WorkerProgress()
    progress.wait_until_allowed()
    progress.allow(-math.inf)
    written = threading.Event()

    def write() -> None:
        progress.wait_until_allowed()
        written.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert not written.wait(0.05)
    progress.allow(time.monotonic() + 60)
    assert written.wait(50)
    thread.join()
