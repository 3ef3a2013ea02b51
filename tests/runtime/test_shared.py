"""Memory that peers read in place: real processes, real deaths."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from jupyter_hyperpod.runtime.comm.shared_memory import (
    PROBE_BYTES,
    TOKEN_BYTES,
    Attachments,
    Segment,
    Token,
    can_read,
    is_held,
)


def test_a_token_survives_the_wire() -> None:
    token = Token(4_000_000, 12, 2**63, 2**40)
    assert Token.unpack(token.pack()) == token


def test_what_one_writes_the_other_reads_without_a_copy() -> None:
    segment = Segment(4096)
    memory = Attachments().memory(segment.token)
    segment.memory[10:15] = b"hello"
    assert memory[10:15] == b"hello"


def test_memory_outlives_the_process_that_made_it() -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        segment = Segment(4096)
        segment.memory[:4] = b"kept"
        os.write(writing, segment.token.pack())
        signal.pause()
        os._exit(0)
    try:
        token = Token.unpack(os.read(reading, 64))
        attachments = Attachments()
        memory = attachments.memory(token)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)
    assert memory[:4] == b"kept"
    assert attachments.memory(token) is memory
    attachments.forget_all_but([])
    with pytest.raises(OSError):
        attachments.memory(token)


def test_a_descriptor_that_means_something_else_now_is_refused() -> None:
    segment = Segment(PROBE_BYTES)
    stale = Token(segment.token.pid, segment.token.descriptor, segment.token.inode + 1, PROBE_BYTES)
    with pytest.raises(OSError, match="has closed the memory file"):
        Attachments().memory(stale)
    assert not can_read(stale.pack() + segment.memory[:])


def test_a_neighbour_is_known_by_its_content_not_by_its_numbers() -> None:
    segment = Segment(PROBE_BYTES)
    segment.memory[:] = os.urandom(PROBE_BYTES)
    assert can_read(segment.token.pack() + segment.memory[:])
    assert not can_read(segment.token.pack() + os.urandom(PROBE_BYTES))


def test_what_its_owner_has_given_up_is_mapped_no_longer() -> None:
    attachments, kept, given_up = Attachments(), Segment(4096), Segment(4096)
    tokens = [kept.token, given_up.token]
    mapped = [attachments.memory(token) for token in tokens]
    del given_up
    attachments.forget_all_but([os.getpid()])
    assert attachments.memory(tokens[0]) is mapped[0]
    with pytest.raises(OSError):
        attachments.memory(tokens[1])


def test_a_segment_is_held_as_long_as_its_owner_lives() -> None:
    """So that nobody writes where an excluded member may read, and nobody takes new memory because of a dead one."""
    script = (
        "from jupyter_hyperpod.runtime.comm.shared_memory import Segment\n"
        "import sys\n"
        "segment = Segment(64)\n"
        "sys.stdout.buffer.write(segment.token.pack())\n"
        "sys.stdout.flush()\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        token = Token.unpack(owner.stdout.read(TOKEN_BYTES))
        assert is_held(token)
        assert not is_held(replace(token, inode=token.inode + 1))
        owner.kill()
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet taken from the table of processes
        assert not is_held(token)
