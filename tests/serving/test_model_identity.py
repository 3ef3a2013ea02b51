"""Two models are told apart, wherever they differ; the same one is the same."""

from __future__ import annotations

from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.serving.model_identity import of_files, of_tensors


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
    weights = tmp_path / "a" / "weights"
    weights.write_bytes(bytes(100_000))
    found = {of_files(str(tmp_path)), of_files(f"file://{tmp_path}")}
    assert len(found) == 1
    weights.write_bytes(bytes(100_001))
    found.add(of_files(str(tmp_path)))
    weights.write_bytes(b"\1" * 100_000)
    found.add(of_files(str(tmp_path)))
    weights.rename(tmp_path / "a" / "weight")
    found.add(of_files(str(tmp_path)))
    assert len(found) == 4
    assert of_files(str(tmp_path / "nowhere")) == of_files("s3://bucket/model") == of_files("") == ""
