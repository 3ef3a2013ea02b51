"""Data by index: each epoch visits every sample exactly once, in an order that the seed alone decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.core.errors import SpecError, TrainingError
from jupyter_hyperpod.runtime.data.indexed import MappedDataset, indexed
from jupyter_hyperpod.runtime.data.order import mix, permute, sample_indices
from jupyter_hyperpod.runtime.data.tokens import TokenDataset


@given(st.integers(1, 2000), st.integers(0, 2**64 - 1))
def test_the_permutation_is_a_bijection(length: int, key: int) -> None:
    assert sorted(permute(i, length, key) for i in range(length)) == list(range(length))


def test_different_keys_order_differently() -> None:
    orders = {tuple(permute(i, 50, key) for i in range(50)) for key in range(20)}
    assert len(orders) == 20
    assert tuple(range(50)) not in orders


@given(st.integers(1, 60), st.integers(1, 6), st.integers(1, 5), st.integers(0, 99))
def test_every_epoch_visits_every_sample_once(length: int, micro: int, count: int, seed: int) -> None:
    batch = micro * count
    steps = -(-3 * length // batch)
    seen = [
        sample
        for step in range(steps)
        for leaf in range(count)
        for sample in sample_indices(seed, step, leaf, micro, batch, length)
    ]
    for epoch in range(3):
        assert sorted(seen[epoch * length : (epoch + 1) * length]) == list(range(length))


@given(st.lists(st.integers(-(2**70), 2**70), max_size=4), st.lists(st.integers(-(2**70), 2**70), max_size=4))
def test_mix_is_64_bits_and_depends_on_everything(a: list[int], b: list[int]) -> None:
    assert 0 <= mix(*a) < 2**64
    if [x % 2**64 for x in a] != [x % 2**64 for x in b]:
        assert mix(*a) != mix(*b)


def test_token_windows(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    path.write_bytes(bytes(range(21)))
    data = TokenDataset(path, sequence_length=4)
    assert len(data) == 5
    inputs, targets = data.batch([0, 4])
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.tolist() == [[0, 1, 2, 3], [16, 17, 18, 19]]
    assert targets.tolist() == [[1, 2, 3, 4], [17, 18, 19, 20]]


@pytest.mark.parametrize(("token_bytes", "kind"), [(2, "<u2"), (4, "<i4")])
def test_tokens_of_a_larger_vocabulary(tmp_path: Path, token_bytes: int, kind: str) -> None:
    path = tmp_path / "tokens.bin"
    ids = [0, 1, 255, 256, 50_000, 65_535, 7, 8, 9]
    numpy.array(ids, dtype=kind).tofile(path)
    data = TokenDataset(path, 4, token_bytes=token_bytes)
    assert len(data) == 2
    assert data.vocabulary_size == (65_536 if token_bytes == 2 else 2**31)
    inputs, targets = data.batch([0, 1])
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.tolist() == [ids[:4], ids[4:8]]
    assert targets.tolist() == [ids[1:5], ids[5:9]]
    with pytest.raises(SpecError, match="token_bytes is 3; expected 1, 2 or 4"):
        TokenDataset(path, 4, token_bytes=3)
    path.write_bytes(b"x" * 41)
    with pytest.raises(SpecError, match=f"no whole tokens of {token_bytes} bytes"):
        TokenDataset(path, 4, token_bytes=token_bytes)


def test_what_is_wrong_with_a_token_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot open"):
        TokenDataset(tmp_path / "none", 4)
    short = tmp_path / "short"
    short.write_bytes(b"abcd")
    with pytest.raises(SpecError, match="holds 4 bytes; one sample needs 5"):
        TokenDataset(short, 4)
    with pytest.raises(SpecError, match="expected at least 1"):
        TokenDataset(short, 0)
    (tmp_path / "empty").touch()
    with pytest.raises(SpecError, match="holds 0 bytes"):
        TokenDataset(tmp_path / "empty", 1)


def test_a_shared_url_is_resolved_and_kept_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERPOD_MOUNTS", json.dumps({"shared": str(tmp_path)}))
    (tmp_path / "tokens").write_bytes(b"x" * 9)
    assert len(TokenDataset("shared://tokens", 4)) == 2
    with pytest.raises(SpecError, match="leaves its mount"):
        TokenDataset("shared://../tokens", 4)
    with pytest.raises(SpecError, match="no mount named"):
        TokenDataset("other://tokens", 4)


def test_lists_and_datasets_are_collated() -> None:
    data = indexed([(torch.tensor([float(i)]), i) for i in range(4)])
    assert isinstance(data, MappedDataset) and len(data) == 4
    values, labels = data.batch([2, 0])
    assert values.tolist() == [[2.0], [0.0]] and labels.tolist() == [2, 0]
    assert indexed(data) is data


@pytest.mark.parametrize("token_bytes", [1, 2])
def test_tokens_are_contiguous(tmp_path: Path, token_bytes: int) -> None:
    """As nanoGPT has it: ``targets.view(-1)``."""
    path = tmp_path / "tokens.bin"
    path.write_bytes(bytes(42))
    inputs, targets = TokenDataset(path, 4, token_bytes=token_bytes).batch([0, 3, 1])
    assert inputs.is_contiguous() and targets.is_contiguous()
    assert inputs.view(-1).shape == targets.view(-1).shape == (12,)
    targets[:] = 7
    assert not inputs.any(), "one may be written to without the other"


class Table:
    """Stands in for datasets.Dataset 5.2: its ``batch`` cuts the table into batches of so many rows."""

    def __init__(self, rows: list[dict[str, Any]], kind: str | None = None) -> None:
        self.rows, self.format = rows, {"type": kind, "format_kwargs": {}, "columns": [], "output_all_columns": False}
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int) -> dict[str, Any]:
        row = self.rows[key]
        return {k: torch.tensor(v) for k, v in row.items()} if self.format["type"] == "torch" else row

    def __getitems__(self, keys: list[int]) -> list[dict[str, Any]]:
        self.asked.append(keys)
        return [self[key] for key in keys]

    def batch(self, batch_size: int, drop_last_batch: bool = False) -> Table:
        raise AssertionError("not asked for")

    def with_format(self, kind: str) -> Table:
        return Table(self.rows, kind)


def test_a_method_called_batch_that_takes_a_size_is_not_asked_for_indices() -> None:
    table = Table([{"x": float(i), "label": i} for i in range(6)])
    data = indexed(table)
    assert isinstance(data, MappedDataset) and len(data) == 6
    batch = data.batch([4, 1])
    assert batch["x"].tolist() == [4.0, 1.0] and batch["label"].tolist() == [4, 1]
    assert table.asked == [[4, 1]], "rows are read at once, as a DataLoader does"


def test_lists_in_a_table_are_refused_until_they_are_tensors() -> None:
    table = Table([{"input_ids": [i, i + 1, i + 2]} for i in range(3)])
    with pytest.raises(SpecError, match=r"column 'input_ids' .* lists.* pass data.with_format\('torch'\)"):
        indexed(table)
    assert indexed(table.with_format("torch")).batch([2, 0])["input_ids"].tolist() == [[2, 3, 4], [0, 1, 2]]


def test_a_batch_method_of_ones_own() -> None:
    class Own:
        def __len__(self) -> int:
            return 3

        def batch(self, chosen: list[int]) -> torch.Tensor:
            return torch.tensor(chosen)

    class Items(Own):
        def __getitem__(self, index: int) -> int:
            return index

    class Both(Items):
        def batch(self, indices: list[int]) -> torch.Tensor:
            return torch.tensor(indices)

    for data in (Own(), Both()):
        assert indexed(data) is data
    with pytest.raises(SpecError, match=r"Items with both .* batch\(chosen\); .* call its parameter indices"):
        indexed(Items())


def test_samples_that_do_not_fit_are_told_so() -> None:
    with pytest.raises(TrainingError, match=r"cannot be put into one batch: .*expected samples of the same shapes"):
        indexed([torch.ones(2), torch.ones(3)]).batch([0, 1])
    with pytest.raises(TrainingError, match="cannot be put into one batch: default_collate"):
        indexed([None, None]).batch([0, 1])


@pytest.mark.parametrize("data", [iter([1]), 5, (x for x in range(3)), {"train": [1, 2]}])
def test_data_without_an_index_is_refused(data: object) -> None:
    with pytest.raises(SpecError, match="addressed by index"):
        indexed(data)
