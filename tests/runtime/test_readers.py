"""Processes that read ahead: the same bits as none, whatever happens to them, and none is left."""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils import data as torch_data

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import TrainingError
from jupyter_hyperpod.runtime.data import transport
from jupyter_hyperpod.runtime.data.given import WorkerSettings
from jupyter_hyperpod.runtime.data.indexed import indexed
from jupyter_hyperpod.runtime.data.readers import Readers
from jupyter_hyperpod.runtime.data.reading import Reading
from jupyter_hyperpod.system.processes import start_ticks
from tests.runtime.conftest import Run, Submit

Patience = Callable[..., None]
MAIN = os.getpid()
level = 1.0


class Augmented(torch_data.Dataset[Any]):
    """Draws from every global generator, and reads a variable of its file."""

    def __init__(self) -> None:
        self.shift = 0.0

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Any]:
        noise = torch.rand(4) * random.random() + float(numpy.random.rand()) * level + self.shift
        return {"x": noise + index, "name": f"sample {index}"}


def losses(data: Any, between: Callable[[int, Any], object] = lambda step, session: None, **more: Any) -> list[str]:
    """The losses of some steps; `between` gets each step's number and the session."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    found = []
    with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2, **more) as session:
        for step in session.steps(8):
            loss = step.run(lambda batch: (model(batch["x"]) - len(batch["name"][0])).pow(2).mean())
            found.append(loss.hex())
            between(step.number, session)
    return found


def readers_of(session: Any) -> Any:
    return session._batches._readers


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return losses(Augmented())


@pytest.fixture(autouse=True)
def same_level() -> Iterator[None]:
    global level
    yield
    level = 1.0


def test_workers_give_the_same_bits_as_none_and_end(expected: list[str]) -> None:
    seen: list[int] = []

    def look(step: int, session: Any) -> None:
        readers = readers_of(session)
        seen.extend(reader.pid for reader in readers._readers)
        assert readers.ahead + sum(len(reader.sent) for reader in readers._readers) <= readers.depth == 4
        assert session.data_stalls == readers.stalls

    assert losses(Augmented(), look, workers=2) == expected
    assert len(set(seen)) == 2 and not any(map(start_ticks, seen))
    loader = torch_data.DataLoader(Augmented(), batch_size=2, shuffle=True, num_workers=1, prefetch_factor=3)
    assert losses(loader, lambda step, session: seen.append(readers_of(session).depth)) == expected and seen[-1] == 3


def test_a_killed_worker_is_replaced(expected: list[str]) -> None:
    def kill(step: int, session: Any) -> None:
        if step in (2, 5):
            os.kill(readers_of(session)._readers[0].pid, signal.SIGKILL)
        assert readers_of(session).lost <= 2

    assert losses(Augmented(), kill, workers=2) == expected


def test_what_the_cell_changes_reaches_the_workers() -> None:
    data = Augmented()

    def change(step: int, session: Any) -> None:
        global level
        if step == 3:
            level = 0.5
        if step == 5:
            data.shift = 2.0

    alone = losses(data, change)
    global level
    level, data.shift = 1.0, 0.0
    assert losses(data, change, workers=2) == alone
    level, data.shift = 1.0, 0.0
    assert alone != losses(data)


class Broken(Augmented):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 7:
            raise LookupError("no such picture")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_reading_names_the_sample(workers: int) -> None:
    with pytest.raises(LookupError, match="no such picture") as caught:
        losses(Broken(), workers=workers)
    notes = " ".join(caught.value.__notes__)
    assert "sample 7 was read" in notes and "micro-batch" in notes and "of step" in notes
    assert any(entry.name == "__getitem__" for entry in caught.traceback)


class Ending(Augmented):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if os.getpid() != MAIN:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class OnlyHere(Augmented):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if os.getpid() != MAIN:
            raise LookupError("not in this process")
        return super().__getitem__(index)


class Attached(Augmented):
    def __getitem__(self, index: int) -> dict[str, Any]:
        weight = torch.ones(4, requires_grad=True)
        return {"x": weight * 2, "name": "attached"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (Ending(), r"3 workers that read the data ended by signal 9 over micro-batch \d of step 1, samples "),
        (OnlyHere(), r"(?s)a worker could not read the data for micro-batch .*LookupError: not in this process"),
        (Attached(), r"(?s)could not read .* the result of a differentiable function, .* tensor.detach\(\)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_workers_cannot_do_is_said(data: Any, words: str) -> None:
    with pytest.raises(TrainingError, match=words):
        losses(data, workers=2)


def test_the_function_with_which_a_loaders_workers_begin(tmp_path: Path) -> None:
    class Opened(Augmented):
        file: Any = None

        def __getitem__(self, index: int) -> dict[str, Any]:
            assert torch_data.get_worker_info() is None
            return super().__getitem__(index) | {"x": torch.full((4,), float(self.file))}

    def begin(number: int) -> None:
        info = torch_data.get_worker_info()
        assert info is not None and info.num_workers == 2
        info.dataset.file = 3  # type: ignore[attr-defined]
        (tmp_path / str(number)).touch()

    losses(torch_data.DataLoader(Opened(), num_workers=2, worker_init_fn=begin))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]

    def fail(number: int) -> None:
        raise OSError("no such server")

    with pytest.raises(TrainingError, match="(?s)could not read.*OSError: no such server"):
        losses(torch_data.DataLoader(Opened(), num_workers=2, worker_init_fn=fail))


def test_workers_that_begin_differently_and_read_differently_are_refused() -> None:
    """Which worker reads a sample changes with the members, so a run would be quietly different."""

    class Scaled(Augmented):
        scale = 1.0

        def __getitem__(self, index: int) -> dict[str, Any]:
            found = super().__getitem__(index)
            return found | {"x": found["x"] * self.scale}

    def begin(number: int) -> None:
        Scaled.scale = 2.0 + number

    with pytest.raises(TrainingError, match="two workers read micro-batch 0 of step 1, .* differently: worker_init_fn"):
        losses(torch_data.DataLoader(Scaled(), num_workers=2, worker_init_fn=begin))
    alike = losses(torch_data.DataLoader(Scaled(), num_workers=2, worker_init_fn=lambda number: begin(0)))
    assert alike == losses(torch_data.DataLoader(Scaled(), num_workers=1, worker_init_fn=begin))


def test_what_two_workers_have_read_before_it_is_due_is_read_once_more() -> None:
    """The members change in the first step, and once more: its step waited for ever."""
    first, second = Reading(0, 0, (0, 1), 1), Reading(0, 1, (2, 3), 2)
    readers = Readers(indexed(Augmented()), WorkerSettings(2, 2, lambda number: numpy.random.seed(number)))

    def collect() -> None:
        while any(reader.sent for reader in readers._readers):
            readers._collect(None)

    readers.expect([first, second])
    readers._due = [second]
    collect()
    readers.expect([first, second])
    collect()
    assert first in readers._ready
    readers.close()


def dropped() -> int:
    """The process of a worker whose session was never closed."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = hp.Session(model, optimizer, Augmented(), global_batch=4, micro_batch=2, workers=1)
    next(session.steps(1)).run(lambda batch: model(batch["x"]).mean())
    (reader,) = readers_of(session)._readers
    assert start_ticks(reader.pid)
    return int(reader.pid)


def test_a_session_that_is_dropped_ends_its_workers() -> None:
    pid = dropped()
    gc.collect()
    assert not start_ticks(pid)


ORPHANS = """
import os, time, torch, jupyter_hyperpod as hp
model = torch.nn.Linear(1, 1)
session = hp.Session(model, torch.optim.SGD(model.parameters(), lr=0.1), [torch.ones(1)] * 8, global_batch=4,
                     micro_batch=2, workers=2)
next(session.steps(2)).run(lambda batch: model(batch).mean())
print(*[reader.pid for reader in session._batches._readers._readers], flush=True)
time.sleep(60)
"""


def test_no_worker_outlives_its_parent(patience: Patience) -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(start_ticks, pids))
        parent.kill()
    patience(lambda: not any(map(start_ticks, pids)))


Point = namedtuple("Point", "x y")


def test_what_travels_is_what_was_sent() -> None:
    ours, theirs = socket.socketpair()
    base = torch.randn(6, 5)
    values = {
        "strides": torch.randn(3, 4).t(),
        "part": base[1:4, 2:5],
        "expanded": torch.ones(1).expand(4),
        "empty": torch.empty(0, 3),
        "half": torch.randn(4).bfloat16(),
        "conjugate": torch.randn(2, dtype=torch.complex64).conj(),
        "flag": torch.tensor(True),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    with ours, theirs:
        transport.send(ours, [values, Point(numpy.arange(6.0).reshape(2, 3), ("text", None))])
        kind, (found, point) = transport.receive(theirs)
        assert kind == transport.BATCH and point.y == ("text", None) and point.x.tolist() == [[0, 1, 2], [3, 4, 5]]
        for name, value in values.items():
            assert torch.equal(value, found[name]) and value.dtype == found[name].dtype, name
            assert value.stride() == found[name].stride(), name
            assert value.data_ptr() % 64 == found[name].data_ptr() % 64 or not value.numel(), name
        found["strides"].mul_(2)
        point.x[0] = 3
        ours.close()
        with pytest.raises(EOFError):
            transport.receive(theirs)


def test_a_batch_of_many_parts_travels_whatever_the_system_writes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    values = [torch.randn(1 + number % 7) for number in range(1500)]
    whole = os.writev
    with ours, theirs:
        transport.send(ours, values)
        first = transport.receive(theirs)[1]
        monkeypatch.setattr(os, "writev", lambda file, parts: whole(file, [parts[0][:13]]))
        transport.send(ours, values)
        second = transport.receive(theirs)[1]
    assert all(map(torch.equal, values, first)) and all(map(torch.equal, values, second))


CELL = """
import os, random, time, torch, jupyter_hyperpod as hp
from torch import nn
from torch.utils.data import DataLoader, WeightedRandomSampler

class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        time.sleep(float(os.environ.get("READ_S", "0")))
        return torch.full((8,), index / 50) + torch.randn(8) * random.random(), torch.rand(1)

sampler = WeightedRandomSampler([1.0 + index % 5 for index in range(50)], 50)
loader = DataLoader(Noisy(), batch_size=16, sampler=sampler, num_workers=int(os.environ["WORKERS"]))
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

def loss_fn(batch):
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
    return nn.functional.mse_loss(model(batch[0]), batch[1])

with hp.Session(model, optimizer, loader, global_batch=16, micro_batch=2, seed=3, audit=1.0) as session:
    for step in session.steps(24):
        loss = step.run(loss_fn)
        session.log(loss=loss)
"""


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def test_workers_in_a_job_that_loses_members_and_workers(job: Submit) -> None:
    undisturbed = job(CELL, nodes=1, env={"WORKERS": "0"})
    undisturbed.finish()
    run: Run = job(CELL, env={"WORKERS": "2", "PAUSE_S": "0.02", "READ_S": "0.002"})
    run.until_step(3)
    victim = run.worker_pid(0)
    orphans = children(victim)
    assert len(orphans) == 2
    os.kill(victim, signal.SIGKILL)
    run.until_step(8)
    for child in children(run.worker_pid(0)):
        os.kill(child, signal.SIGKILL)
    run.until_step(12)
    run.kill_node(1)
    run.finish()
    run.same_as(undisturbed)
    assert not any(map(start_ticks, orphans))
    assert any("worker that reads data ahead" in event.data["text"] for event in run.of_kind("warning.raised"))
    assert run.view["metrics"]["data_read_ahead"] >= 0 and "data_stalls" in run.view["metrics"]
