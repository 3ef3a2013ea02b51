"""What a cell keeps from step to step, on members that join later: the same bits as in an undisturbed run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.runtime.conftest import Run, Submit

# Each changes the result of the training, and the last line prints what the cell kept.
EMA = """
import copy
ema = copy.deepcopy(model)
session.register(ema=ema)
for step in session.steps(STEPS):
    loss = step.run(loss_fn)
    with torch.no_grad():
        for mean, weight in zip(ema.parameters(), model.parameters()):
            mean.lerp_(weight, 0.1)
print("kept", sum(p.double().sum().item() for p in ema.parameters()).hex())
"""
VALUES = """
session.state.scale, session.state.best, session.state.history = 1.0, 1e9, []
for step in session.steps(STEPS):
    loss = step.run(lambda batch: loss_fn(batch) * session.state.scale)
    session.state.scale *= 0.97
    session.state.best = min(session.state.best, loss)
    session.state.history.append(loss)
print("kept", session.state.best.hex(), sum(session.state.history).hex(), len(session.state.history))
"""
SCHEDULER = """
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.7)
session.register(plateau=plateau)
for step in session.steps(STEPS):
    plateau.step(step.run(loss_fn))
print("kept", optimizer.param_groups[0]["lr"].hex())
"""
CLIPPED = """
for step in session.steps(STEPS):
    step.run(loss_fn)
    for weight in model.parameters():
        weight.data.clamp_(-0.3, 0.3)
print("kept", sum(p.double().sum().item() for p in model.parameters()).hex())
"""
GENERATORS = """
import random, numpy
own = {"torch": torch.Generator().manual_seed(1), "python": random.Random(1), "numpy": numpy.random.default_rng(1)}
session.register(**own)
noise = 0.0
for step in session.steps(STEPS):
    noise = torch.rand((), generator=own["torch"]).item() + own["python"].random() + own["numpy"].random()
    step.run(lambda batch: loss_fn(batch) * (1 + noise))
print("kept", noise.hex())
"""
EPOCHS = """
session.state.means = []
for epoch in range(4):
    total = 0.0
    for step in session.steps(STEPS // 4):
        total += step.run(loss_fn)
        session.state.total = total
    session.state.means.append(session.state.total)
    for group in optimizer.param_groups:
        group["lr"] *= 0.8
print("kept", [mean.hex() for mean in session.state.means])
"""
OWN_RATE = """
for step in session.steps(STEPS):
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 / step.number
    step.run(loss_fn)
print("kept", optimizer.param_groups[0]["lr"].hex())
"""
PLAIN = """
import copy, collections
best, history, recent, scale = 1e9, [], collections.deque(maxlen=3), 1.0
mean = copy.deepcopy(model)
counts = {"turns": 0}
turns = 0

def note(values, value):
    values.append(value)

def count():
    global turns
    turns += 1

for epoch in range(4):
    total = 0.0
    for step in session.steps(STEPS // 4):
        loss = step.run(lambda batch: loss_fn(batch) * scale)
        scale *= 0.97
        total += loss
        note(history, loss)
        recent.append(loss)
        counts["turns"] += 1
        count()
        with torch.no_grad():
            for one, weight in zip(mean.parameters(), model.parameters()):
                one.lerp_(weight, 0.1)
        if loss < best:
            best = loss
            weights = {name: value.clone() for name, value in model.state_dict().items()}
    history.append(total)
    for group in optimizer.param_groups:
        group["lr"] *= 0.8
whole = [best, loss, scale, *history, *recent, *counts.values(), turns, weights["0.weight"].sum().item()]
print("kept", [float(value).hex() for value in (*whole, sum(p.double().sum().item() for p in mean.parameters()))])
"""
FUNCTION = """
class Ema:
    def __init__(self, model):
        self.model = model
        self.shadow = {name: value.clone() for name, value in model.named_parameters()}
        self.updates = 0

    def update(self):
        self.updates += 1
        for name, value in self.model.named_parameters():
            self.shadow[name] = self.shadow[name] * 0.9 + value.detach() * 0.1

def train(session):
    ema, level, hidden = Ema(model), 1.0, torch.zeros(3)
    for step in session.steps(STEPS):
        loss = step.run(lambda batch: loss_fn(batch) * level)
        level = level * 0.97
        hidden = (hidden + loss).sin()
        ema.update()
    return ema, level, hidden, loss

ema, level, hidden, loss = train(session)
print("kept", level.hex(), loss.hex(), ema.updates, hidden.tolist(), ema.shadow["0.weight"].sum().item().hex())
"""
WITH_EPOCHS = """
best, bad = 1e9, 0
for epoch in session.epochs(4):
    total = 0.0
    for step in session.steps(STEPS // 4):
        total += step.run(loss_fn)
    bad = bad + 1 if total > best else 0
    best = min(best, total)
    if bad > 3:
        break
print("kept", epoch, best.hex(), total.hex())
"""
GLOBAL_GENERATORS = """
import random, numpy
for step in session.steps(STEPS):
    noise = random.random() + numpy.random.rand() + torch.rand(()).item()
    step.run(lambda batch: loss_fn(batch) * (1 + noise))
print("kept", random.random().hex())
"""
OTHER_MODULE = """
critic = nn.Linear(1, 1)
its_optimizer = torch.optim.Adam(critic.parameters(), lr=0.01)
alias = points = []
for step in session.steps(STEPS):
    loss = step.run(lambda batch: loss_fn(batch) * (1 + critic(torch.ones(1)).detach().item() ** 2))
    (critic(torch.full((1,), loss)) - 1).pow(2).sum().backward()
    its_optimizer.step()
    its_optimizer.zero_grad()
    points = alias
    points.append(loss)
    alias.append(step.number)
print("kept", critic.weight.item().hex(), len(alias), sum(points).hex())
"""
UNFROZEN = """
model[0].requires_grad_(False)
model.scale = 1.0
for step in session.steps(STEPS):
    if step.number == 6:
        model[0].requires_grad_(True)
    step.run(lambda batch: loss_fn(batch) * model.scale)
    model.scale *= 0.98
print("kept", model.scale.hex(), model[0].weight.sum().item().hex())
"""
NORMALISED = """
import torch.nn.functional as F
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
with hp.Session(model, optimizer, data, global_batch=16, micro_batch=4, seed=3, audit=1.0) as session:
    for step in session.steps(STEPS):
        step.run(loss_fn)
print("kept", model[1].running_var.sum().item().hex(), int(model[1].num_batches_tracked))
"""
OBJECTS = """
class Count:
    total = 0

    def __init__(self):
        self.seen = []

    def on_step(self, loss):
        Count.total += 1
        self.seen.append(loss)

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 1.0

    def forward(self, loss):
        return loss * self.scale

def decayed():
    level = 1.0
    def step_level():
        nonlocal level
        level *= 0.98
    def read():
        return level
    return step_level, read

def track(loss):
    track.history.append(loss)

track.history = []
step_level, level = decayed()
criterion, callbacks = Scaled(), [Count(), Count()]
average = [p.detach().clone() for p in model.parameters()]
drawn = torch.Generator().manual_seed(4)
noise = 0.0

def update(values, parameters):
    for value, parameter in zip(values, parameters):
        value.data.mul_(0.9).add_(parameter.data, alpha=0.1)

for step in session.steps(STEPS):
    noise = torch.rand(1, generator=drawn).item()
    loss = step.run(lambda batch: criterion(loss_fn(batch)) * level() + noise)
    criterion.scale *= 0.99
    model[3].p *= 0.95
    step_level()
    track(loss)
    update(average, model.parameters())
    for callback in callbacks:
        callback.on_step(loss)
whole = [Count.total, level(), noise, criterion.scale, *track.history, *callbacks[1].seen]
print("kept", [float(value).hex() for value in (*whole, *(value.double().sum().item() for value in average))])
"""
NESTED = """
def losses(session, count):
    for step in session.steps(count):
        yield step.run(loss_fn)

def one_epoch(session):
    total = 0.0
    for loss in losses(session, STEPS // 4):
        total += loss
    return total

class Stopper:
    def __init__(self):
        self.best, self.bad = 1e9, 0

    def __call__(self, value):
        self.bad = 0 if value < self.best else self.bad + 1
        self.best = min(self.best, value)
        return self.bad > 9

means, stop = [], Stopper()
for epoch in session.epochs(4):
    means.append(one_epoch(session))
    if stop(means[-1]):
        break
print("kept", [mean.hex() for mean in means], stop.best.hex(), stop.bad)
"""
TWO_LOOPS = """
scale, seen = 1.0, []
for step in session.steps(8):
    seen.append(step.run(lambda batch: loss_fn(batch) * scale))
    scale *= 1.1
damping, anchor = 1.0, model[0].weight.detach().clone()
for step in session.steps(STEPS - 8):
    seen.append(step.run(lambda batch: loss_fn(batch) * scale * damping + (model[0].weight - anchor).pow(2).sum()))
    damping *= 0.95
print("kept", scale.hex(), damping.hex(), len(seen), sum(seen).hex())
"""
PATHS = """
import os, networkx, dataclasses
os.environ["SCALE"] = "1.0"
networkx.Graph.tally = 0
graph = networkx.DiGraph()

def smoothed(value, seen=[]):
    seen.append(value)
    return sum(seen[-3:]) / 3

def made():
    box = {"level": 1.0}
    return lambda: box.update(level=box["level"] * 0.97), lambda: box["level"]

@dataclasses.dataclass
class Record:
    step: int
    loss: float

cool, level = made()
records, tasks = [], {"cool": cool, "graph": graph}
for step in session.steps(STEPS):
    scale = float(os.environ["SCALE"]) * level() * (1 + 0.01 * graph.size() + 0.01 * networkx.Graph.tally)
    loss = step.run(lambda batch: loss_fn(batch) * scale)
    optimizer.param_groups[0]["lr"] = 0.01 / (1 + smoothed(loss) + 0.1 * len(records))
    os.environ["SCALE"] = str(float(os.environ["SCALE"]) * 0.99)
    networkx.Graph.tally += 1
    records.append(Record(step.number, loss))
    tasks["cool"]()
    if step.number == 7:
        tasks["graph"].add_edge(1, 2)
print("kept", os.environ["SCALE"], level().hex(), graph.size(), networkx.Graph.tally, records[-1].loss.hex())
"""
BEFORE = """
import os, time, torch, jupyter_hyperpod as hp
from torch import nn

STEPS = 24
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
samples = torch.randn(50, 8)
data = [(x, x.sum().sin()) for x in samples]

def loss_fn(batch):
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs).squeeze(-1), targets)

with hp.Session(model, optimizer, data, global_batch=16, micro_batch=2, seed=3, audit=1.0) as session:
"""


def cell(loop: str) -> str:
    if "hp.Session" in loop:
        return BEFORE.rpartition("with hp.Session")[0] + loop
    return BEFORE + "".join(f"    {line}\n" for line in loop.strip().splitlines())


def kept(run: Run) -> set[str]:
    """What all ranks printed at the end."""
    return {line for text in run.text().values() for line in text.splitlines() if line.startswith("kept ")}


LOOPS = {
    "registered average": EMA,
    "values": VALUES,
    "scheduler": SCHEDULER,
    "clipped weights": CLIPPED,
    "generators": GENERATORS,
    "own rate": OWN_RATE,
    "epochs": EPOCHS,
    "plain variables": PLAIN,
    "function": FUNCTION,
    "session epochs": WITH_EPOCHS,
    "two loops": TWO_LOOPS,
    "global generators": GLOBAL_GENERATORS,
    "another module": OTHER_MODULE,
    "unfrozen layers": UNFROZEN,
    "batch normalisation": NORMALISED,
    "objects": OBJECTS,
    "nested calls": NESTED,
    "paths": PATHS,
}


def test_a_writer_that_only_rank_0_has(job: Submit) -> None:
    loop = """
if session.rank == 0:
    lines = []
for step in session.steps(STEPS):
    step.run(loss_fn)
    if session.is_main:
        lines.append(step.number)
"""
    run = job(cell(loop), env={"PAUSE_S": "0.03"})
    run.until_step(3)
    run.kill(0)
    reason = str(run.finish("failed")["reason"])
    assert re.search(r"node-\d never ran line 18, where the others bound lines", reason), reason


def test_a_name_that_nobody_has_is_an_error_of_the_program(job: Submit) -> None:
    loop = """
for step in session.steps(STEPS):
    if step.number > 1:
        lines.append(step.number)
    step.run(loss_fn)
    if step.number > 3:
        lines = []
"""
    reason = str(job(cell(loop), nodes=1).finish("failed")["reason"])
    assert "NameError" in reason and "never ran" not in reason


def test_a_function_that_only_the_first_step_defines(job: Submit) -> None:
    loop = """
for step in session.steps(STEPS):
    step.run(loss_fn)
    if step.number == 1:
        def shown(number): return f"step {number}"
    shown(step.number)
"""
    run = job(cell(loop), env={"PAUSE_S": "0.03"})
    run.until_step(3)
    run.kill(1)
    reason = str(run.finish("failed")["reason"])
    found = re.search(r"(node-\d) joined after step (\d+) and never ran line 20, where the others bound shown", reason)
    assert found and int(found[2]) >= 3, reason


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_every_member_is_lost_once(job: Submit, loop: str) -> None:
    undisturbed = job(cell(loop), nodes=1)
    undisturbed.finish()
    run = job(cell(loop), pause_s=0.03)
    for losses, step in enumerate((3, 8, 13), 1):  # afterwards every member is one that joined later
        run.until_step(step)
        run.kill(0)
        run.until_made_good(losses, size=3)
    run.full_speed()
    run.finish()
    run.same_as(undisturbed)
    assert len(kept(undisturbed)) == 1 and kept(run) == kept(undisturbed)


LEFT = """
def slow_loss(batch):
    waits_until = time.monotonic() + 2.0  # not for ever: between two micro-batches it offers its state
    while session.step == 2 and not os.path.exists(os.environ["CALLED"]) and time.monotonic() < waits_until:
        time.sleep(0.01)  # a newcomer gets ready, and is called for this step's end
    return loss_fn(batch)

history = []
for epoch in session.epochs(1):
    for step in session.steps(COUNT):
        history.append(step.run(slow_loss))
        if step.number == 3:
            break
    history.append(float(epoch))
print("kept", len(history), sum(history).hex())
"""


MEET = "the members meet when step 3 is committed"


@pytest.mark.parametrize("count", [8, 3])
def test_a_member_that_arrives_while_the_cell_leaves_its_loop(job: Submit, tmp_path: Path, count: int) -> None:
    source, called = cell(LEFT).replace("COUNT", str(count)), tmp_path / "called"
    undisturbed = job(source, nodes=1, env={"CALLED": str(tmp_path)})
    undisturbed.finish()
    run = job(source, nodes=1, elastic="1:2", env={"CALLED": str(called)})
    run.until_step(2)
    run.scale(2)
    run.until(lambda: run.ended or MEET in run.story(), 60)
    called.touch()
    run.finish()
    assert (run.losses(), run.view["digest"]) == (undisturbed.losses(), undisturbed.view["digest"]), run.story()
    assert kept(run) == kept(undisturbed), run.story()
    assert MEET in run.story()


REPLACED = """
import torch, jupyter_hyperpod as hp
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Sequential(nn.ReLU(), nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(x, x.sum()) for x in torch.randn(32, 4)]
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(8):
        step.run(lambda batch: nn.functional.mse_loss(model(batch[0]).squeeze(-1), batch[1]))
        if step.number == 4:
            CHANGE
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model[1] = nn.GELU()", "has replaced '1' of the model, which is another GELU now"),
        ("model[2].append(nn.Tanh())", "has replaced '2.2' of the model, which is another Tanh now"),
        ("del model[2][0]", "has replaced '2' of the model, which is another module now"),
        (
            "model[0].bias = nn.Parameter(torch.zeros(8))",
            "'0.bias' of the model, .* Change the values of the parameter",
        ),
    ],
)
def test_a_part_of_the_model_that_the_loop_replaces_is_refused(job: Submit, change: str, words: str) -> None:
    """A member that joined later would train on with the part that was there."""
    view = job(REPLACED.replace("CHANGE", change), nodes=2).finish("failed")
    assert view["step"] in (3, 4)  # the last commit may be under way
    assert re.search(words, view["error"]["message"]), view["error"]
