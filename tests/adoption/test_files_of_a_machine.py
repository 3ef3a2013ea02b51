"""Files below /tmp, which nodes share on one machine: on several, a member that joins later has others there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_hyperpod.runtime.worker.rehearse import Rehearsed, rehearse
from jupyter_hyperpod.system.addresses import SOCKETS_ONLY_VARIABLE

CELL = """# refused: NAME in line 21
import torch

import jupyter_hyperpod as hp

torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
folder, best = "FOLDER", float("inf")


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        if (loss := step.run(loss_fn)) < best:
            best = loss
            torch.save(model.state_dict(), WRITTEN)
    model.load_state_dict(torch.load(READ))
print("kept", loss.hex())
"""
WAYS = {
    "text": ('"FOLDER/best.pt"', '"FOLDER/best.pt"', "FOLDER/best.pt"),
    "variable": ('f"{folder}/best.pt"', 'folder + "/best.pt"', "folder"),
}


@pytest.fixture
def below_tmp() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_there_and_read_again_is_refused_where_nodes_are_machines(
    way: str, below_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, read, name = WAYS[way]
    text = CELL.replace("WRITTEN", written).replace("READ", read).replace("NAME", name)
    path = below_tmp / "cell.py"
    path.write_text(text.replace("FOLDER", str(below_tmp)))
    assert rehearse(path).exact
    monkeypatch.setenv(SOCKETS_ONLY_VARIABLE, "1")
    found = rehearse(path)
    assert found.named and "temporary folder" in found.sentence, found


def test_what_is_only_written_there_is_left_alone(below_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOCKETS_ONLY_VARIABLE, "1")
    text = CELL.replace("    model.load_state_dict(torch.load(READ))\n", "").replace("WRITTEN", '"FOLDER/best.pt"')
    path = below_tmp / "cell.py"
    path.write_text(text.replace("FOLDER", str(below_tmp)).replace("refused: NAME in line 21", "harmless"))
    assert rehearse(path) == Rehearsed("harmless", False, "", 0, "", True)


MAPPED = """# refused: NAME in line LINE
import tempfile

import numpy
import torch

import jupyter_hyperpod as hp

torch.manual_seed(0)
rows = numpy.memmap(FILE, dtype="float32", mode="w+", shape=(32, 4))
rows[:] = torch.randn(32, 4).numpy()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.tensor(row), torch.randn(1)) for row in rows]


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.tensor(rows[index]), torch.ones(1)


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1]) * WEIGHT


with hp.Session(model, optimizer, DATA, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        AFTER
print("kept", loss.hex())
"""
NEW_FILE = "tempfile.mkstemp()[1]"


@pytest.mark.parametrize(
    ("file", "data", "weight", "after", "line", "sentence"),
    [
        ("FILE", "Rows()", "1.0", "pass", 22, "mode='w+', which empties it"),
        ("FILE", "data", "(1 + float(rows[0, 0]))", "rows[0, 0] += 0.01 * loss", 32, "mode='w+', which empties it"),
        (NEW_FILE, "data", "(1 + float(rows[0, 0]))", "rows[0, 0] += 0.01 * loss", 32, "a memmap, which a member"),
        (NEW_FILE, "Rows()", "1.0", "pass", 0, ""),
    ],
    ids=["the data set reads it", "the loop writes to it", "the loop writes to its own", "a file of one process"],
)
def test_a_file_in_memory_that_each_member_empties(
    file: str, data: str, weight: str, after: str, line: int, sentence: str, tmp_path: Path
) -> None:
    text = MAPPED.replace("FILE", f'"{tmp_path}/rows.dat"' if file == "FILE" else file)
    text = text.replace("DATA", data).replace("WEIGHT", weight).replace("AFTER", after)
    head = f"refused: rows in line {line}" if line else "harmless"
    path = tmp_path / "cell.py"
    path.write_text(text.replace("refused: NAME in line LINE", head))
    found = rehearse(path)
    assert sentence in found.sentence and (found.named or not line), found
    assert line or found == Rehearsed("harmless", False, "", 0, "", True), found
