"""Memory files between real processes: opened by process, descriptor and inode, refused when any of them changed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from jupyter_hyperpod.system.memory_files import create_memory_file, is_held, open_memory_file, seal_length

OWNER = """
import os, sys
from jupyter_hyperpod.system.memory_files import create_memory_file
descriptor = create_memory_file("test", 4096)
os.pwrite(descriptor, b"hello", 0)
print(os.getpid(), descriptor, os.fstat(descriptor).st_ino, flush=True)
sys.stdin.readline()
os.close(descriptor)
print("closed", flush=True)
sys.stdin.readline()
"""


def test_another_process_opens_it() -> None:
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdin is not None and owner.stdout is not None
        pid, descriptor, inode = map(int, owner.stdout.readline().split())
        opened = open_memory_file(pid, descriptor, inode)
        assert os.pread(opened, 5, 0) == b"hello" and os.fstat(opened).st_size == 4096
        assert is_held(pid, descriptor, inode) and not is_held(pid, descriptor, inode + 1)
        with pytest.raises(FileNotFoundError, match=f"process {pid} has closed"):
            open_memory_file(pid, descriptor, inode + 1)
        owner.stdin.write("\n")
        owner.stdin.flush()
        assert owner.stdout.readline() == "closed\n"
        assert not is_held(pid, descriptor, inode)
        with pytest.raises(OSError):
            open_memory_file(pid, descriptor, inode)
        assert os.pread(opened, 5, 0) == b"hello"  # the file lives as long as anybody has it
        os.close(opened)
        owner.kill()


def test_a_sealed_length_stays() -> None:
    descriptor = create_memory_file("test", 4096)
    seal_length(descriptor)
    for length in (0, 8192):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, length)
    os.close(descriptor)
