"""Two models are told apart, wherever they differ; the same one is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.serving import model_identity
from jupyter_hyperpod.serving.model_identity import around, of_files, of_tensors


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=4), st.sampled_from([torch.float32, torch.bfloat16]))
def test_tensors_that_were_trained_further_are_others(sizes: list[int], kind: torch.dtype) -> None:
    tensors = {f"layer.{place}": torch.arange(size).to(kind) for place, size in enumerate(sizes)}
    same = {name: tensor.clone() for name, tensor in reversed(tensors.items())}
    assert of_tensors(tensors) == of_tensors(same)
    assert len({of_tensors(tensors), of_tensors(tensors | {"more": torch.zeros(1)})}) == 2
    for name, tensor in tensors.items():
        assert (of_tensors(same | {name: tensor + 1}) != of_tensors(tensors)) is bool(len(tensor))


def test_files_are_told_by_names_sizes_and_content(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    weights = tmp_path / "a" / "weights.bin"
    weights.write_bytes(bytes(100_000))
    found = {of_files(str(tmp_path)), of_files(f"file://{tmp_path}")}
    assert len(found) == 1
    weights.write_bytes(bytes(100_001))
    found.add(of_files(str(tmp_path)))
    weights.write_bytes(b"\1" * 100_000)
    found.add(of_files(str(tmp_path)))
    weights.rename(tmp_path / "a" / "weight.bin")
    found.add(of_files(str(tmp_path)))
    assert len(found) == 4
    (tmp_path / "log.txt").write_text("a program writes here")
    assert of_files(str(tmp_path)) in found
    assert of_files(str(tmp_path / "nowhere")) == of_files("s3://bucket/model") == of_files("") == ""


def test_what_is_replaced_while_it_is_loaded_is_no_known_model(tmp_path: Path) -> None:
    """Else a replica with the old weights would be called one of the new ones."""
    weights = tmp_path / "weights.pt"
    weights.write_text("old")
    assert around(str(weights), weights.read_text) == ("old", of_files(str(weights)))
    before = of_files(str(weights))
    loaded, model = around(str(weights), lambda: (weights.read_text(), weights.write_text("new"))[0])
    assert loaded == "old" and model not in (before, of_files(str(weights)))


def test_a_folder_with_too_many_files_or_a_dead_link_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights.bin").symlink_to(tmp_path / "gone")
    assert of_files(str(tmp_path)) == ""
    (tmp_path / "weights.bin").unlink()
    (tmp_path / "weights.bin").write_text("here")
    assert of_files(str(tmp_path))
    monkeypatch.setattr(model_identity, "ENTRIES", 0)
    assert of_files(str(tmp_path)) == ""
