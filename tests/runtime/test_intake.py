"""Gradients are taken while backward runs: the same bits as if they were summed afterwards, whatever backward does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from jupyter_hyperpod.core.errors import TrainingError
from jupyter_hyperpod.policy.batching import split
from jupyter_hyperpod.runtime.session.gradients import Gradients
from jupyter_hyperpod.runtime.worker.local_group import LocalGroup

LEAVES = 4
Loss = Callable[[int], torch.Tensor]


class Shared(nn.Module):
    """One layer used three times, a table with sparse gradients, and a parameter that only odd micro-batches use."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6, sparse=True)
        self.layer = nn.Linear(6, 6)
        self.odd = nn.Parameter(torch.ones(6))

    def forward(self, leaf: int, reentrant: bool) -> torch.Tensor:
        x = self.table(torch.arange(leaf, leaf + 5)) * (self.odd if leaf % 2 else 1.0)
        for _ in range(3):
            x = checkpoint(self.layer, x, use_reentrant=True) if reentrant else self.layer(x)
        loss: torch.Tensor = (x * (1e-6 if leaf == 1 else 1e3)).pow(2).mean() + self.layer.bias.sum()
        return loss


def expected(model: nn.Module, loss: Loss) -> list[torch.Tensor]:
    """The sum over the tree of gradients that autograd has accumulated by itself."""

    def sum_of(node: tuple[int, int]) -> list[torch.Tensor]:
        if node[1] - node[0] == 1:
            model.zero_grad()
            loss(node[0]).backward()
            return [torch.zeros_like(p) if p.grad is None else p.grad.to_dense().clone() for p in model.parameters()]
        left, right = (sum_of(child) for child in split(node))
        return [a + b for a, b in zip(left, right, strict=True)]

    return sum_of((0, LEAVES))


def found(model: nn.Module, loss: Loss, aside: bool = False) -> tuple[list[torch.Tensor], list[int]]:
    """What a member has summed, and how often it computed each micro-batch."""
    gradients = Gradients(model, list(model.parameters()), LEAVES, LocalGroup(LEAVES))
    finished = gradients.separate_nodes() if aside else gradients.finished
    executions = [0] * LEAVES
    while missing := [leaf for leaf in range(LEAVES) if not finished.holds(leaf)]:
        for leaf in missing:
            executions[leaf] += 1
            gradients.compute(leaf, leaf, lambda leaf=leaf: loss(leaf), finished if aside else None)
            assert all(parameter.grad is None for parameter in model.parameters())
    summed = [gradient.clone() for gradient in finished.nodes[0, LEAVES].gradients]
    gradients.release()
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    return summed, executions


@pytest.mark.parametrize("aside", [False, True])
@pytest.mark.parametrize(
    ("reentrant", "redone"),
    [((), ()), ((0, 1, 2, 3), ()), ((2,), ()), ((1,), (0, 1)), ((3,), (2, 3))],
    ids=["plain", "always nested", "nested in a left leaf", "first nested in a right leaf", "nested in the last leaf"],
)
def test_the_bits_are_those_of_autograd(reentrant: tuple[int, ...], redone: tuple[int, ...], aside: bool) -> None:
    """Nested backward gives a shared layer its gradient in parts: noticed too late only in a right sibling, once."""
    torch.manual_seed(0)
    model = Shared()

    def loss(leaf: int) -> torch.Tensor:
        return model(leaf, leaf in reentrant)  # type: ignore[no-any-return]

    summed, executions = found(model, loss, aside)
    for ours, theirs in zip(summed, expected(model, loss), strict=True):
        assert torch.equal(ours, theirs)
    assert executions == [1 + (leaf in redone and not aside) for leaf in range(LEAVES)]


def test_a_backward_that_fails_half_way_leaves_nothing_behind() -> None:
    """The left sibling was being added to: both are computed again, if the program goes on at all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    gradients = Gradients(model, list(model.parameters()), LEAVES, LocalGroup(LEAVES))

    def loss(leaf: int) -> torch.Tensor:
        result: torch.Tensor = model(torch.full((3,), float(leaf))).sum()
        return result

    def broken(gradient: torch.Tensor) -> None:
        raise ZeroDivisionError

    for leaf in range(2):
        gradients.compute(leaf, leaf, lambda leaf=leaf: loss(leaf))
    gradients.compute(2, 2, lambda: loss(2))
    hook = model[0].weight.register_hook(broken)
    with pytest.raises(ZeroDivisionError):
        gradients.compute(3, 3, lambda: loss(3))
    hook.remove()
    assert list(gradients.finished.nodes) == [(0, 2)]
    with pytest.raises(TrainingError, match="the loss function returned"):
        gradients.compute(2, 2, lambda: torch.zeros(2))
    for leaf in (2, 3):
        gradients.compute(leaf, leaf, lambda leaf=leaf: loss(leaf))
    for ours, theirs in zip(gradients.finished.nodes[0, LEAVES].gradients, expected(model, loss), strict=True):
        assert torch.equal(ours, theirs)
    gradients.release()
