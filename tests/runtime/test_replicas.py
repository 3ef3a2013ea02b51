"""Replicas of two ranks: FSDP2 within a replica, our reduction between them; lost and rejoined as a unit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from .conftest import STEPS, Run, Submit, alive

TRAIN = """
import os, time, torch, jupyter_hyperpod as hp
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.2),
                                 nn.Linear(2 * width, width))

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)

class Model(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(13, width), nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 13)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = Model()
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)
tokens = torch.randint(0, 13, (50, 9))
data = [(x[:-1], x[1:]) for x in tokens]
pause_s = float(os.environ.get("PAUSE_S", "0.004"))

def loss_fn(batch):
    time.sleep(pause_s)
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

settings = dict(global_batch=16, micro_batch=2, seed=3, max_grad_norm=1.0, scheduler=scheduler)
with hp.Session(model, optimizer, data, **settings) as session:
    for step in session.steps(24):
        loss = step.run(loss_fn)
        session.log(loss=loss)
dist.destroy_process_group()
"""


def replicas(job: Submit, nodes: int, **fields: object) -> Run:
    return job(TRAIN, nodes=nodes, replica=2, **fields)


@pytest.fixture(scope="module")
def calm(request: pytest.FixtureRequest) -> Run:
    """One replica, undisturbed."""
    from .conftest import start, wait_for_idle

    store = request.getfixturevalue("shared_cluster")
    wait_for_idle(store)
    run = start(store, TRAIN, nodes=1, spares=0, replica=2, env={"PAUSE_S": "0"})
    run.finish()
    assert len(run.losses()) == STEPS
    wait_for_idle(store)
    return run


def ranks_of(run: Run, member_rank: int) -> list[int]:
    """The processes of one replica, its leader first: all that its agent has forked."""
    leader = run.worker_pid(member_rank)
    agent = int(Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[1])
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    return sorted(int(pid) for pid in children)


def test_a_killed_rank_takes_its_replica_along_and_it_rejoins(job: Submit, calm: Run) -> None:
    run = replicas(job, 2, env={"PAUSE_S": "0.01"})
    run.until_step(2)
    victims = [("the leader", (0,)), ("a follower", (1,)), ("both", (0, 1))]
    for count, (name, shards) in enumerate(victims, start=1):
        pids = ranks_of(run, 1)
        assert len(pids) == 2
        for shard in shards:
            os.kill(pids[shard], signal.SIGKILL)
        run.until_event("member.lost", count)
        run.until_world(2)
        lost = len(run.of_kind("member.lost"))
        assert lost == count, f"{name}: one member is lost, however many of its ranks die\n{run.story()}"
        assert not any(alive(pid) for pid in pids)
    view = run.finish()
    for incident in view["incidents"]:
        assert {"resumed", "rejoined"} <= {stage["stage"] for stage in incident["stages"]}, run.story()
    run.same_as(calm)


def test_a_killed_node_with_one_of_three_replicas(job: Submit, calm: Run) -> None:
    run = replicas(job, 3, env={"PAUSE_S": "0.01"})
    run.until_step(4)
    run.kill_node(0)
    run.until_world(3)
    run.finish()
    run.same_as(calm)


def test_a_replica_grows_in_with_a_snapshot_shard_by_shard(job: Submit, calm: Run) -> None:
    run = replicas(job, 2, env={"PAUSE_S": "0.01"})
    run.until_step(3)
    run.scale(1)
    run.until_world(1)
    run.scale(2)
    run.until_world(2)
    run.finish()
    plans = [e.data["reason"] for e in run.of_kind("decision.made") if e.data["policy"] == "recovery"]
    assert "newcomer(s) get the state" not in plans[-1], "it came with the state"
    assert not run.of_kind("member.lost")
    run.same_as(calm)
