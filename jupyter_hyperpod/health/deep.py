"""Deep checks of cores, memory, disk, network and devices. They run on request and take minutes.

python -m jupyter_hyperpod.health.deep SECONDS      the stress of one core
"""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..core.health import Finding, failed, passed, skipped
from ..core.units import format_bytes, plural
from . import nvidia
from .probes import ProbeRoot, told

CPU_S = 2.0
MEMORY_BYTES = 256 << 20
DISK_BYTES = 64 << 20
LOOPBACK_BYTES = 256 << 20
DCGM_S = 3600.0
SLOWEST_LOOPBACK = 200e6
_BLOCK = 1 << 20


def cpu(seconds: float = CPU_S, workers: int | None = None) -> list[Finding]:
    """Every core computes the same digests repeatedly. A core with another digest computes wrongly."""
    count = workers or len(os.sched_getaffinity(0))
    running = [worker(seconds) for _ in range(count)]
    texts = [one.communicate()[0] for one in running]
    ends = [one.returncode for one in running if one.returncode]
    if any(end > 0 for end in ends):
        return [failed("cpu-stress", "isolate", "CpuFails", f"a core's computation ended with {max(ends)}")]
    if ends:  # by the kernel for want of memory, or by a person
        return [skipped("cpu-stress", f"{len(ends)} of {plural(count, 'process')} were killed, by signal {-ends[0]}")]
    found = [(int(rounds), int(bad)) for rounds, bad in map(str.split, texts)]
    wrong = sum(bad for _, bad in found)
    said = f"{plural(count, 'core')} computed {plural(sum(rounds for rounds, _ in found), 'block')} in {seconds:g} s"
    if wrong:
        return [failed("cpu-stress", "isolate", "CpuComputesWrong", f"{said}, {wrong} of them wrong")]
    return [passed("cpu-stress", f"{said}, all right")]


def worker(seconds: float) -> subprocess.Popen[str]:
    """The process that stresses one core."""
    return subprocess.Popen([sys.executable, "-m", __name__, f"{seconds:g}"], stdout=subprocess.PIPE, text=True)


def _digests(seconds: float) -> tuple[int, int]:
    block = bytes(range(256)) * 4096
    right = hashlib.sha256(block).digest()
    end_s, rounds, wrong = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end_s:
        rounds += 1
        wrong += hashlib.sha256(block).digest() != right
    return rounds, wrong


def memory(size: int = MEMORY_BYTES) -> list[Finding]:
    """Write patterns into memory and read them back."""
    wrong = 0
    for pattern in (b"\x55", b"\xaa", b"\x00", b"\xff"):
        expected = pattern * _BLOCK
        area = bytearray(expected) * (size // _BLOCK)
        wrong += sum(area[at : at + _BLOCK] != expected for at in range(0, len(area), _BLOCK))
    if wrong:
        return [failed("memory-stress", "isolate", "MemoryForgets", f"{wrong} MiB of memory gave back other bytes")]
    return [passed("memory-stress", f"{format_bytes(size)} kept four patterns")]


def disk(directory: Path, size: int = DISK_BYTES) -> list[Finding]:
    """Write random bytes to the disk and read them back."""
    written, read = hashlib.sha256(), hashlib.sha256()
    began_s = time.monotonic()
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(size // _BLOCK):
            block = os.urandom(_BLOCK)
            written.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        while block := file.read(_BLOCK):
            read.update(block)
    rate = format_bytes(2 * size / (time.monotonic() - began_s))
    if read.digest() != written.digest():
        return [failed("disk-stress", "isolate", "DiskForgets", f"{directory} gave back other bytes than were written")]
    return [passed("disk-stress", f"{directory} gave back {format_bytes(size)} as written, {rate}/s in all")]


def loopback(size: int = LOOPBACK_BYTES) -> list[Finding]:
    """Send bytes through the network stack of this machine."""
    ours, theirs = socket.socketpair()
    block = bytes(_BLOCK)

    def send() -> None:
        with theirs:
            for _ in range(size // _BLOCK):
                theirs.sendall(block)

    began_s = time.monotonic()
    thread = threading.Thread(target=send, name="loopback")
    thread.start()
    received = 0
    with ours:
        while count := len(ours.recv(_BLOCK)):
            received += count
    thread.join()
    rate = received / (time.monotonic() - began_s)
    said = f"{format_bytes(received)} passed through this machine at {format_bytes(rate)}/s"
    if rate < SLOWEST_LOOPBACK:
        return [failed("loopback", "monitor", "LoopbackSlow", said)]
    return [passed("loopback", said)]


def dcgm(level: int = 2) -> Sequence[Finding]:
    """NVIDIA's own diagnosis; level 2 takes minutes, level 4 about an hour."""
    return told("nvidia-dcgm", ["dcgmi", "diag", "-r", str(level), "-j"], nvidia.diagnosis, DCGM_S)


def check(place: ProbeRoot, level: int = 2) -> Iterator[Finding]:
    """Run all deep checks, one after another."""
    directory = place.store.root if place.store else Path(tempfile.gettempdir())
    steps: dict[str, Callable[[], Sequence[Finding]]] = {
        "cpu-stress": cpu,
        "memory-stress": memory,
        "disk-stress": lambda: disk(directory),
        "loopback": loopback,
        "nvidia-dcgm": lambda: dcgm(level),
    }
    for name, step in steps.items():
        try:
            yield from step()
        except (OSError, MemoryError) as error:
            yield skipped(name, f"it cannot be done here: {error}")


if __name__ == "__main__":
    print(*_digests(float(sys.argv[1])))
