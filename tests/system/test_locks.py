"""Locks between real processes: a held lock keeps others out until the deadline, and ends with its holder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jupyter_hyperpod.core.errors import Conflict, StoreError
from jupyter_hyperpod.system.locks import one_at_a_time, open_lock, release_byte_lock, take_byte_lock, take_lock

HOLDER = """
import sys
from jupyter_hyperpod.system.locks import open_lock, take_byte_lock, take_lock
descriptor = open_lock(sys.argv[1])
assert take_lock(descriptor) and take_byte_lock(descriptor, 7)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has both locks of `path`."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_deadline_counts(tmp_path: Path) -> None:
    with held(tmp_path / "lock"):
        descriptor = open_lock(tmp_path / "lock")
        assert not take_lock(descriptor)
        began_s = time.monotonic()
        assert not take_lock(descriptor, 0.1)
        assert time.monotonic() - began_s >= 0.1
        assert not take_byte_lock(descriptor, 7)
        assert take_byte_lock(descriptor, 8)
        with (
            pytest.raises(Conflict, match="^somebody is busy$"),
            one_at_a_time(tmp_path / "lock", "somebody is busy", 0),
        ):
            raise AssertionError("two are in the block")
        os.close(descriptor)


def test_a_lock_ends_with_its_holder(tmp_path: Path) -> None:
    with held(tmp_path / "lock") as process:
        descriptor = open_lock(tmp_path / "lock")
        process.kill()
        assert take_lock(descriptor, 20.0) and take_byte_lock(descriptor, 7, 20.0)
        os.close(descriptor)
    with one_at_a_time(tmp_path / "lock", "", None):
        pass


def test_byte_locks_exclude_within_a_process(tmp_path: Path) -> None:
    one, other = open_lock(tmp_path / "lock"), open_lock(tmp_path / "lock")
    assert take_byte_lock(one, 3) and not take_byte_lock(other, 3)
    release_byte_lock(one, 3)
    assert take_byte_lock(other, 3)
    os.close(one)
    os.close(other)


def test_a_lock_file_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot write"), one_at_a_time(tmp_path / "absent" / "lock", "", 0):
        raise AssertionError
