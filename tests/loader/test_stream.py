"""The engine: a chunk that takes too long is asked for again; what the loser left in shared memory is looked at."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch

from jupyter_hyperpod.core.errors import LoaderError
from jupyter_hyperpod.loader.header import Header, TensorEntry
from jupyter_hyperpod.loader.read import pace
from jupyter_hyperpod.loader.read.http_connection import Cancel, Cancelled
from jupyter_hyperpod.loader.read.landing import HostLanding
from jupyter_hyperpod.loader.read.model_files import closing_model, open_model
from jupyter_hyperpod.loader.read.plan import Chunk, LoadPlan, plan
from jupyter_hyperpod.loader.read.progress import Meter
from jupyter_hyperpod.loader.read.source import Counters
from jupyter_hyperpod.loader.read.sources import Opener
from jupyter_hyperpod.loader.read.stream import Outcome, Stream
from jupyter_hyperpod.loader.read.verify import verifier
from jupyter_hyperpod.loader.write.sharding import write_manifest
from tests.loader.models import assert_same, decoder, encoded
from tests.loader.ranges import serving

CHUNK = 4096
RIGHT, WRONG = 1, 2
LIMIT_S = 30.0


def two_chunks() -> LoadPlan:
    """A file of one tensor."""
    entry = TensorEntry("weight", "U8", (2 * CHUNK,), 0, 2 * CHUNK)
    return plan([Header((entry,), {}, 256)], chunk_bytes=CHUNK)


class Straggler:
    """Memory for two chunks. The first reader of the last one stands still, and scribbles when it is ended."""

    def __init__(self) -> None:
        self.memory = bytearray(2 * CHUNK)
        self.settled: list[Chunk] = []
        self._lock = threading.Lock()
        self._asked = 0

    def fetch(self, chunk: Chunk, cancel: Cancel) -> Outcome:
        """Bring a chunk."""
        with self._lock:
            self._asked += chunk.place > 0
            stands_still = chunk.place > 0 and self._asked == 1
        if stands_still:
            try:
                cancel.sleep(LIMIT_S)
            except Cancelled:
                self._write(chunk, WRONG)
                raise
        self._write(chunk, RIGHT)
        return "read"

    def reverify(self, chunk: Chunk) -> None:
        """Mend what the loser wrote."""
        assert self.memory[chunk.place] == WRONG, "asked before the loser had ended"
        self._write(chunk, RIGHT)
        self.settled.append(chunk)

    def _write(self, chunk: Chunk, what: int) -> None:
        self.memory[chunk.place : chunk.place + chunk.bytes] = bytes([what]) * chunk.bytes


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again soon."""
    monkeypatch.setattr(pace, "HEDGE_FLOOR_S", 0.02)


def test_what_the_loser_left_is_settled_before_the_load_returns() -> None:
    load_plan, straggler = two_chunks(), Straggler()
    meter = Meter(load_plan, time.monotonic())
    Stream(load_plan.chunks, straggler.fetch, meter, Counters(), 2, reverify=straggler.reverify).run()
    assert [chunk.place for chunk in straggler.settled] == [CHUNK]
    assert straggler.memory == bytes([RIGHT]) * 2 * CHUNK


def test_what_cannot_be_settled_ends_the_load() -> None:
    load_plan, straggler = two_chunks(), Straggler()

    def reverify(chunk: Chunk) -> None:
        raise LoaderError("model", f"damage at {chunk.place}", "none")

    stream = Stream(
        load_plan.chunks, straggler.fetch, Meter(load_plan, time.monotonic()), Counters(), 2, reverify=reverify
    )
    with pytest.raises(LoaderError, match=f"damage at {CHUNK}"):
        stream.run()


def test_memory_is_mended_where_it_is_not_what_the_manifest_says(tmp_path: Path) -> None:
    state = decoder()
    content = encoded(state)
    (tmp_path / "model.safetensors").write_bytes(content)
    manifest = write_manifest(tmp_path / "model.safetensors")
    with serving({"/model.safetensors": content}) as server, closing(Opener()) as opener:
        url = f"{server.url}/model.safetensors"
        with closing_model(open_model(url, opener)) as files:
            load_plan = plan(files.headers)
            checks = verifier(files, load_plan, opener, url, manifest)
            with closing(HostLanding(files, load_plan, checks)) as landing:
                for chunk in load_plan.chunks:
                    landing.fetch(chunk, Cancel())
                found: dict[str, torch.Tensor] = {one.name: landing.tensor(one) for one in load_plan.tensors}
                for tensor in found.values():
                    tensor.zero_()
                for chunk in load_plan.chunks:
                    landing.reverify(chunk)
                assert_same(found, state)
