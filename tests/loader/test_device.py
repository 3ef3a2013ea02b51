"""Chunks that land on a device: on the CPU as it is, and on devices whose copies come as late as CUDA allows."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import LoaderError
from jupyter_hyperpod.loader.read import device as module
from jupyter_hyperpod.loader.read.device import DeviceLanding
from jupyter_hyperpod.loader.read.model_files import Files, closing_model, open_model
from jupyter_hyperpod.loader.read.plan import plan
from jupyter_hyperpod.loader.read.progress import Meter
from jupyter_hyperpod.loader.read.sources import Opener
from jupyter_hyperpod.loader.read.stream import Stream
from tests.loader.models import assert_same, decoder, encoded

STATE = decoder()
CHUNK_BYTES = 4096  # so that a file of 400 KB goes through buffers that are a hundredth of it
THREADS = 4

Opened = Callable[[Files], object]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A real file."""
    found = tmp_path / "model.safetensors"
    found.write_bytes(encoded(STATE))
    return found


def load(
    path: Path,
    device: str,
    tp: tuple[int, int] = (0, 1),
    opened: Opened = lambda files: None,
    landed: list[weakref.ref[DeviceLanding]] | None = None,
) -> dict[str, torch.Tensor]:
    """As `load_model` does, in small chunks; ``opened`` is called before the first of them."""
    opener = Opener()
    with closing(opener), closing_model(open_model(str(path), opener)) as files:
        load_plan = plan(files.headers, tp, chunk_bytes=CHUNK_BYTES)
        assert max(chunk.bytes for chunk in load_plan.chunks) <= CHUNK_BYTES < load_plan.bytes / 10
        landing = DeviceLanding(files, load_plan, torch.device(device), None)
        if landed is not None:
            landed.append(weakref.ref(landing))
        opened(files)
        meter = Meter(load_plan, time.monotonic())
        with closing(landing):
            Stream(load_plan.chunks, landing.fetch, meter, opener.counters, THREADS).run()
            return {tensor.name: landing.tensor(tensor) for tensor in load_plan.tensors}


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("load-")]


# -- a device that copies late -----------------------------------------------------------------------------------


class LateStream:
    """Work in its order, which is done when somebody waits for it, and not a moment before."""

    def __init__(self, at: int) -> None:
        self.at = at
        self._work: list[Callable[[], object]] = []
        self._done = 0
        self._lock = threading.RLock()

    @property
    def left(self) -> int:
        """How much has not been done."""
        return len(self._work) - self._done

    def add(self, work: Callable[[], object]) -> int:
        """Ask for something; returns what to wait for."""
        self._work.append(work)
        return len(self._work)

    def wait_event(self, event: LateEvent) -> None:
        """See torch.cuda.Stream."""
        self.add(event.synchronize)

    def synchronize(self, until: int | None = None) -> None:
        """See torch.cuda.Stream."""
        with self._lock:
            while self._done < (len(self._work) if until is None else until):
                self._done += 1
                self._work[self._done - 1]()


class LateEvent:
    """A moment of a stream."""

    def record(self, stream: LateStream) -> None:
        """See torch.cuda.Event."""
        self._stream, self._until = stream, stream.add(lambda: None)

    def synchronize(self) -> None:
        """See torch.cuda.Event."""
        self._stream.synchronize(self._until)


class LateBlock(torch.Tensor):
    """Memory of a device: what is copied there is read from its source when that is done."""

    late: Late

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> LateBlock:
        """See torch.Tensor."""
        there = self.as_subclass(torch.Tensor)
        self.late.current_stream().add(lambda: there.copy_(source))
        return self


class Late:
    """A CUDA without a GPU, in the place of torch.

    Like the real one, every thread begins with device 0, and memory that is new may still be written to by what its
    stream was asked before.
    """

    device, uint8, Event = torch.device, torch.uint8, LateEvent

    def __init__(self) -> None:
        self.streams: list[LateStream] = []
        self.pinned: list[int] = []
        self._own = {at: LateStream(at) for at in range(2)}
        self._thread = threading.local()
        chosen = SimpleNamespace(device=self.chosen, stream=self.stream, Stream=self.new_stream, Event=LateEvent)
        chosen.current_device, chosen.current_stream = self.current_device, self.current_stream
        self.cuda = chosen

    @contextmanager
    def chosen(self, device: torch.device) -> Iterator[None]:
        """torch.cuda.device"""
        before, self._thread.device = self.current_device(), device.index
        yield
        self._thread.device = before

    @contextmanager
    def stream(self, stream: LateStream) -> Iterator[None]:
        """torch.cuda.stream"""
        self._thread.stream = stream
        yield
        self._thread.stream = None

    def current_device(self) -> int:
        """torch.cuda.current_device"""
        found: int = getattr(self._thread, "device", 0)
        return found

    def current_stream(self, device: torch.device | None = None) -> LateStream:
        """torch.cuda.current_stream"""
        at = self.current_device() if device is None or device == torch.device("cuda") else device.index
        return getattr(self._thread, "stream", None) or self._own[at]

    def new_stream(self, device: torch.device) -> LateStream:
        """torch.cuda.Stream"""
        found = LateStream(self.current_device() if device == torch.device("cuda") else device.index)
        self.streams.append(found)
        return found

    def empty(
        self, length: int, dtype: torch.dtype, device: torch.device | None = None, pin_memory: bool = False
    ) -> torch.Tensor:
        """torch.empty"""
        found = torch.empty(length, dtype=dtype)
        if device is None:
            self.pinned.append(self.current_device())
        if device is None or device.type == "cpu":
            return found
        self.current_stream(device).add(lambda: found.fill_(0xEE))
        return found.as_subclass(LateBlock)

    def looked_at(self, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What the caller sees when all that it asked before is done, too."""
        for stream in self._own.values():
            stream.synchronize()
        return {name: tensor.as_subclass(torch.Tensor) for name, tensor in found.items()}


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Late:
    """Devices that copy late are the loader's."""
    found = Late()
    monkeypatch.setattr(module, "torch", found)
    monkeypatch.setattr(LateBlock, "late", found, raising=False)
    return found


# -- landing -----------------------------------------------------------------------------------------------------


def test_a_file_lands_as_it_is_through_small_buffers_of_several_threads(path: Path) -> None:
    assert_same(load(path, "cpu"), STATE)
    assert threads() == []


def test_a_rank_s_part_lands(path: Path) -> None:
    parts = [load(path, "cpu", (rank, 3)) for rank in range(3)]
    down = [name for name in STATE if name.endswith("down_proj.weight")]
    assert_same({name: torch.cat([part[name] for part in parts], 1) for name in down}, {n: STATE[n] for n in down})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_tensors_that_do_not_begin_where_their_type_wants_it(path: Path, late: Late, device: str) -> None:
    """Such a tensor is copied once more, when all of it is there."""
    state = {"a": torch.arange(5, dtype=torch.uint8), "b": torch.arange(20_000.0)}
    header = {
        "a": {"dtype": "U8", "shape": [5], "data_offsets": [0, 5]},
        "b": {"dtype": "F32", "shape": [20_000], "data_offsets": [5, 80_005]},
    }
    text = json.dumps(header).encode()
    parts = [len(text).to_bytes(8, "little"), text, *(tensor.numpy().tobytes() for tensor in state.values())]
    path.write_bytes(b"".join(parts))
    assert_same(late.looked_at(load(path, device)), state)


def test_another_device_than_the_cpu_is_landed_on(path: Path) -> None:
    found = hp.load_model(str(path), device="meta")
    assert {name: (tensor.device.type, tensor.shape) for name, tensor in found.items()} == {
        name: ("meta", tensor.shape) for name, tensor in STATE.items()
    }


def truncate(files: Files) -> None:
    os.truncate(files.sources[0].name, files.sources[0].size // 2)


def test_an_error_in_the_middle_leaves_nothing(path: Path) -> None:
    landed: list[weakref.ref[DeviceLanding]] = []
    with pytest.raises(LoaderError, match="truncated while it was read"):
        load(path, "cpu", opened=truncate, landed=landed)
    assert threads() == []
    gc.collect()
    assert landed[0]() is None


def test_copies_wait_for_what_the_memory_was_used_for_before(path: Path, late: Late) -> None:
    assert_same(late.looked_at(load(path, "cuda")), STATE)
    assert {stream.at for stream in late.streams} == {0}


def test_the_device_is_that_of_the_caller_in_every_thread(path: Path, late: Late) -> None:
    with late.chosen(torch.device("cuda", 1)):
        assert_same(late.looked_at(load(path, "cuda")), STATE)
    assert {stream.at for stream in late.streams} == set(late.pinned) == {1}


def test_after_an_error_nothing_is_copied_any_more(path: Path, late: Late) -> None:
    with pytest.raises(LoaderError, match="truncated while it was read"):
        load(path, "cuda", opened=truncate)
    assert late.streams and [stream.left for stream in late.streams] == [0] * len(late.streams)
    assert threads() == []
