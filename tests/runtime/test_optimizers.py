"""Optimizers of all kinds: what works to the bit, and what is refused in the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import SpecError, TrainingError
from jupyter_hyperpod.runtime.session.optimizer_state import load_exactly
from tests.runtime.conftest import Submit


def data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(4, generator=generator), torch.randn(1, generator=generator)) for _ in range(20)]


def opened(optimizer: Any, model: nn.Module, **settings: Any) -> hp.Session:
    return hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2, **settings)


def loss_of(model: nn.Module) -> Callable[[Any], torch.Tensor]:
    return lambda batch: nn.functional.mse_loss(model(batch[0]).float(), batch[1])


class Quantised(torch.optim.Optimizer):
    """Keeps its average in 8 bits, and a 64-bit count."""

    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state.setdefault("average", torch.zeros(parameter.shape, dtype=torch.uint8))
            state.setdefault("exact", torch.zeros(parameter.shape, dtype=torch.float64))
            state["average"] += 3
            state["exact"] += 1e-12
            parameter.data.sub_(parameter.grad, alpha=0.1)


class Counting(torch.optim.Optimizer):
    """Keeps the number of its steps in an attribute."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.beats, self.name = [0], "counting"

    def step(self, closure: Any = None) -> None:
        self.beats[0] += 1


def test_state_of_any_type_is_loaded_with_the_same_bits() -> None:
    model = nn.Linear(4, 1)
    optimizer, other = (Quantised(model.parameters(), {}) for _ in range(2))
    with opened(optimizer, model) as session:
        next(steps := session.steps(1)).run(loss_of(model))
        assert not list(steps)
    load_exactly(other, optimizer.state_dict())
    for parameter in model.parameters():
        for name, value in optimizer.state[parameter].items():
            loaded = other.state[parameter][name]
            assert loaded.dtype == value.dtype and torch.equal(loaded, value)
            assert loaded.data_ptr() != value.data_ptr()


def test_state_in_attributes_is_refused_in_the_first_step() -> None:
    model = nn.Linear(4, 1)
    with pytest.raises(TrainingError, match=r"Counting.step\(\) changes beats, which is not in its state_dict\(\)"):
        next(opened(Counting(model.parameters()), model).steps(1)).run(loss_of(model))


class Saving(Counting):
    """Saves that number, too."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "beats": list(self.beats)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = dict(state)
        self.beats = state.pop("beats")
        super().load_state_dict(state)


def test_state_in_attributes_that_the_optimizer_saves_itself_is_taken() -> None:
    model = nn.Linear(4, 1)
    optimizer = Saving(model.parameters())
    with opened(optimizer, model) as session:
        assert [step.run(loss_of(model)) for step in session.steps(2)]
    assert optimizer.beats == [2]


def test_several_optimizers_save_only_what_torch_has() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizers = [Saving(model[0].parameters()), Saving(model[1].parameters())]
    with pytest.raises(TrainingError, match=r"Saving.step\(\) changes beats, which is not in its state_dict\(\)"):
        next(opened(optimizers, model).steps(1)).run(loss_of(model))


def test_parameters_that_are_added_later_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model[1].parameters())
    steps = opened(optimizer, model).steps(2)
    next(steps).run(loss_of(model))
    optimizer.add_param_group({"params": model[0].parameters()})
    with pytest.raises((SpecError, TrainingError), match="held 2 parameters when the session was opened"):
        next(steps).run(loss_of(model))


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adafactor, torch.optim.NAdam, torch.optim.Rprop])
def test_optimizers_of_torch_keep_nothing_elsewhere(make: Callable[..., Any]) -> None:
    model = nn.Linear(4, 1)
    with opened(make(model.parameters()), model) as session:
        assert [step.run(loss_of(model)) for step in session.steps(2)]


# Two networks in turn, with one optimizer; moments of the half-precision head are kept in 32 bits.
TWO_NETWORKS = """
import os, time, torch, jupyter_hyperpod as hp
from torch import nn

class Wide(torch.optim.Optimizer):
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    mean = self.state[weight].setdefault("mean", torch.zeros(weight.shape))
                    mean.lerp_(weight.grad.float(), 0.1)
                    weight.data.sub_((mean * group["lr"]).to(weight.dtype))

generator = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 8))
critic = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1)).bfloat16()
model = nn.ModuleDict({"generator": generator, "critic": critic})
groups = [{"params": generator.parameters(), "lr": 1e-2}, {"params": critic.parameters(), "lr": 5e-2}]
optimizer = Wide(groups, {})
data = list(torch.randn(50, 8))

def judged(samples):
    return critic(samples.bfloat16()).float()

def critic_loss(real):
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
    fake = generator(torch.randn(len(real), 4)).detach()
    return nn.functional.softplus(judged(fake)).mean() + nn.functional.softplus(-judged(real)).mean()

def generator_loss(real):
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
    return nn.functional.softplus(-judged(generator(torch.randn(len(real), 4)))).mean()

with hp.Session(model, optimizer, data, global_batch=16, micro_batch=2, seed=3) as session:
    for step in session.steps(24):
        critic_turn = step.index % 2 == 0
        critic.requires_grad_(critic_turn)
        generator.requires_grad_(not critic_turn)
        step.run(critic_loss if critic_turn else generator_loss)
"""


def test_two_networks_in_turn_while_every_member_is_lost_once(job: Submit) -> None:
    undisturbed = job(TWO_NETWORKS, nodes=1)
    undisturbed.finish()
    run = job(TWO_NETWORKS, env={"PAUSE_S": "0.03"})
    for step in (3, 8, 13):
        run.until_step(step)
        run.kill(0)
        run.until_world(3)
    run.finish()
    run.same_as(undisturbed)
