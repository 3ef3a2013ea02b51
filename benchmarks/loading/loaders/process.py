"""Measured loads, each in a process of its own: ``python -m benchmarks.loading.loaders.process ARM``, tasks on stdin.

An arm is a module ``ARM_loader`` that imports all it needs, whose `prepare(task)` does what comes before the clock
starts (clients) and returns the load itself. A load is over when every tensor can be read: each of its pages is
touched once, so that nothing is left to be done lazily. What was loaded is then compared with the file, byte by byte,
and a line of JSON printed.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

CHUNK_BYTES = 8 * 2**20
PAGE_BYTES = 4096
ENTRY_BYTES = 8  # a page, in /proc/self/pagemap
POPULATE_WRITE = 23
LIBC = ctypes.CDLL(None)
TYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "F16": torch.float16}


@dataclass(frozen=True, slots=True)
class Task:
    """What to load: object ``key`` of ``bucket`` at ``endpoint``, whose bytes are those of the file ``reference``.

    ``connections`` is how many requests an arm makes at once where that can be set; ``settings`` are its own, and so is
    the ``environment``.
    """

    reference: str
    bucket: str = ""
    key: str = ""
    endpoint: str = ""
    connections: int = 8
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


Facts = dict[str, float]
Load = Callable[[Facts], Mapping[str, torch.Tensor]]


def read_header(begin: bytes) -> tuple[int, dict[str, Any]]:
    """Where the data of a safetensors file begin, and its header."""
    length = int.from_bytes(begin[:8], "little")
    header = json.loads(begin[8 : 8 + length])
    header.pop("__metadata__", None)
    return 8 + length, header


def header_of(task: Task, get: Callable[[int, int], bytes]) -> tuple[int, dict[str, Any], int]:
    """Fetch the header by ``get(offset, length)``: where the data begin, the entries, and the bytes of data."""
    length = int.from_bytes(get(0, 8), "little")
    start, header = read_header(length.to_bytes(8, "little") + get(8, length))
    return start, header, max(entry["data_offsets"][1] for entry in header.values())


def tensors_in(block: torch.Tensor, header: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of a header as views of one block of bytes."""
    found = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        found[name] = block[begin:end].view(TYPES[entry["dtype"]]).view(entry["shape"])
    return found


def ranges(start: int, length: int) -> Iterator[tuple[int, int]]:
    """Offsets in the object and lengths of all chunks."""
    for place in range(0, length, CHUNK_BYTES):
        yield start + place, min(CHUNK_BYTES, length - place)


def into_place(
    task: Task, get: Callable[[int, int], bytes], fill: Callable[[int, memoryview], None]
) -> dict[str, torch.Tensor]:
    """Load by ``fill(offset, view)``, ``task.connections`` at once, into one block."""
    start, header, length = header_of(task, get)
    block = torch.empty(length, dtype=torch.uint8)
    view = block.numpy().data
    with ThreadPoolExecutor(task.connections) as pool:
        parts = [(offset, view[offset - start : offset - start + size]) for offset, size in ranges(start, length)]
        for _ in pool.map(lambda part: fill(*part), parts):
            pass
    return tensors_in(block, header)


def huge_block(length: int) -> mmap.mmap:
    """Anonymous memory that was never touched, in huge pages where the kernel has them."""
    block = mmap.mmap(-1, -(-length // (2 * 2**20)) * 2 * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_HUGEPAGE)
    return block


def touch(tensors: Mapping[str, torch.Tensor]) -> int:
    """Read a byte of every page."""
    return sum(int(_bytes(tensor)[::PAGE_BYTES].sum()) for tensor in tensors.values())


def verify(tensors: Mapping[str, torch.Tensor], reference: Path) -> None:
    """Compare every byte with the file; raises ValueError."""
    content = np.memmap(reference, np.uint8, "r")
    start, header = read_header(content[: 8 + int(content[:8].view("<u8")[0])].tobytes())
    if tensors.keys() != header.keys():
        raise ValueError(f"{len(tensors)} tensors were loaded, the file has {len(header)}, or others")
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if list(tensors[name].shape) != entry["shape"]:
            raise ValueError(f"{name} has the shape {list(tensors[name].shape)}, expected {entry['shape']}")
        if not np.array_equal(_bytes(tensors[name]), content[start + begin : start + end]):
            raise ValueError(f"{name} is not what the file has")


def _bytes(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    found: np.ndarray[Any, np.dtype[np.uint8]] = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
    return found


def status_bytes(name: str) -> int:
    """A line of /proc/self/status that counts memory: VmRSS or VmHWM."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"no {name}")


def settle() -> None:
    """Have a copy of one's own of every page that is still shared with the process that this one was forked from.

    Copying them one by one as they are written to would be most of what a fast load costs, and costs nobody who imports
    what he needs himself. Memory that was never touched stays so.
    """
    spans = [line.split(" ", 1)[0] for line in Path("/proc/self/maps").read_text().splitlines() if " rw-p " in line]
    with open("/proc/self/pagemap", "rb", buffering=0) as map:
        for span in spans:
            begin, end = (int(address, 16) for address in span.split("-"))
            map.seek(begin // PAGE_BYTES * ENTRY_BYTES)
            there = np.frombuffer(map.read((end - begin) // PAGE_BYTES * ENTRY_BYTES), np.uint64) >> np.uint64(63)
            edges = np.flatnonzero(np.diff(there.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
            for first, last in (edges * PAGE_BYTES).tolist():
                LIBC.madvise(ctypes.c_void_p(begin + first), ctypes.c_size_t(last - first), POPULATE_WRITE)


def cpu_s() -> float:
    """CPU time of this process, its threads and the children that have ended, user and system."""
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in times)


def measure(load: Load) -> tuple[Facts, Mapping[str, torch.Tensor]]:
    """Run one load by the clock."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
    before, facts = status_bytes("VmRSS"), Facts()
    used, began = cpu_s(), time.perf_counter()
    tensors = load(facts)
    touch(tensors)
    facts |= {"seconds": time.perf_counter() - began, "cpu_s": cpu_s() - used}
    facts["peak_bytes"] = status_bytes("VmHWM") - before
    facts["held_bytes"] = sum(tensor.nbytes for tensor in tensors.values())
    return facts, tensors


def one(module: Any, task: Task, say: Callable[[str], object]) -> None:
    """Carry out a task: say when it could begin and when it is done, each time wait for a line; say what was found."""
    os.environ.update(task.environment)
    load = module.prepare(task)
    settle()
    say("ready")
    sys.stdin.readline()
    facts, tensors = measure(load)
    say("loaded")
    sys.stdin.readline()  # others may still be loading
    if "tp" not in task.settings and getattr(module, "KEEPS", True):
        verify(tensors, Path(task.reference))
    say(json.dumps(facts))


def main(arm: str) -> None:
    """Import what an arm needs, then carry out every task that comes, each in a process forked from this one."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # some libraries print

    def say(line: str) -> None:
        print(line, file=answers, flush=True)

    try:
        module = import_module(f".{arm}_loader", __package__)
    except Exception as error:
        say(failure(error))
        return
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if not child:
            try:
                one(module, Task(**json.loads(line)), say)
            except BaseException as error:
                say(failure(error))
            finally:
                os._exit(0)  # some libraries take seconds to leave
        _, status = os.waitpid(child, 0)
        if status:
            say(json.dumps({"error": f"the process ended with status {status}"}))


def failure(error: BaseException) -> str:
    """A line that says what went wrong."""
    words = f"{type(error).__name__}: {error}".splitlines()
    return json.dumps({"error": words[-1]})


if __name__ == "__main__":
    main(sys.argv[1])
