"""What a newcomer computes is compared with what another member computes of the same micro-batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from jupyter_hyperpod.policy.recovery import has_pairs
from tests.runtime.conftest import Run, Submit

CELL = """
import functools, os, time, torch, jupyter_hyperpod as hp
torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(64)]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
class Temper:
    def __init__(self):
        self.base, self.kept = 1.0, {}
    @functools.lru_cache
    def scale(self, kind):
        return self.base
    @functools.cached_property
    def first(self):
        return self.base
    def of(self, kind):
        if kind not in self.kept:
            self.kept[kind] = self.base
        return self.kept[kind]
    def cool(self):
        self.base *= 0.9
@functools.singledispatch
def weight(kind):
    return 1.0
temper = Temper()
hooks = {"end": [SETUP]}

def loss_function(batch):
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1]) * FACTOR

with hp.Session(model, optimizer, data, global_batch=16, micro_batch=4) as session:
    for epoch in session.epochs(25):
        for step in session.steps(5):
            loss = step.run(loss_function)
        for hook in hooks["end"]:
            hook()
print(loss)
"""
PROGRAMS = {
    "cached_method": ("temper.cool", "temper.scale('a')"),
    "registry": ("lambda: weight.register(float, lambda kind: 0.5)", "weight(1.0)"),
    "read_now_and_then": ("temper.cool", "(temper.first if session.step % 2 else 1.0)"),
}

SET_AT_THE_FIRST_CALL = {
    "cached_property": ("temper.cool", "temper.first"),
    "kept_by_hand": ("temper.cool", "temper.of('a')"),
}


def program(name: str) -> str:
    setup, factor = (PROGRAMS | SET_AT_THE_FIRST_CALL)[name]
    return CELL.replace("SETUP", setup).replace("FACTOR", factor)


def grow(run: Run) -> None:
    """A third member joins; the job does not wait any more once it has taken part in a step, or stopped the job."""
    run.until_step(22)
    run.scale(3)
    run.until_world(3, or_ended=True)
    run.full_speed()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_newcomer_that_computes_something_else_stops_the_job(job: Submit, name: str) -> None:
    run = job(program(name), nodes=2, elastic="1:4", pause_s=0.04)
    grow(run)
    reason = run.finish("failed")["reason"]
    assert "and computes another gradient than rank" in reason or "does not have what" in reason, run.story()
    assert not [e for e in run.of_kind("member.lost") if e.data["cause"] == "silent data corruption"], run.story()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", SET_AT_THE_FIRST_CALL)
def test_what_was_kept_at_the_first_call_reaches_a_newcomer(job: Submit, name: str) -> None:
    alone = job(program(name), nodes=1)
    alone.finish()
    run = job(program(name), nodes=2, elastic="1:4", pause_s=0.04)
    grow(run)
    assert run.finish()["digest"] == alone.view["digest"], run.story()
    assert len(run.of_kind("generation.formed")) > 2, run.story()


FAULT = """    execution = session._execution
    compute = execution._compute
    def strike(loss):
        compute(loss)
        if session.rank == 2 and not os.path.exists(STRUCK):
            open(STRUCK, "w").close()
            buffer = next(iter(session._gradients.finished.nodes.values()))
            buffer.flats[0].view(torch.uint8).numpy()[5] ^= 0x40
    execution._compute = strike
    for epoch in"""
PLAIN = CELL.replace("SETUP", "len").replace("[len]", "[]").replace("FACTOR", "1.0")


@pytest.mark.timeout(180)
def test_a_device_that_fails_once_in_its_first_step_is_not_taken_for_another_program(
    job: Submit, tmp_path: Path
) -> None:
    """The newcomer computes the micro-batch once more and gets another gradient: its device is examined."""
    alone = job(PLAIN, nodes=1)
    alone.finish()
    fault = FAULT.replace("STRUCK", repr(str(tmp_path / "struck")))
    run = job(PLAIN.replace("    for epoch in", fault), nodes=2, elastic="1:4", pause_s=0.04)
    grow(run)
    run.finish()
    assert [(i["cause"], i["rank"]) for i in run.view["incidents"]] == [("silent data corruption", 2)], run.story()
    assert run.view["digest"] == alone.view["digest"]


@pytest.mark.timeout(180)
def test_without_an_audit_a_newcomer_s_wrong_gradient_stops_the_job(job: Submit, tmp_path: Path) -> None:
    fault = FAULT.replace("STRUCK", repr(str(tmp_path / "struck")))
    cell = PLAIN.replace("    for epoch in", fault).replace("micro_batch=4)", "micro_batch=4, audit=None)")
    run = job(cell, nodes=2, elastic="1:4", pause_s=0.04)
    grow(run)
    assert "rank 2 computed a wrong gradient, and nothing of it is applied" in run.finish("failed")["reason"], (
        run.story()
    )


@pytest.mark.timeout(180)
def test_a_newcomer_shows_the_gradient_that_it_has_and_another_member_computes_it(job: Submit, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    note = f"""def loss_function(batch):
    with open({str(calls)!r}, "a") as file:
        file.write(f"{{session.rank}} {{session.step}}\\n")"""
    cell = PLAIN.replace("micro_batch=4", "micro_batch=2").replace("def loss_function(batch):", note)
    run = job(cell, nodes=2, elastic="1:4", pause_s=0.03)
    grow(run)
    run.finish()
    found = Counter((int(rank), int(step)) for rank, step in map(str.split, calls.read_text().splitlines()))
    joined = min(step for rank, step in found if rank == 2)
    steps = range(joined, joined + 20)
    extra = {step - joined: sum(found[rank, step] for rank in range(3)) - 8 for step in steps}
    pairs = {step for step in steps if has_pairs(step + 1)} - {joined + age for age in (0, 1, 4, 16)}
    alone = {age: count for age, count in extra.items() if joined + age not in pairs}
    assert alone == {age: int(age in (0, 1, 4, 16)) for age in alone}
    # a rank whose own micro-batch has been added to another one computes it again, too
    assert all(3 <= extra[step - joined] <= 6 for step in pairs)
    assert len({found[2, step] for step in steps if step not in pairs}) == 1, "the newcomer computes its share alone"
