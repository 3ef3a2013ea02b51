"""Clipping by value and by norm, of all parameters and of one group."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import SpecError

torch.manual_seed(1)
DATA = [(x, x.sum(0, keepdim=True) * 9) for x in torch.randn(32, 4)]


def made(*limits: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model of two layers, with a parameter group and its limits for each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    groups = [{"params": layer.parameters(), **own} for layer, own in zip(model, limits, strict=True)]
    return model, torch.optim.SGD(groups, lr=0.01)


def trained(model: nn.Module, optimizer: Any, steps: int = 6, **settings: Any) -> list[torch.Tensor]:
    sizes = {"global_batch": 8, "micro_batch": 8, "order": "sequential"}
    with hp.Session(model, optimizer, DATA, **sizes, **settings) as session:
        for step in session.steps(steps):
            step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
    return list(model.state_dict().values())


@pytest.mark.parametrize(
    ("limits", "settings", "clip"),
    [
        (({}, {}), {"max_grad_value": 0.3}, lambda m: nn.utils.clip_grad_value_(m.parameters(), 0.3)),
        (
            ({"max_grad_norm": 0.2}, {"max_grad_value": 0.1}),
            {},
            lambda m: (
                nn.utils.clip_grad_norm_(m[0].parameters(), 0.2),
                nn.utils.clip_grad_value_(m[1].parameters(), 0.1),
            ),
        ),
        (
            ({"max_grad_norm": 0.2}, {"max_grad_value": None}),
            {"max_grad_norm": 0.5, "max_grad_value": 0.3},
            lambda m: (
                nn.utils.clip_grad_value_(m[0].parameters(), 0.3),
                nn.utils.clip_grad_norm_(m[0].parameters(), 0.2),
                nn.utils.clip_grad_norm_(m[1].parameters(), 0.5),
            ),
        ),
    ],
    ids=["by value", "by group", "a group differs"],
)
def test_as_a_plain_loop_does(limits: Any, settings: Any, clip: Any) -> None:
    found = trained(*made(*limits), **settings)
    assert any(not torch.equal(*pair) for pair in zip(found, trained(*made({}, {})), strict=True))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the session: the norm of a gradient depends on it
    model, optimizer = made(*limits)
    loader = torch.utils.data.DataLoader(DATA, batch_size=8)
    for batch in [batch for _ in range(2) for batch in loader][:6]:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
        clip(model)
        optimizer.step()
    torch.set_num_threads(threads)
    assert all(torch.equal(*pair) for pair in zip(found, model.state_dict().values(), strict=True))


def test_each_of_several_optimizers_has_groups_of_its_own() -> None:
    model, _ = made({}, {})
    first = torch.optim.SGD([{"params": model[0].parameters(), "max_grad_value": 1e-3}], lr=1.0)
    second = torch.optim.SGD(model[1].parameters(), lr=1.0)
    before = [value.clone() for value in model.state_dict().values()]
    with hp.Session(model, [first, second], DATA, global_batch=8, micro_batch=2) as session:
        for step in session.steps(1):
            for _ in range(2):
                step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
    moved = [float((new - old).abs().max()) for new, old in zip(model.state_dict().values(), before, strict=True)]
    assert max(moved[:2]) == pytest.approx(1e-3, rel=1e-3) and min(moved[2:]) > 0.1


class Clipping(torch.optim.SGD):
    """Clips by itself, as LAMB of timm does: ``max_grad_norm`` is a setting of its own."""

    def __init__(self, parameters: Any, lr: float, max_grad_norm: float) -> None:
        super().__init__(parameters, lr=lr)
        self.defaults["max_grad_norm"] = max_grad_norm
        for group in self.param_groups:
            group.setdefault("max_grad_norm", max_grad_norm)


def test_a_setting_of_the_optimizer_is_left_to_it() -> None:
    model, _ = made({}, {})
    found = trained(model, Clipping(model.parameters(), 0.01, max_grad_norm=1e-3))
    assert all(torch.equal(*pair) for pair in zip(found, trained(*made({}, {})), strict=True))


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), True, "1.0"])
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    for name in ("max_grad_norm", "max_grad_value"):
        with pytest.raises(SpecError, match=f"^{name} is {limit!r}; expected a number above 0, or None"):
            trained(*made({}, {}), **{name: limit})
        with pytest.raises(SpecError, match=f"^{name} of parameter group 1 is {limit!r}; expected"):
            trained(*made({}, {name: limit}))
