"""Replicas of two ranks: FSDP2 within a replica, our reduction between them; lost and rejoined as a unit."""

from __future__ import annotations

import os
import random
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import safetensors.torch
import torch

from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.notebook.arguments import cell_parser, parse
from jupyter_hyperpod.policy.recovery import MemberState
from jupyter_hyperpod.runtime.checkpoint.store import MANIFEST, Directory
from jupyter_hyperpod.runtime.checkpoint.writer import file_of
from jupyter_hyperpod.runtime.comm.shards import check
from jupyter_hyperpod.runtime.worker.replica_state import combined, merged

from .conftest import STEPS, Run, Submit, alive

SCHEDULES = 2

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
    run = replicas(job, 2, env={"PAUSE_S": "0.03"})
    run.until_step(2)
    kill, hang = signal.SIGKILL, signal.SIGSTOP
    victims = [("the leader", kill, (0,)), ("a follower", kill, (1,)), ("both", kill, (0, 1)), ("one", hang, (1,))]
    for count, (name, number, shards) in enumerate(victims, start=1):
        pids = ranks_of(run, 1)
        assert len(pids) == 2
        for shard in shards:
            os.kill(pids[shard], number)
        run.until_event("member.lost", count)
        run.until_world(2)
        lost = len(run.of_kind("member.lost"))
        assert lost == count, f"{name}: one member is lost, however many of its ranks die\n{run.story()}"
        assert not any(alive(pid) for pid in pids)
    view = run.finish()
    for incident in (i for i in view["incidents"] if i["cause"] != "straggler"):
        assert {"resumed", "rejoined"} <= {stage["stage"] for stage in incident["stages"]}, run.story()
    run.same_as(calm)


def test_a_killed_node_with_one_of_three_replicas(job: Submit, calm: Run) -> None:
    run = replicas(job, 3, env={"PAUSE_S": "0.03"})
    run.until_step(4)
    run.kill_node(0)
    run.until_world(3)
    run.finish()
    run.same_as(calm)


def test_a_replica_grows_in_with_a_snapshot_shard_by_shard(job: Submit, calm: Run) -> None:
    run = replicas(job, 2, env={"PAUSE_S": "0.03"})
    run.until_step(3)
    run.scale(1)
    run.until_world(1)
    run.scale(2)
    run.until_world(2)
    run.finish()
    plans = [e.data["reason"] for e in run.of_kind("decision.made") if e.data["policy"] == "recovery"]
    assert "newcomer" not in plans[-1], "it came with the state"
    assert not run.of_kind("member.lost")
    run.same_as(calm)


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_a_random_schedule_of_faults_to_ranks_of_replicas_changes_no_bit(job: Submit, calm: Run, seed: int) -> None:
    rng = random.Random(1000 + seed)
    nodes = rng.randint(2, 3)
    run = replicas(job, nodes, env={"PAUSE_S": "0.004"})
    struck = []
    for step in sorted(rng.sample(range(1, STEPS - 3), 4)):
        run.until_step(step)
        if run.ended:
            break
        what = rng.choice(["kill", "kill", "kill", "hang", "scale"])
        rank, shard = rng.randrange(nodes), rng.randrange(2)
        struck.append((step, what, rank, shard))
        if what == "scale":
            run.scale(1 + rank)
        else:
            with suppress(OSError, StopIteration, IndexError):  # the membership changed between our look and this
                os.kill(ranks_of(run, rank)[shard], signal.SIGKILL if what == "kill" else signal.SIGSTOP)
    print(f"seed {seed}: {nodes} nodes, {struck}")
    run.finish()
    run.same_as(calm)


DURABLE = TRAIN.replace(
    "scheduler=scheduler)",
    "scheduler=scheduler, checkpoint=hp.Checkpoint(os.environ['PLACE'], every_steps=4))",
)


def test_everything_killed_goes_on_from_the_shards_that_were_saved(job: Submit, calm: Run, tmp_path: Path) -> None:
    run = job(DURABLE, nodes=2, replica=2, env={"PLACE": str(tmp_path / "run"), "PAUSE_S": "0.1"})
    run.until_event("checkpoint.saved", count=2)
    for pid in (run.worker_pid(0), run.worker_pid(1)):
        os.kill(pid, signal.SIGKILL)
    view = run.finish()
    run.same_as(calm)
    rungs = {incident["rung"] for incident in view["incidents"] if incident["cause"] != "straggler"}
    assert rungs == {4}, run.story()
    assert run.of_kind("checkpoint.loaded")[0].data["step"] >= 8
    newest = tmp_path / "run" / Path(view["checkpoint"]["path"]).name
    assert sorted(path.name for path in newest.iterdir()) == [MANIFEST, file_of(0, 2), file_of(1, 2)]
    shards = [safetensors.torch.load_file(newest / file_of(shard, 2)) for shard in range(2)]
    halves = [shard["model.head.weight"].shape for shard in shards]
    assert sum(rows for rows, _ in halves) == 13 and halves[0] != halves[1], "13 rows do not halve"


def test_a_damaged_shard_spoils_its_checkpoint_for_all_ranks(job: Submit, calm: Run, tmp_path: Path) -> None:
    place = {"PLACE": str(tmp_path / "run"), "PAUSE_S": "0.1"}
    first = job(DURABLE, nodes=2, replica=2, env=place)
    first.until_event("checkpoint.saved", count=2)
    first.kill(0)  # whoever is rank 0 now writes, and finds what the other has left
    first.until_event("checkpoint.saved", count=len(first.of_kind("checkpoint.saved")) + 1)
    first.stop()
    first.finish("stopped")
    newest = [path for _, path in Directory(tmp_path / "run").committed()]
    with open(newest[0] / file_of(1, 2), "r+b") as file:
        file.seek(-9, os.SEEK_END)
        file.write(b"\xa5")
    second = job(DURABLE, nodes=1, replica=2, env=place | {"PAUSE_S": "0"})
    second.finish()
    assert [e.data["path"] for e in second.of_kind("checkpoint.refused")] == [str(newest[0])], second.story()
    loaded = [e.data["step"] for e in second.of_kind("checkpoint.loaded")]
    assert loaded == [int(newest[1].name.split("-")[1])]
    expected = calm.losses()
    assert second.losses() == {step: expected[step] for step in range(loaded[0] + 1, STEPS + 1)}, second.story()
    assert second.view["digest"] == calm.view["digest"]
    assert not list((tmp_path / "run").glob(".saving-*"))


GOING_BACK = DURABLE.replace(
    "        session.log(loss=loss)\n",
    "        session.log(loss=loss)\n"
    "        if step.number == 10 and not back:\n"
    "            with torch.no_grad(): model.head.bias.add_(1.0)\n"
    "            back.append(session.restore())\n",
).replace("settings = dict(", "back = []\nsettings = dict(")


def test_newcomers_come_through_storage_and_all_go_back_together(job: Submit, calm: Run, tmp_path: Path) -> None:
    place = {"PLACE": str(tmp_path / "run"), "PAUSE_S": "0.02"}
    run = job(GOING_BACK, nodes=2, replica=2, components=("init", "data", "inprocess"), env=place)
    run.until_step(5)
    run.kill(1)
    run.until_world(2)
    run.finish(timeout_s=180.0)
    run.same_as(calm)
    loaded = [e.data["step"] for e in run.of_kind("checkpoint.loaded")]
    assert 8 in loaded and min(loaded) >= 5, run.story()


# a bit flips in one rank's shard, behind torch's back, while step 6 is computed
FLIPPING = TRAIN.replace(
    "    time.sleep(pause_s)\n",
    "    time.sleep(pause_s)\n    if session.step == 5 and session.rank == 3:\n        flip()\n",
).replace(
    "settings = dict(",
    "def flip(done=[]):\n"
    "    if not done:\n"
    "        model.head.weight.to_local().detach().numpy().view('u1')[0] ^= 4\n"
    "        done.append(1)\n"
    "settings = dict(audit=0.5, ",
)


def test_a_bit_that_flips_in_one_shard_convicts_its_replica(job: Submit, calm: Run) -> None:
    run = job(FLIPPING, nodes=2, replica=2, env={"PAUSE_S": "0"})
    view = run.finish()
    corrupt = [incident for incident in view["incidents"] if incident["cause"] != "straggler"]
    assert [(i["cause"], i["rank"]) for i in corrupt] == [("silent data corruption", 1)], run.story()
    assert "head.weight" in run.story()
    run.same_as(calm)


def test_the_cell_of_the_guide_trains_as_it_is_printed(job: Submit) -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "large-models.md").read_text()
    (cell,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    magic, _, source = cell.partition("\n")
    options = vars(parse(cell_parser(), magic.removeprefix("%%hyperpod")))
    assert options["replica"] == 2
    run = job(source, nodes=options["nodes"], elastic=str(options["elastic"]), replica=options["replica"])
    view = run.finish()
    assert re.fullmatch(r"loss \d\.\d{3} with 4 ranks\n", run.text()[0])
    assert view["step"] == 12


UNSHARDED = """
import torch, jupyter_hyperpod as hp
model = torch.nn.Linear(3, 1)
with hp.Session(model, torch.optim.SGD(model.parameters(), lr=0.1), [torch.ones(3)] * 8, global_batch=4, micro_batch=2):
    pass
"""
EARLY = TRAIN.replace("settings = dict(", "if dist.get_rank() == 1: raise SystemExit(0)\nsettings = dict(")
FAILING = "import os\nif os.environ['RANK'] == '1': raise ValueError('of shard 1')\n" + TRAIN


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (UNSHARDED, r"SpecError on rank 0 at line \d+: parameter 0 of shape \(1, 3\) is not sharded .* 2 ranks"),
        (EARLY, "TrainingError on rank 0 .*shard 1 of this replica ended its cell"),
        (FAILING, "ValueError on rank 0 at line 2: of shard 1"),
    ],
    ids=["unsharded", "early", "failing"],
)
def test_what_a_replica_cannot_train_ends_the_job_with_the_reason(job: Submit, source: str, reason: str) -> None:
    run = job(source, nodes=1, replica=2, env={"PAUSE_S": "0"})
    assert re.match(reason, run.finish("failed")["reason"]), run.view["reason"]
    assert len(run.of_kind("user.error")) == 1
    assert not run.of_kind("member.lost")


def test_a_micro_batch_has_an_equal_part_for_every_rank() -> None:
    with pytest.raises(SpecError, match="micro_batch is 3 and a replica has 2 ranks"):
        check([], 2, 3)
    check([torch.nn.Parameter(torch.zeros(2))], 1, 3)


def test_a_replica_holds_what_all_its_ranks_hold() -> None:
    whole = merged([MemberState(3, ((0, 2), (2, 3)), 2, "a"), MemberState(3, ((0, 2),), 1, "b")])
    assert (whole.step, whole.nodes, whole.history) == (3, ((0, 2),), 1)
    assert whole.digest == combined(["a", "b"]) != combined(["b", "a"])


def test_metrics_are_means_over_the_ranks_and_weights_and_lanes_are_refused(job: Submit) -> None:
    mean = "    return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())"
    several = f"{mean}, *([3.0] if session.step == 2 else []), {{'first': inputs[0, 0], 'shard': session.rank % 2}}"
    opened = "    for step in session.steps(24):\n"
    declared = (
        "    try: session.lanes(h=torch.zeros(1))\n    except Exception as refused: print(refused)\n"
        "    for step in session.steps(24):\n        if step.number == 2: print('metrics', metrics)\n"
    )
    logged = "        session.log(loss=loss)\n"
    for line in (mean, opened, logged):
        assert TRAIN.count(line) == 1
    source = TRAIN.replace(mean, several).replace(opened, declared)
    run = job(source.replace(logged, f"{logged}        metrics = step.metrics\n"), nodes=1, spares=0, replica=2)
    reason = str(run.finish("failed")["reason"])
    assert "a weight, and this member is a replica of several ranks" in reason and run.view["step"] == 2
    lines = [line for text in run.text().values() for line in text.splitlines()]
    assert len(lines) == 4, lines
    assert sum("a lane has no one owner: run without --replica" in line for line in lines) == 2
    metrics = {line for line in lines if line.startswith("metrics ")}
    assert len(metrics) == 1 and "'shard': 0.5" in metrics.pop()
