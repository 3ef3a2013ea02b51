"""Streams: every member reads the same samples, from a state or from the beginning, and a newcomer reads on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import data as torch_data

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import SpecError, TrainingError
from jupyter_hyperpod.runtime.data.stream import SampleStream, is_stream
from tests.runtime.conftest import Run, Submit

CPU = torch.device("cpu")


class Shuffling(torch_data.IterableDataset[float]):
    """Draws its order and its noise, each epoch anew; its length is no multiple of a block."""

    def __iter__(self) -> Iterator[float]:
        order = torch.randperm(11).tolist()
        for index in order:
            yield index + random.random() / 2


class Epochs(Shuffling):
    begun = 0
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[float]:
        self.begun += 1
        for value in super().__iter__():
            yield value + 100 * self.epoch


class Stateful(torch_data.IterableDataset[float]):
    """Gives what follows its state; the noise is drawn."""

    def __init__(self, forgets: bool = False) -> None:
        self.at, self.read, self.forgets = 0, 0, forgets

    def __iter__(self) -> Iterator[float]:
        while self.at < 11:
            self.at += 1
            self.read += 1
            yield self.at + random.random() / 2
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": 0 if self.forgets else self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Buffered(Stateful):
    """Its state is exact in the first 20 samples, as that of a shuffle buffer while it is first filled."""

    total = 0

    def __iter__(self) -> Iterator[float]:
        for value in super().__iter__():
            self.total += 1
            yield value

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at if self.total < 20 else 0, "total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.total = state["at"], state["total"]


class Counting(torch_data.IterableDataset[float]):
    """Is told how many samples were taken, as a StreamingDataset of MosaicML is; an epoch is another order."""

    def __init__(self) -> None:
        self.epoch, self.at = -1, 0

    def __iter__(self) -> Iterator[float]:
        self.epoch, at = (self.epoch if self.at else self.epoch + 1), self.at
        self.at = 0
        generator = torch.Generator().manual_seed(self.epoch)
        for index in torch.randperm(11, generator=generator).tolist()[at:]:
            yield index + random.random() / 2

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        assert from_beginning
        return {"epoch": self.epoch, "at": num_samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


def stream(source: Any, **more: Any) -> SampleStream:
    return SampleStream(source, 3, 4, CPU, **more)


@pytest.mark.parametrize("make", [Shuffling, Epochs, Stateful, lambda: Stateful(forgets=True), Buffered, Counting])
@pytest.mark.parametrize("steps", [1, 2, 3, 6, 9, 11])
def test_a_newcomer_reads_on(make: Any, steps: int) -> None:
    one = stream(make())
    seen = [one.block() for _ in range(steps)]
    values = [value for block in seen for value in block]
    assert len({int(value) for value in values[:11]}) == min(11, 4 * steps)
    place = one.state_dict()
    expected = [one.block() for _ in range(5)]
    other, third = stream(make()), stream(make())
    other.load_state_dict(place)
    third.load_state_dict(other.state_dict())  # of one that has not read on yet
    assert [third.block() for _ in range(5)] == [other.block() for _ in range(5)] == expected
    assert third.mark == one.mark


def test_how_a_newcomer_comes_to_its_place() -> None:
    for source, exact, read_again in (
        (Stateful(), True, 0),
        (Stateful(forgets=True), False, 24),
        (Counting(), True, 0),
        (Buffered(), True, 24),
        (Shuffling(), False, 24),
        (Epochs(), False, 2),
    ):
        one, other = stream(source), stream(type(source)())
        for _ in range(6):
            one.block()
        assert one.exact == exact, source
        place = one.state_dict()
        other.load_state_dict(place)
        other.block()
        assert other.read_again == read_again, source


def test_a_state_that_stops_to_be_exact() -> None:
    one = stream(Buffered())
    seen = []
    for _ in range(18):
        one.block()
        seen.append(one.exact)
    assert seen[4] is True and seen[17] is False


def test_the_copy_that_proves_a_state_leaves_the_source_alone() -> None:
    source = Stateful()
    one = stream(source)
    for _ in range(2):
        one.block()
    assert one.exact and source.read == 8


class Unsteady(torch_data.IterableDataset[float]):
    def __iter__(self) -> Iterator[float]:
        yield from (random.SystemRandom().random() for _ in range(11))


def test_a_stream_that_differs_when_it_is_read_again() -> None:
    one, other = stream(Unsteady()), stream(Unsteady())
    one.block()
    other.load_state_dict(one.state_dict())
    with pytest.raises(TrainingError, match="gave other samples when it was read again"):
        other.block()


class Once:
    def __init__(self) -> None:
        self.values = iter(range(6))

    def __iter__(self) -> Iterator[int]:
        return self.values


def test_a_stream_that_ends() -> None:
    one = stream(Once())
    one.block()
    with pytest.raises(TrainingError, match="no samples in epoch 1, after 6 in all: it may be an iterator"):
        one.block()
    dropping = stream(Epochs(), drop_last=True)
    assert [int(dropping.block()[0] // 100) for _ in range(5)] == [0, 0, 1, 1, 2]


def test_what_is_a_stream() -> None:
    assert is_stream(Shuffling()) and is_stream(Once())
    for other in ([1], {"a": 1}, {1, 2}, "text", iter([1]), (x for x in range(3)), torch.ones(3), 5, hp.State()):
        assert not is_stream(other), other


def test_a_stream_that_divides_itself_among_processes_is_refused() -> None:
    kind = type("StreamingDataset", (Stateful,), {"__module__": "streaming.base.dataset"})
    with pytest.raises(SpecError, match="StreamingDataset of MosaicML.*write data = streaming.LocalDataset"):
        losses(kind())


def losses(data: Any, micro_batch: int = 2, **more: Any) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with hp.Session(model, optimizer, data, global_batch=2 * micro_batch, micro_batch=micro_batch, **more) as session:
        square = lambda batch: model(torch.as_tensor(batch).reshape(-1, 1).float()).pow(2).mean()  # noqa: E731
        return [step.run(square) for step in session.steps(6)]


def test_a_stream_trains_and_a_loader_of_it_alike() -> None:
    alone = losses(Shuffling())
    assert losses(torch_data.DataLoader(Shuffling(), batch_size=7)) == alone != losses(Shuffling(), seed=1)
    whole = torch_data.DataLoader(Shuffling(), batch_size=None)
    assert len(losses(whole, micro_batch=1)) == 6
    with pytest.raises(SpecError, match="micro_batch is 2; expected micro_batch=1"):
        losses(whole)
    with pytest.raises(SpecError, match="the data is a stream, which has the order"):
        losses(Shuffling(), order="sequential")
    with pytest.warns(RuntimeWarning, match="a stream, which each step reads itself: the 2 workers of the loader"):
        losses(Shuffling(), workers=2)


CELL = """
import os, random, time, torch, jupyter_hyperpod as hp
from torch import nn

class Plain(torch.utils.data.IterableDataset):
    def __iter__(self):
        assert torch.utils.data.get_worker_info() is None
        for index in torch.randperm(70).tolist():
            yield torch.full((8,), index / 50) + torch.randn(8) * random.random(), torch.rand(1)

class Stateful(Plain):
    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < 70:
            self.at += 1
            yield torch.full((8,), self.at / 50) + torch.randn(8) * random.random(), torch.rand(1)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]

model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

def loss_fn(batch):
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
    return nn.functional.mse_loss(model(batch[0]), batch[1])

with hp.Session(model, optimizer, KIND(), global_batch=16, micro_batch=2, seed=3, audit=1.0) as session:
    for step in session.steps(24):
        loss = step.run(loss_fn)
        session.log(loss=loss)
"""


@pytest.mark.parametrize("kind", ["Plain", "Stateful"])
def test_streams_in_a_job_whose_members_are_all_lost_once(job: Submit, kind: str) -> None:
    source = CELL.replace("KIND", kind)
    undisturbed = job(source, nodes=1)
    undisturbed.finish()
    run: Run = job(source, env={"PAUSE_S": "0.02"})
    for step in (3, 8, 13):
        run.until_step(step)
        run.kill(0)
        run.until_world(3)
    run.finish()
    run.same_as(undisturbed)


def test_members_that_read_other_samples_are_told_so(job: Submit) -> None:
    source = CELL.replace("KIND", "Own").replace(
        "model = nn.Seq",
        "class Own(Plain):\n"
        "    def __iter__(self):\n"
        "        for number, sample in enumerate(super().__iter__()):\n"
        "            yield sample if number < 32 else (sample[0] + os.getpid(), sample[1])\n\n"
        "model = nn.Seq",
        1,
    )
    reason = str(job(source).finish("failed")["reason"])
    assert "read other samples for step 3 than rank 0" in reason
