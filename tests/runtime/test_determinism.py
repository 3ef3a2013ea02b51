"""What a session sets on CUDA, what it leaves alone on the CPU, and its words for operators without a kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import SpecError, TrainingError
from jupyter_hyperpod.runtime.session.determinism import Determinism

DATA = [(torch.ones(2), torch.ones(1)) for _ in range(8)]


@pytest.fixture
def exact() -> Iterator[None]:
    """The settings that a session on a GPU has."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def session(**options: object) -> hp.Session:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return hp.Session(model, optimizer, DATA, global_batch=4, micro_batch=2, **options)  # type: ignore[arg-type]


def test_an_operator_without_a_deterministic_kernel_is_named(exact: None) -> None:
    def loss_of(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        torch.zeros(4).put_(torch.tensor([0, 0]), torch.ones(2))
        return trained.model(batch[0]).sum()

    with (
        session() as trained,
        pytest.raises(TrainingError, match=r"put_ has no .*test_determinism.py, line \d+") as told,
    ):
        for step in trained.steps(1):
            step.run(loss_of)
    assert 'determinism="best-effort"' in str(told.value)


def test_settings_for_cuda_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # put back after the test
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    chosen = Determinism("exact", "state", torch.device("cuda"))
    assert torch.are_deterministic_algorithms_enabled() and torch.backends.cudnn.deterministic
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    chosen.restore()
    assert not torch.are_deterministic_algorithms_enabled() and not torch.backends.cudnn.deterministic


def test_the_cpu_and_best_effort_set_nothing() -> None:
    Determinism("exact", "state", torch.device("cpu"))
    Determinism("best-effort", "state", torch.device("cuda"))
    assert not torch.are_deterministic_algorithms_enabled()


def test_contradictions_are_refused() -> None:
    with pytest.raises(SpecError, match="executed again may differ"):
        session(determinism="best-effort", audit=0.5)
    with pytest.raises(SpecError, match="expected 'exact' or 'best-effort'"):
        session(determinism="exactly")
