"""The order of samples: words for it, samplers of torch, and what a DataLoader says."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch.utils import data as torch_data

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import SpecError, TrainingError
from jupyter_hyperpod.runtime.data.given import given, order_of
from jupyter_hyperpod.runtime.data.order import Lanes, mix, permute
from jupyter_hyperpod.runtime.data.sampled import Sampled

SAMPLES = [torch.tensor([float(index)]) for index in range(10)]


def taken(data: Any, steps: int = 5, micro_batch: int = 2, **settings: Any) -> list[list[int]]:
    """The samples of each micro-batch, step after step, with two micro-batches per step."""
    model = torch.nn.Linear(1, 1)
    seen: list[list[int]] = []

    def loss(batch: torch.Tensor) -> torch.Tensor:
        seen.append([int(value) for value in batch.flatten().tolist()])
        return model(batch.reshape(-1, 1)).mean()  # type: ignore[no-any-return]

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hp.Session(
        model, optimizer, data, global_batch=2 * micro_batch, micro_batch=micro_batch, audit=None, **settings
    ) as session:
        for step in session.steps(steps):
            step.run(loss)
    return seen[:2] + seen[3:]  # one micro-batch of the first step runs once more


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


def test_sequential() -> None:
    assert flat(taken(SAMPLES, order="sequential")) == [*range(10), *range(10)]
    loader = torch_data.DataLoader(SAMPLES, batch_size=4)  # type: ignore[arg-type]
    assert flat(taken(loader)) == [*range(10), *range(10)]
    loader = torch_data.DataLoader(SAMPLES, batch_size=4, drop_last=True)  # type: ignore[arg-type]
    assert flat(taken(loader)) == [*range(8), *range(8), *range(4)]


def test_lanes_are_those_of_batchify() -> None:
    """PyTorch's language model example: ``data.view(batch, -1).t()``, whose row is one step."""
    columns = torch.arange(45)[:44].view(4, 11).t().tolist()
    order = Lanes(45, 4)
    rows = [[order.at(step * 4 + lane) for lane in range(4)] for step in range(11)]
    assert rows == columns and order.at(44) == 0
    assert taken(SAMPLES, steps=2, micro_batch=1, order="lanes") == [[0], [5], [1], [6]]
    with pytest.raises(SpecError, match="has 10 samples; expected at least one for each of the 12"):
        taken(SAMPLES, micro_batch=6, order="lanes")


def test_a_loader_that_shuffles_takes_each_sample_once_per_epoch() -> None:
    pad = torch.nn.utils.rnn.pad_sequence
    loader = torch_data.DataLoader(SAMPLES, batch_size=2, shuffle=True, collate_fn=pad)  # type: ignore[arg-type]
    assert taken(loader) == taken(SAMPLES) == taken(SAMPLES, order="shuffled")
    dropping = torch_data.DataLoader(SAMPLES, batch_size=2, shuffle=True, drop_last=True)  # type: ignore[arg-type]
    found = flat(taken(dropping, steps=4))
    assert len(set(found[:8])) == len(set(found[8:])) == 8
    with pytest.raises(SpecError, match="10 samples, fewer than global_batch=12"):
        taken(dropping, micro_batch=6)


class Own(torch_data.Sampler[int]):
    """Draws from every kind of generator, those of its own included, and follows the epoch."""

    def __init__(self, counted: bool = True) -> None:
        self.torch, self.python, self.numpy = torch.Generator(), random.Random(), numpy.random.default_rng()
        self.epoch = 0
        if counted:
            self.__class__ = Counted

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        yield self.epoch
        yield from torch.randint(10, (3,)).tolist()
        yield from torch.randint(10, (3,), generator=self.torch).tolist()
        yield from (random.randrange(10), self.python.randrange(10))
        yield from (numpy.random.randint(10), int(self.numpy.integers(10)))


class Counted(Own):
    def __len__(self) -> int:
        return 11


@pytest.mark.parametrize("counted", [True, False])
def test_a_sampler_is_drawn_for_each_epoch_with_seeded_generators(counted: bool) -> None:
    one, other = (Sampled(Own(counted), 3, 10, 4) for _ in range(2))
    forward = [one.at(position) for position in range(33)]
    assert forward[0::11] == [0, 1, 2]
    assert len({tuple(forward[begin + 1 : begin + 11]) for begin in (0, 11, 22)}) == 3
    assert [other.at(position) for position in reversed(range(33))] == forward[::-1]
    assert [Sampled(Own(counted), 4, 10, 4).at(position) for position in range(11)] != forward[:11]


class Growing(torch_data.Sampler[int]):
    """A curriculum: three samples more in each epoch. ``wrong``: it gives one fewer than it says."""

    def __init__(self, wrong: bool = False) -> None:
        self.epoch, self.wrong, self.more = 0, wrong, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return min(10, 4 + 3 * self.epoch + self.more)

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(10)[: len(self) - self.wrong * self.epoch].tolist())


def test_an_epoch_may_have_another_length() -> None:
    one, other = (Sampled(Growing(), 3, 10, 4) for _ in range(2))
    forward = [one.at(position) for position in range(31)]
    epochs = [forward[begin:end] for begin, end in ((0, 4), (4, 11), (11, 21), (21, 31))]
    assert all(len(set(epoch)) == len(epoch) for epoch in epochs)
    assert [other.at(position) for position in reversed(range(31))] == forward[::-1]
    late = Sampled(Growing(), 3, 10, 4)
    late.load_state_dict(one.state_dict())  # a member that joins
    assert [late.at(position) for position in range(18, 31)] == forward[18:]
    changed = Sampled(grown := Growing(), 3, 10, 4)
    grown.more = 1  # by the cell, as a member that comes later has it
    changed.load_state_dict(one.state_dict())
    with pytest.raises(TrainingError, match="another order for epoch 0 than it gave before"):
        changed.at(12)
    with pytest.raises(SpecError, match="has a length of 7 and gives 6 samples in epoch 1; expected as many"):
        Sampled(Growing(wrong=True), 3, 10, 4).at(4)


def test_drawing_leaves_the_generators_alone() -> None:
    sampler = Own()
    before = sampler.torch.get_state(), sampler.python.getstate(), sampler.numpy.bit_generator.state
    outside = torch.random.get_rng_state(), random.getstate()
    Sampled(sampler, 3, 10, 4).at(5)
    assert torch.equal(before[0], sampler.torch.get_state()) and before[1] == sampler.python.getstate()
    assert before[2] == sampler.numpy.bit_generator.state
    assert torch.equal(outside[0], torch.random.get_rng_state()) and outside[1] == random.getstate()


def test_the_samplers_of_torch() -> None:
    weights = [0.0] * 9 + [1.0]
    weighted = torch_data.WeightedRandomSampler(weights, 6)
    assert set(flat(taken(SAMPLES, order=weighted))) == {9}
    loader = torch_data.DataLoader(SAMPLES, batch_size=2, sampler=weighted)  # type: ignore[arg-type]
    assert set(flat(taken(loader))) == {9}
    subset = flat(taken(SAMPLES, order=torch_data.SubsetRandomSampler([2, 4, 6, 8])))
    assert all(sorted(subset[begin : begin + 4]) == [2, 4, 6, 8] for begin in range(0, 20, 4))
    inside = torch_data.BatchSampler(torch_data.SequentialSampler(SAMPLES), 3, drop_last=True)
    assert flat(taken(torch_data.DataLoader(SAMPLES, batch_sampler=inside))) == [*range(8), *range(8), *range(4)]  # type: ignore[arg-type]


def test_items_that_are_batches() -> None:
    loader = torch_data.DataLoader(SAMPLES, batch_size=None)  # type: ignore[arg-type]
    assert taken(loader, micro_batch=1, steps=2) == [[0], [1], [2], [3]]
    with pytest.raises(SpecError, match="items are batches already, and micro_batch is 2; expected micro_batch=1"):
        taken(loader)


class Turning(torch_data.Sampler[int]):
    turns = 0

    def __iter__(self) -> Iterator[int]:
        self.turns += 1
        yield from ((index + self.turns) % 10 for index in range(10))


class Pairs(torch_data.BatchSampler):
    pass


def endless() -> Any:
    class Endless(torch_data.Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            while True:
                yield 0

    return Endless()


class Short(Turning):
    def __iter__(self) -> Iterator[int]:
        yield 1

    def __len__(self) -> int:
        return 4


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("backwards", "order is 'backwards'; expected shuffled, sequential, lanes, or a sampler"),
        (7, "order is 7; expected"),
        (Turning(), "sampler Turning gives another order when it is asked for the same epoch again"),
        (Short(), "a length of 4 and gives 1 samples"),
        (endless(), "Endless has no length and gave 1000000 samples"),
        ([3, 12], "gives sample 12; the data has 10"),
        (torch_data.BatchSampler(torch_data.SequentialSampler(SAMPLES), 2, False), "no single whole numbers"),
        (torch_data.DistributedSampler(SAMPLES, 2, 0), "a DistributedSampler, which gives each process"),  # type: ignore[arg-type]
    ],
    ids=lambda value: type(value).__name__,
)
def test_orders_that_nobody_could_repeat_are_refused(order: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        taken(SAMPLES, order=order)


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (lambda: torch_data.DataLoader(SAMPLES, batch_sampler=Pairs(range(10), 2, False)), {}, "sampler Pairs, which"),  # type: ignore[arg-type]
        (lambda: torch_data.DataLoader(SAMPLES), {"order": "lanes"}, r"its own \(sequential\), and order=lanes"),  # type: ignore[arg-type]
    ],
)
def test_loaders_that_are_refused(make: Callable[[], Any], settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        taken(make(), **settings)


def test_a_sampler_that_was_changed_in_an_epoch_is_told_to_newcomers() -> None:
    weights = torch.ones(10)
    order = Sampled(torch_data.WeightedRandomSampler(weights, 40), 3, 10, 4)  # type: ignore[arg-type]
    order.begin(0)
    assert order.is_fixed(9) and not order.is_fixed(10)
    state = order.state_dict()
    same = Sampled(torch_data.WeightedRandomSampler([1.0] * 10, 40), 3, 10, 4)
    same.load_state_dict(state)
    assert same.at(7) == order.at(7)
    other = Sampled(torch_data.WeightedRandomSampler([1.0] * 9 + [2.0], 40), 3, 10, 4)
    other.load_state_dict(state)
    with pytest.raises(TrainingError, match="another order for epoch 0 than it gave before, or to the other members"):
        other.begin(0)


def test_a_collate_function_of_a_loader_fits_what_the_usual_one_does_not() -> None:
    rows = [{"ids": [1] * (index + 1)} for index in range(4)]
    found = given(torch_data.DataLoader(rows, collate_fn=lambda chosen: [len(row["ids"]) for row in chosen]))  # type: ignore[arg-type]
    assert found.order == "sequential" and found.collate is not None
    assert found.collate([rows[2], rows[0]]) == [3, 1]
    assert order_of(given(rows), 4, 3, 2).at(5) == permute(1, 4, mix(3, 1))


def test_samples_that_the_cell_appends_are_taken() -> None:
    """As a memory of what an agent has seen; with workers, too."""
    found = []
    for workers in (0, 2):
        memory = list(SAMPLES[:4])
        model = torch.nn.Linear(1, 1)
        seen: list[float] = []

        def loss(batch: torch.Tensor, model: Any = model, seen: list[float] = seen) -> torch.Tensor:
            seen.extend(batch.flatten().tolist())
            return model(batch).mean()  # type: ignore[no-any-return]

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        settings: dict[str, Any] = {"global_batch": 4, "micro_batch": 2, "order": "sequential", "workers": workers}
        with hp.Session(model, optimizer, memory, audit=None, **settings) as session:
            for step in session.steps(4):
                step.run(loss)
                memory.append(torch.tensor([100.0 + step.number]))
        found.append(seen)
    assert found[0] == found[1] and max(found[0]) == 103.0
