"""What makes loads fast must not make them wrong: batches, the page cache."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import torch

import jupyter_hyperpod as hp
from jupyter_hyperpod.loader.read.http_connection import BATCH_BYTES
from jupyter_hyperpod.loader.read.local import FileSource, _map_ahead
from jupyter_hyperpod.loader.read.progress import LoadProgress
from jupyter_hyperpod.loader.read.source import Counters, Options
from tests.loader.models import assert_same, encoded
from tests.loader.ranges import serving
from tests.support.faulty_proxy import FaultProxy, Faults

STATE = {"layers.0.weight": torch.arange(BATCH_BYTES, dtype=torch.int32), "norm": torch.ones(8)}


def test_bytes_that_come_slower_than_a_batch_a_timeout_are_no_failure() -> None:
    told: list[LoadProgress] = []
    state = {"weight": torch.arange(BATCH_BYTES * 5 // 16, dtype=torch.int32)}  # a batch and a quarter
    with serving({"/model.safetensors": encoded(state)}) as server:
        _, _, port = server.url.rpartition(":")
        with FaultProxy(("127.0.0.1", int(port)), Faults(bytes_per_s=BATCH_BYTES / 4)) as proxy:
            url = f"http://127.0.0.1:{proxy.port}/model.safetensors"
            found = hp.load_model(url, options=Options(timeout_s=2.0), connections=1, progress=told.append)
    assert_same(found, state)
    assert told[-1].done and told[-1].retries == 0


def test_a_file_is_read_only_where_it_is_not_in_the_page_cache(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(encoded(STATE))
    told: list[LoadProgress] = []
    assert_same(hp.load_model(str(file), progress=told.append), STATE)
    assert told[-1].done
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    assert_same(hp.load_model(str(file), progress=told.append), STATE)
    assert told[-1].done and told[-1].first_layer_s is not None


def test_a_file_in_the_page_cache_is_mapped_ahead(tmp_path: Path, eventually: Callable[..., None]) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(encoded(STATE))
    found = hp.load_model(str(file))
    if len(os.sched_getaffinity(0)) > 1:
        eventually(lambda: resident_bytes(file) >= file.stat().st_size)
    eventually(lambda: not any(thread.name == "load-ahead" for thread in threading.enumerate()))
    assert_same(found, STATE)
    del found
    gc.collect()
    assert not resident_bytes(file), "the file stays mapped as long as its tensors"


def test_mapping_ahead_ends_quietly_where_nobody_needs_it_or_the_file_has_shrunk(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(encoded(STATE))
    source = FileSource(str(file), Counters())
    mapping = source.map()
    assert mapping is not None
    os.truncate(file, 4096)
    wanted = [(weakref.ref(mapping.bytes), mapping.bytes.size)]
    _map_ahead(wanted)
    del mapping
    gc.collect()
    assert wanted[0][0]() is None
    _map_ahead(wanted)


def resident_bytes(file: Path) -> int:
    """How much of a file is mapped by this process and has its pages there."""
    blocks = Path("/proc/self/smaps").read_text().split(str(file))[1:]
    return sum(int(line.split()[1]) * 1024 for block in blocks for line in block.splitlines()[1:5] if "Rss:" in line)
