"""What micro-batches leave besides gradients, under kills: the bits of one undisturbed node."""

from __future__ import annotations

import pytest

from tests.runtime.conftest import STEPS, Run, Submit

BEFORE = """
import os, time, torch, jupyter_hyperpod as hp
from torch import nn
import torch.nn.functional as F

STEPS, PAUSE_S = 24, float(os.environ.get("PAUSE_S", "0"))
settings = dict(global_batch=16, micro_batch=2, seed=3, audit=1.0)
made = torch.Generator().manual_seed(5)
kept = []
"""
# Token-weighted, with masked sequences, a frequent micro-batch of weight 0, and metrics.
WEIGHTED = """
model = nn.Sequential(nn.Embedding(11, 8), nn.Dropout(0.1), nn.Linear(8, 11))
words = torch.randint(0, 11, (30, 9), generator=made)
lengths = torch.randint(0, 9, (30,), generator=made) * (torch.arange(30) % 3 == 0)
data = [(line[:-1], torch.where(torch.arange(8) < n, line[1:], -100)) for line, n in zip(words, lengths)]

def loss_fn(batch):
    time.sleep(PAUSE_S)
    inputs, targets = batch
    scores = model(inputs)
    total = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum")
    right = (scores.argmax(-1) == targets).sum()
    return total, (targets != -100).sum(), {"accuracy": right, "length": targets.ne(-100).sum() / 2}

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
with hp.Session(model, optimizer, data, max_grad_norm=0.5, **settings) as session:
    for step in session.steps(STEPS):
        step.run(loss_fn)
        session.log(**step.metrics)
        kept.append(step.metrics["accuracy"] * 8 + step.metrics["length"])
print("kept", len(kept), sum(kept).hex(), kept[-1].hex(), session.loss.hex())
"""
LSTM = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 6, num_layers=2, dropout=0.1), nn.Linear(6, 4)

    def forward(self, inputs, state):
        out, state = self.lstm(inputs, state)
        return self.head(out), state

model = Net()
text = torch.randn(8, 6 * STEPS + 1, 2, 4, generator=made)  # lanes, length, streams of a lane, numbers
data = [torch.zeros(1)] * 16
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
with hp.Session(model, optimizer, data, **settings) as session:
    begin = torch.full((2, 2, 6), session.rank / 9)  # differs by member: all take that of rank 0
    lanes = session.lanes(h=begin, c=torch.zeros(2, 2, 6), turns=torch.zeros((), dtype=torch.int16))

    def loss_fn(batch):
        time.sleep(PAUSE_S)
        begin = session.step * 6
        piece = text[lanes.index, begin : begin + 7]
        out, (h, c) = model(piece[:-1], (lanes.h, lanes.c))
        lanes.h, lanes.c = h.detach(), c.detach()
        lanes.turns += 1
        return F.mse_loss(out, piece[1:])

    for epoch in session.epochs(2):
        lanes.reset()
        for step in session.steps(STEPS // 2):
            if step.index % 5 == 3:
                lanes.reset()
            step.run(loss_fn)
    kept = [lane.h.double().sum().item().hex() for lane in lanes]
print("kept", kept, [int(lane.turns) for lane in lanes])
"""
# The queue of keys is a buffer of the model, changed after the step. The third of three members computes nothing.
QUEUE = """
import copy
encoder = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 5))
momentum = copy.deepcopy(encoder)
data = [torch.randn(6, generator=made) for _ in range(40)]
encoder.register_buffer("queue", F.normalize(torch.randn(48, 5, generator=made), dim=1))
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1, momentum=0.9)
with hp.Session(encoder, optimizer, data, **(settings | {"micro_batch": 8})) as session:
    lanes = session.lanes(keys=torch.zeros(8, 5))

    def loss_fn(images):
        time.sleep(PAUSE_S)
        queries = F.normalize(encoder(images + 0.1 * torch.randn_like(images)), dim=1)
        with torch.no_grad():
            lanes.keys = F.normalize(momentum(images + 0.1 * torch.randn_like(images)), dim=1)
        scores = torch.cat([(queries * lanes.keys).sum(1, keepdim=True), queries @ encoder.queue.T], dim=1)
        right = (scores.argmax(1) == 0).double().mean()
        return F.cross_entropy(scores / 0.2, torch.zeros(len(images), dtype=torch.long)), {"right": right}

    for step in session.steps(STEPS):
        step.run(loss_fn)
        with torch.no_grad():
            encoder.queue.copy_(torch.cat([encoder.queue, *(lane.keys for lane in lanes)])[-48:])
            for slow, fast in zip(momentum.parameters(), encoder.parameters()):
                slow.lerp_(fast, 0.05)
print("kept", encoder.queue.double().sum().item().hex(), step.metrics["right"].hex())
"""
CRITIC = """
from torch.nn.utils import parametrizations
model = nn.ModuleDict({
    "critic": nn.Sequential(
        nn.utils.spectral_norm(nn.Linear(4, 8)), nn.LeakyReLU(), nn.InstanceNorm1d(1, track_running_stats=True),
        parametrizations.spectral_norm(nn.Linear(8, 1)),
    ),
    "generator": nn.Linear(3, 4),
})
data = [torch.randn(1, 4, generator=made) for _ in range(40)]
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

def loss_fn(real):
    time.sleep(PAUSE_S)
    fake = model["generator"](torch.randn(len(real), 1, 3))
    critic = F.relu(1 - model["critic"](real)).mean() + F.relu(1 + model["critic"](fake.detach())).mean()
    return critic - model["critic"](fake).mean() * 0.1

with hp.Session(model, optimizer, data, **settings) as session:
    for step in session.steps(STEPS):
        step.run(loss_fn)
print("kept", [buffer.double().sum().item().hex() for buffer in model.buffers()])
"""
CELLS = {"weighted losses": WEIGHTED, "lanes": LSTM, "queue of keys": QUEUE, "spectral norm": CRITIC}
WAYS = {"weighted losses": "gloo", "lanes": "gloo", "queue of keys": "host", "spectral norm": "host"}


def kept(run: Run) -> set[str]:
    """What all ranks printed at the end."""
    return {line for text in run.text().values() for line in text.splitlines() if line.startswith("kept ")}


@pytest.mark.parametrize(("cell", "collectives"), [(cell, WAYS[name]) for name, cell in CELLS.items()], ids=CELLS)
def test_every_member_is_lost_once(job: Submit, cell: str, collectives: str) -> None:
    undisturbed = job(BEFORE + cell, nodes=1)
    undisturbed.finish()
    run = job(BEFORE + cell, env={"PAUSE_S": "0.03"}, collectives=collectives)
    for step in (3, 8, 14):  # afterwards every member is one that joined later
        run.until_step(step)
        run.kill(0)
        run.until_world(3)
    run.finish()
    run.same_as(undisturbed)
    assert run.view["step"] == STEPS
    assert len(kept(undisturbed)) == 1 and kept(run) == kept(undisturbed)


def test_members_that_declare_other_lanes_are_refused(job: Submit) -> None:
    shape = "begin = torch.full((2, 2, 6)"
    assert LSTM.count(shape) == 1
    run = job(BEFORE + LSTM.replace(shape, "begin = torch.full((2, 2, 6 + (session.rank == 1))"))
    reason = str(run.finish("failed")["reason"])
    assert "the state holds lanes {'h': (8, 2, 2, 6), " in reason and "give it the same names" in reason
    assert run.view["step"] == 0 and not run.of_kind("member.lost")
