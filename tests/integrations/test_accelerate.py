"""accelerate's loop in a session, outside a job: what it computes, what it refuses, who writes, what it continues."""

from __future__ import annotations

import linecache
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from accelerate.state import AcceleratorState

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import SpecError, TrainingError
from jupyter_hyperpod.integrations.accelerate import Accelerator
from jupyter_hyperpod.integrations.prepared import PreparedOptimizer
from jupyter_hyperpod.runtime.program.between import Between
from jupyter_hyperpod.runtime.worker import cell_end

PREPARED = """
torch.manual_seed(1)
x = torch.randn(20, 3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
accelerator = Accelerator(cpu=True, **options)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
total, seen, hidden = 0.0, [], 0.0
"""


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    cell_end.run(None)
    AcceleratorState._reset_state(reset_partial_state=True)


def run(loop: str, kind: Any = Accelerator, inside: bool = True, **options: Any) -> dict[str, Any]:
    """Run a training loop, ``inside`` a function or as a cell; return its variables."""
    source = PREPARED + textwrap.dedent(loop)
    if inside:
        source = "def main():\n" + textwrap.indent(source, "    ") + "\n    return locals()\nnames = main()\n"
    filename = f"<accelerate {hash(source)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    names: dict[str, Any] = {"torch": torch, "Accelerator": kind, "options": options, "nn": torch.nn}
    exec(compile(source, filename, "exec", dont_inherit=True), names)
    cell_end.run(None)
    return names["names"] if inside else names  # type: ignore[no-any-return]


ACCUMULATED = """
for epoch in range(3):
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            x, y = [part.to(accelerator.device) for part in batch]
            loss = nn.functional.mse_loss(model(x), y)
            total += loss.detach().float()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        seen.append((epoch, step, loss.item(), accelerator.sync_gradients, schedule.get_last_lr()[0]))
"""
BY_HAND = """
for epoch in range(3):
    for step, (x, y) in enumerate(loader, start=1):
        loss = nn.functional.mse_loss(model(x), y) / 2
        seen.append((epoch, step, loss.item()))
        accelerator.backward(loss)
        if step % 2 == 0 or step == len(loader):
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.3)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if len(seen) == 12:
            break
"""
PLAIN = """
class Report:
    def __init__(self): self.lines = []
    def add(self, **values): self.lines.append(values)
report = Report()
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = ((out - y) ** 2).mean()
        report.add(loss=round(loss.item(), 5))
        accelerator.backward(loss)
        optimizer.step()
    seen.append([(out_ := model(torch.ones(3))).item(), *report.lines[-1].values()])
    for x, y in loader:
        with torch.no_grad():
            total += nn.functional.mse_loss(model(x), y).item()
"""


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    ("loop", "options"),
    [(ACCUMULATED, {}), (ACCUMULATED, {"gradient_accumulation_steps": 2}), (BY_HAND, {}), (PLAIN, {})],
    ids=["clipped", "accumulated", "by hand", "plain"],
)
def test_it_computes_what_accelerate_computes(loop: str, options: dict[str, Any], inside: bool) -> None:
    ours, theirs = run(loop, inside=inside, **options), run(loop, accelerate.Accelerator, inside, **options)
    assert torch.allclose(ours["model"].weight, theirs["model"].weight, atol=1e-6)
    assert float(ours["total"]) == pytest.approx(float(theirs["total"]), abs=1e-5)
    assert len(ours["seen"]) == len(theirs["seen"]) and len(ours["seen"]) in (2, 12, 15)
    for mine, yours in zip(ours["seen"], theirs["seen"], strict=True):
        assert list(mine) == pytest.approx(list(yours), abs=1e-5)


def test_members_that_join_in_an_accumulation_get_the_state_and_not_the_gradient_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repeatable, reached = list[int](), Between.reached

    def noted(between: Between) -> None:
        reached(between)
        repeatable.append(between.repeatable)

    monkeypatch.setattr(Between, "reached", noted)
    run(ACCUMULATED, gradient_accumulation_steps=3)
    assert len(repeatable) >= 15 and not any(repeatable)


EPOCHS = """
for epoch in accelerator.epochs(3, loader):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    seen.append((epoch, loss.item()))
"""


def test_epochs_are_counted_as_by_range() -> None:
    ours = run(EPOCHS)
    theirs = run(EPOCHS.replace("accelerator.epochs(3, loader)", "range(3)"))
    assert ours["seen"] == theirs["seen"] and [epoch for epoch, _ in ours["seen"]] == [0, 1, 2]
    with pytest.raises(SpecError, match="was given a list; expected the loader that prepare"):
        run(EPOCHS.replace("(3, loader)", "(3, [])"))


STEP = "accelerator.backward(loss); optimizer.step(); optimizer.zero_grad()"
LOSS = "loss = nn.functional.mse_loss(model(x), y)"
REFUSED = {
    "two backwards": (f"for x, y in loader:\n    {LOSS}; {STEP}; {STEP}", "line 13 is a further accelerator.backward"),
    "of a tensor": (f"for x, y in loader:\n    {LOSS}; loss.backward()", r"line 13 .*accelerator.backward\(loss\)"),
    "under an if": (f"for x, y in loader:\n    {LOSS}\n    if x.any():\n        {STEP}", "line 15 .*under an if"),
    "arguments": (f"for x, y in loader:\n    {LOSS}; accelerator.backward(loss, retain_graph=True)", "more than the"),
    "in a function": (
        f"def train(x, y):\n    {LOSS}; {STEP}\nfor x, y in loader:\n    train(x, y)",
        "outside the body",
    ),
    "skipped": (f"for x, y in loader:\n    {LOSS}\n    if loss > 2: continue\n    {STEP}", "line 14 leaves the turn"),
    "returned": (f"for x, y in loader:\n    {LOSS}; {STEP}\n    return", "return in the loop of line 12"),
    "else": (f"for x, y in loader:\n    {LOSS}; {STEP}\nelse:\n    pass", "else in the loop of line 12"),
    "zip": (f"for (x, y), n in zip(loader, range(9)):\n    {LOSS}; {STEP}", "line 12: .*enumerate"),
    "carried": (
        f"for x, y in loader:\n    hidden = hidden + model(x).mean(); loss = hidden.square(); {STEP}",
        "line 13 reads hidden from the batch before",
    ),
    "batch": (f"for x, y in loader:\n    {LOSS}; {STEP}\n    total += len(x)", "line 14: x belongs to one micro-batch"),
    "predictions": (
        f"for x, y in loader:\n    out = model(x); loss = (out - y).square().mean(); {STEP}\n    seen += [out.mean(0)]",
        "line 13: out belongs to one micro-batch",
    ),
    "counts": (
        f"for x, y in loader:\n    {LOSS}\n    total += (y > 0).sum()\n    {STEP}",
        "line 14: y belongs to one micro-batch",
    ),
    "closure": (
        f"def show():\n    return total\nfor x, y in loader:\n    {LOSS}; {STEP}\n    total += loss.item()",
        "line 12: a function reads total",
    ),
    "changed between": (
        f"for x, y in loader:\n    out = model(x)\n    model.eval()\n    loss = (out - y).square().mean(); {STEP}",
        "line 14 binds or changes model between",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_loops_that_cannot_be_divided_are_refused_in_the_first_step(name: str) -> None:
    loop, sentence = REFUSED[name]
    with pytest.raises((SpecError, TrainingError), match=sentence):
        run(loop)


def test_values_of_a_micro_batch_cannot_be_used_after_the_loop() -> None:
    loop = f"for x, y in loader:\n    out = model(x) * 1; loss = (out - y).square().mean(); {STEP}\nseen = getattr\n"
    names = run(loop, inside=False)
    with pytest.raises(TrainingError, match="x belongs to one micro-batch"):
        names["x"].size(0)
    assert "not all members" in repr(names["out"])


def test_what_an_evaluation_leaves_is_bound_anew_or_refused() -> None:
    loop = f"""
    class Output(torch.nn.modules.container.OrderedDict): pass
    for epoch in range(2):
        for x, y in loader:
            {LOSS}; {STEP}
        # read
        for x, y in loader:
            found = Output(loss=nn.functional.mse_loss(model(x), y).item())
        seen.append(found["loss"])
    """
    assert len(run(loop)["seen"]) == 2
    with pytest.raises(TrainingError, match="line 19 binds found, a Output"):
        run(loop.replace("# read", "if epoch: seen.append(found['loss'])"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mixed_precision": "fp16"}, "mixed_precision='fp16'.*'bf16'"),
        ({"dynamo_backend": "inductor"}, r"dynamo_backend=.*torch.compile\(model\)"),
        ({"parallelism_config": object()}, "parallelism_config=.*--replica"),
    ],
)
def test_arguments_that_cannot_be_kept_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        Accelerator(cpu=True, **options)


def test_what_was_prepared_and_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    second = "optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=1.0))\n"
    loop = f"for x, y in loader:\n    {LOSS}; {STEP}\n"
    with pytest.raises(SpecError, match="2 optimizers were prepared"):
        run(second + loop)
    other = "other = accelerator.prepare(torch.utils.data.DataLoader(loader.dataset, batch_size=2))\n"
    with pytest.raises(SpecError, match="a second prepared loader"):
        run(loop + other + loop.replace("loader", "other"))
    for call in ("load_state('x')", "skip_first_batches(loader, 2)"):
        with pytest.raises(SpecError, match="checkpoint="):
            run(f"accelerator.{call}")


def test_one_process_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = f"""
    accelerator.init_trackers("run")
    @accelerator.on_main_process
    def note(): seen.append("main")
    for x, y in loader:
        {LOSS}; {STEP}
        accelerator.log({{"loss": loss.item()}})
    accelerator.print("printed"); note()
    accelerator.save_state("{tmp_path}/state"); accelerator.save(model.state_dict(), "{tmp_path}/model")
    """
    names = run(loop, log_with="tensorboard", project_dir=str(tmp_path))
    assert names["seen"] == ["main"] and capsys.readouterr().out == "printed\n"
    assert (tmp_path / "state").is_dir() and (tmp_path / "model").exists() and list(tmp_path.glob("run/**/events*"))
    accelerator = names["accelerator"]
    accelerator._is_main = False
    for path in ("state2", "model2"):
        (accelerator.save_state if "state" in path else lambda f: accelerator.save({}, f))(str(tmp_path / path))
    accelerator.print("printed")
    names["note"]()
    assert not capsys.readouterr().out and names["seen"] == ["main"] and not list(tmp_path.glob("*2"))


def test_it_continues_from_a_checkpoint_of_the_session(tmp_path: Path) -> None:
    whole = run(ACCUMULATED, gradient_accumulation_steps=2)
    off = ACCUMULATED + "        if len(seen) == 9: raise RuntimeError('the power is off')\n"
    kept = {"gradient_accumulation_steps": 2, "checkpoint": hp.Checkpoint(str(tmp_path / "kept"), every_steps=2)}
    with pytest.raises(RuntimeError, match="the power is off"), cell_end.ending():
        run(off, **kept)
    again = run(ACCUMULATED, **kept)
    assert torch.equal(again["model"].weight, whole["model"].weight)
    assert again["seen"] == whole["seen"] and again["total"] == whole["total"]


def test_a_turn_that_is_in_the_state_already_has_gradients_to_clip() -> None:
    """A newcomer was given the state of its peers while it was in its step: the session adds no gradient to it."""
    accelerate.Accelerator(cpu=True)
    weights = torch.nn.Parameter(torch.ones(3))
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    optimizer = PreparedOptimizer(torch.optim.SGD([weights, frozen], lr=0.1))
    optimizer.show()
    optimizer.stand_in()
    torch.nn.utils.clip_grad_value_([weights], 0.3)
    assert weights.grad is not None and not weights.grad.any() and frozen.grad is None
    weights.grad = torch.ones(3)
    optimizer.stand_in()
    assert weights.grad.all()
