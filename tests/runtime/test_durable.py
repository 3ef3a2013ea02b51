"""The durable rung: whatever happens to a checkpoint, what is loaded is whole, and the trajectory stays the same."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_hyperpod.bench.laboratory import wait_for_idle
from jupyter_hyperpod.planner.goodput import CheckpointCosts
from jupyter_hyperpod.policy import interval
from jupyter_hyperpod.runtime.checkpoint.store import MANIFEST, Directory
from jupyter_hyperpod.runtime.checkpoint.writer import file_of
from jupyter_hyperpod.storage.store import Store
from tests.runtime.conftest import STEPS, TRAIN, Run, Submit, start

DURABLE = TRAIN.replace(
    "scheduler=scheduler)",
    "scheduler=scheduler, checkpoint=hp.Checkpoint(os.environ['PLACE'], every_steps=int(os.environ['EVERY'])))",
)
FILE = file_of(0, 1)
Patience = Callable[[Callable[[], object], float], None]


def environment(place: Path, every: int = 4, pause_s: float = 0.01) -> dict[str, str]:
    return {"PLACE": str(place), "EVERY": str(every), "PAUSE_S": str(pause_s)}


def saved_steps(place: Path) -> list[int]:
    return [step for step, _ in Directory(place).committed()]


def spoil(place: Path, damage: Callable[[Path], None]) -> Path:
    """Damage the newest checkpoint; return its path."""
    _, newest = next(Directory(place).committed())
    damage(newest)
    return newest


def flip_a_byte(checkpoint: Path) -> None:
    with open(checkpoint / FILE, "r+b") as file:
        file.seek(-9, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-9, os.SEEK_END)
        file.write(bytes([byte ^ 0x10]))


def truncate(checkpoint: Path) -> None:
    os.truncate(checkpoint / FILE, (checkpoint / FILE).stat().st_size // 2)


def flip_in_the_manifest(checkpoint: Path) -> None:
    content = bytearray((checkpoint / MANIFEST).read_bytes())
    content[100] ^= 1
    (checkpoint / MANIFEST).write_bytes(content)


def same_from(run: Run, reference: Run, first: int) -> None:
    """The run took the steps from `first` on, and came to the same end."""
    expected = reference.losses()
    assert run.losses() == {step: expected[step] for step in range(first, STEPS + 1)}, run.story()
    assert run.view["digest"] == reference.view["digest"], run.story()


@pytest.fixture(scope="module")
def half_way(shared_cluster: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of steps 4, 8 and 12 by a run of three members that was stopped afterwards."""
    place = tmp_path_factory.mktemp("half-way") / "run"
    wait_for_idle(shared_cluster)
    run = start(shared_cluster, DURABLE, env=environment(place, pause_s=0.04))
    run.until_event("checkpoint.saved", step=12)
    run.stop()
    run.finish("stopped")
    wait_for_idle(shared_cluster)
    for step, path in Directory(place).committed():
        if step > 12:
            shutil.rmtree(path)
    return place


@pytest.fixture
def place(half_way: Path, tmp_path: Path) -> Path:
    """A copy of those checkpoints."""
    shutil.copytree(half_way, tmp_path / "run")
    return tmp_path / "run"


def test_a_run_goes_on_at_other_world_sizes(job: Submit, reference: Run, place: Path) -> None:
    assert saved_steps(place) == [12, 8, 4]
    second = job(DURABLE, nodes=2, env=environment(place, pause_s=0.04))
    second.until_event("checkpoint.saved", step=16)
    second.stop()
    second.finish("stopped")
    last = job(DURABLE, nodes=4, env=environment(place))
    last.finish()
    assert last.of_kind("checkpoint.loaded")[0].data["step"] == min(last.losses()) - 1 >= 16
    same_from(last, reference, min(last.losses()))
    assert second.losses()[13] == reference.losses()[13]
    assert saved_steps(place) == [24, 20, 16], "the three newest are kept, the last one is that of the end"
    assert last.view["checkpoint"]["step"] == 24


@pytest.mark.parametrize("damage", [truncate, flip_a_byte, flip_in_the_manifest, lambda p: (p / MANIFEST).unlink()])
def test_a_damaged_checkpoint_is_never_loaded(
    job: Submit, reference: Run, place: Path, damage: Callable[[Path], None]
) -> None:
    newest = spoil(place, damage)
    run = job(DURABLE, nodes=2, env=environment(place, pause_s=0))
    run.finish()
    refused = run.of_kind("checkpoint.refused")
    assert [e.data["path"] for e in refused] == [str(newest)], run.story()
    assert [e.data["step"] for e in run.of_kind("checkpoint.loaded")] == [8]
    same_from(run, reference, 9)


def test_everything_killed_goes_on_from_the_newest_checkpoint(job: Submit, reference: Run, tmp_path: Path) -> None:
    run = job(DURABLE, nodes=2, env=environment(tmp_path / "run", pause_s=0.04))
    run.until_event("checkpoint.saved", step=8)
    for pid in (run.worker_pid(0), run.worker_pid(1)):
        os.kill(pid, signal.SIGKILL)
    view = run.finish()
    run.same_as(reference)
    assert [incident["rung"] for incident in view["incidents"]] == [4] * len(view["incidents"]), run.story()
    assert run.of_kind("checkpoint.loaded")[0].data["step"] >= 8
    assert not run.of_kind("warning.raised"), "the repeated steps gave the same losses"


def test_steps_that_are_computed_again_and_differ_are_said(job: Submit, tmp_path: Path) -> None:
    """All members are lost before the first checkpoint; the program draws its weights unseeded."""
    unseeded = DURABLE.replace(
        "settings = dict(", "torch.seed()\nwith torch.no_grad(): model[0].weight.normal_()\nsettings = dict("
    )
    run = job(unseeded, nodes=2, env=environment(tmp_path / "run", every=50, pause_s=0.04))
    run.until_step(5)
    for pid in (run.worker_pid(0), run.worker_pid(1)):
        os.kill(pid, signal.SIGKILL)
    run.finish()
    texts = [event.data["text"] for event in run.of_kind("warning.raised")]
    assert len([text for text in texts if text.startswith("step 1 was computed again and its loss is ")]) == 1, texts
    (said,) = [text for text in texts if text.startswith("every member that held the training state is lost")]
    # the fifth may have been reduced, and applied by nobody
    assert int(said.partition(" steps are computed a second time")[0].rpartition(" ")[2]) >= 4, said


def test_the_journal_says_that_the_interval_is_dalys(job: Submit, tmp_path: Path) -> None:
    explicit = "hp.Checkpoint(os.environ['PLACE'], every_steps=int(os.environ['EVERY']))"
    run = job(DURABLE.replace(explicit, "os.environ['PLACE']"), env=environment(tmp_path / "run", pause_s=0.05))
    run.until_event("step.committed", step=4)
    os.kill(run.worker_pid(1), signal.SIGKILL)
    view = run.finish()
    said = [event.data for event in run.of_kind("decision.made") if event.data["policy"] == "checkpoint"]
    thought_s = view["session"]["state_bytes"] / interval.ASSUMED_BYTES_PER_S
    best_s = max(interval.SHORTEST_S, interval.daly_s(thought_s, interval.PRIOR_MTBF_S))
    assert said[0]["value"] == pytest.approx(best_s, abs=0.001), run.story()
    assert "MTBF 1 h assumed, no failure yet, saving is thought to cost" in said[0]["reason"]
    later = [data for data in said[1:] if "observed over 1 failure, saving costs" in data["reason"]]
    assert all(data["value"] >= interval.SHORTEST_S for data in later)
    assert CheckpointCosts(thought_s).every_s(interval.PRIOR_MTBF_S) == interval.daly_s(
        thought_s, interval.PRIOR_MTBF_S
    )


# every member goes back once, after step 10, where its weights are no longer those that were saved
GOING_BACK = DURABLE.replace(
    "        session.log(loss=loss)\n",
    "        session.log(loss=loss)\n"
    "        if step.number == 10 and not back:\n"
    "            with torch.no_grad(): model[0].weight.add_(1.0)\n"
    "            back.append(session.restore(no_later_than=LATEST))\n"
    "            print('back at', back[0], session.step)\n",
).replace("settings = dict(", "back = []\nsettings = dict(")


@pytest.mark.parametrize("latest", [None, 5])
def test_all_members_go_back_to_a_checkpoint(job: Submit, reference: Run, tmp_path: Path, latest: int | None) -> None:
    source = GOING_BACK.replace("LATEST", str(latest))
    run = job(source, nodes=4, spares=0, env=environment(tmp_path / "run", every=3))
    run.finish()
    first = 9 if latest is None else 3
    assert set(run.text().values()) == {f"back at {first} {first}\n"}, run.story()
    assert [e.data["step"] for e in run.of_kind("checkpoint.loaded")] == [first]
    taken = [e.data["step"] for e in run.of_kind("step.committed")]
    assert taken == [*range(1, 11), *range(first + 1, STEPS + 1)]
    run.same_as(reference)


# as a run after a spike: it goes back, and goes on with half the rate; rank 1 is lost as it begins to go back
HALVED = DURABLE.replace(
    "        session.log(loss=loss)\n",
    "        session.log(loss=loss)\n"
    "        if step.number == 10 and not back:\n"
    "            if session.rank == 1: os.kill(os.getpid(), 9)\n"
    "            back.append(session.restore())\n"
    "            scheduler.base_lrs = [rate * 0.5 for rate in scheduler.base_lrs]\n"
    "            optimizer.param_groups[0]['lr'] *= 0.5\n",
).replace("settings = dict(", "back = []\nsettings = dict(")


@pytest.mark.parametrize("elastic", ["1:2", "2:2"])
def test_a_member_that_joins_while_the_others_go_back_does_not_miss_what_follows(
    job: Submit, tmp_path: Path, elastic: str
) -> None:
    """Also where the one that is left alone is fewer than the job wants: it has to come out of `restore` first."""
    undisturbed = job(HALVED, nodes=1, env=environment(tmp_path / "alone", every=3))
    undisturbed.finish()
    run = job(HALVED, nodes=2, elastic=elastic, spares=1, env=environment(tmp_path / "run", every=3))
    run.finish()
    assert run.of_kind("member.lost"), run.story()
    assert [e.data["asked"] for e in run.of_kind("checkpoint.loaded")] == [True]
    assert [data["step"] for data in (e.data for e in run.of_kind("step.committed")) if data["world_size"] == 2][
        -1
    ] == STEPS
    run.same_as(undisturbed)


def test_a_member_that_does_not_go_back_with_the_others_fails_the_job(job: Submit, tmp_path: Path) -> None:
    source = GOING_BACK.replace("LATEST", "None").replace("and not back", "and not back and session.rank != 1")
    run = job(source, nodes=2, spares=0, env=environment(tmp_path / "run", every=3))
    assert "every rank must" in run.finish("failed")["reason"]


@pytest.mark.parametrize("components", ["data,inprocess,peers", "init,inprocess,peers", "init,data,peers",
                                        "init,data,inprocess", "none"])  # fmt: skip
def test_each_component_can_be_switched_off(job: Submit, reference: Run, tmp_path: Path, components: str) -> None:
    chosen = () if components == "none" else tuple(components.split(","))
    run = job(DURABLE, nodes=3, components=chosen, env=environment(tmp_path / "run", every=3, pause_s=0.04))
    run.until_event("checkpoint.saved", step=6)
    before = [run.worker_pid(rank) for rank in (0, 2)]
    run.kill(1)
    run.until_world(3)
    run.finish()
    run.same_as(reference)
    restarted = "inprocess" not in chosen
    assert all(f".{pid}" in run.story() for pid in before)
    assert ("restart all" in run.story()) == restarted, run.story()
    if restarted:
        assert run.of_kind("checkpoint.loaded")[-1].data["step"] >= 6
        assert run.view["incidents"][0]["rung"] == 4, run.story()
    elif "peers" not in chosen:
        assert run.of_kind("checkpoint.loaded"), run.story()


def test_who_comes_late_to_the_store_finds_it(job: Submit, reference: Run) -> None:
    late = "time.sleep(0.3 if session.rank == 2 and step.index == 4 else pause_s)"
    run = job(
        TRAIN.replace("time.sleep(pause_s)", late), components=("data", "inprocess", "peers"), env={"PAUSE_S": "0.03"}
    )
    run.until_step(4)
    run.kill(1)
    run.finish()
    run.same_as(reference)
    assert [event.data["cause"] for event in run.of_kind("member.lost")] == ["process killed"], run.story()
