"""Functions and objects that the loop exchanges: newcomers get them, or the loop is refused when it exchanges them."""

from __future__ import annotations

import functools
import re

import pytest
import torch

from jupyter_hyperpod.runtime.program import functions
from tests.runtime.conftest import Submit

CELL = """
import copy, functools, time, torch, jupyter_hyperpod as hp
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(x, x.sum()) for x in torch.randn(32, 4)]

class Config: pass
class Record:
    def __init__(self, loss): self.weights = torch.full((2,), loss)
config, best, best_model = Config(), None, None
def first(p, t): return nn.functional.mse_loss(p, t)
def second(p, t): return 0.5 * (p - t).abs().mean()
choice, several = first, {"loss": first}
def loss_fn(batch):
    time.sleep(0.03)
    return LOSS(model(batch[0]).squeeze(-1), batch[1])

with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(24):
        loss = step.run(loss_fn)
        CHANGE
print("kept", KEPT)
"""


def cell(change: str, loss: str = "first", kept: str = "None") -> str:
    return CELL.replace("LOSS", loss).replace("CHANGE", change).replace("KEPT", kept)


WORKING = {
    "another function": cell("choice = second if step.number > 8 else first", "choice"),
    "a function of torch": cell("choice = nn.functional.l1_loss if step.number > 8 else first", "choice"),
    "a function at last": cell("choice = second if step.number > 8 else None", "(choice or first)"),
    "no function at last": cell("choice = None if step.number > 8 else second", "(choice or first)"),
    "an attribute by setattr": cell(
        "if step.number == 8: setattr(config, 'scale', 0.5)", "getattr(config, 'scale', 1.0) * first"
    ),
    "attributes by vars": cell(
        "if step.number == 8: vars(config).update(scale=0.5)", "vars(config).get('scale', 1.0) * first"
    ),
    "a copy of the model": cell(
        "if step.number == 4: best_model = copy.deepcopy(model)",
        kept="sum(p.double().sum().item() for p in best_model.parameters()).hex()",
    ),
    "an object": cell("if step.number == 8: best = Record(loss)", kept="best.weights"),
}
REFUSED = {
    "a lambda": (cell("if step.number == 4: choice = lambda p, t: second(p, t)", "choice"), "becomes another function"),
    "an item": (
        cell("if step.number == 8: several['loss'] = second", "several['loss']"),
        "gives several another function",
    ),
    "a partial": (
        cell("choice = functools.partial(second) if step.number > 8 else first", "choice"),
        "gives choice another function",
    ),
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("source", WORKING.values(), ids=WORKING.keys())
def test_newcomers_go_on_with_what_the_loop_has_chosen(job: Submit, source: str) -> None:
    calm = job(source, nodes=1)
    calm.finish()
    run = job(source)
    run.until_step(11)
    run.kill(1)
    run.until_step(15)
    run.kill(0)
    run.finish()
    run.same_as(calm)
    assert run.text()[0] == calm.text()[0]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("source", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_newcomers_cannot_get_is_refused_in_its_turn(job: Submit, source: str, words: str) -> None:
    view = job(source, nodes=2).finish("failed")
    assert re.search(words, view["error"]["message"]), view["error"]
    assert view["step"] < 10


def one(x: int) -> int:
    return x


def two(x: int) -> int:
    return x


def test_functions_are_alike_where_their_code_is() -> None:
    def made(k: int) -> object:
        return lambda: k

    assert functions.held(made(1)) == functions.held(made(2)) != functions.held(one)
    assert functions.held({"a": one, "b": 1}) != functions.held({"a": two, "b": 1})
    assert functions.held([1, 2]) is None and functions.held("text") is None
    assert functions.held(functools.partial(one, 1)) != functions.held(functools.partial(one, 2))
    assert functions.held([one] * 1000) is None, "a long list is data"


def test_a_function_travels_by_its_place_or_by_its_name_in_a_library() -> None:
    spaces = [{"choice": two, "one": one, "two": two}]
    named = functions.reference(two, "choice", spaces)
    assert named is not None and functions.found(named, [{"other": two}]) is two
    with pytest.raises(LookupError):
        functions.found(named, [{"one": one}])
    assert functions.reference(two, "choice", [{"choice": two}]) is None, "the variable itself does not count"
    library = functions.reference(torch.nn.functional.l1_loss, "choice", spaces)
    assert library is not None and functions.found(library, []) is torch.nn.functional.l1_loss


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("torch", "nonsense"),
        ("torch", "__version__"),
        ("torch._utils", "traceback.TracebackException"),
    ],
)
def test_a_copy_names_no_function_of_others(module: str, name: str) -> None:
    """A copy may come from a checkpoint, and that from anybody."""
    with pytest.raises(LookupError):
        functions.found(["name", module, name], [])
