"""Workers that decode and augment pictures: our steps and samples per second against DDP with torch's DataLoader.

Both have the same data set, model, members and workers, on one machine, where blocks of steps alternate. Then members
are killed: how long do the survivors wait for their next batch?
"""

from __future__ import annotations

import random
import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.arms import Arm, Ours, rotation, scratch
from benchmarks.recovery.overhead import OURS as UNAUDITED
from benchmarks.recovery.overhead import PLAIN
from benchmarks.rivals import images
from benchmarks.rivals.systems import PlainDdp
from jupyter_hyperpod.bench.laboratory import Observer, laboratory, progress, submit
from jupyter_hyperpod.bench.report import bar, report, row
from jupyter_hyperpod.bench.stalls import step_times
from jupyter_hyperpod.control import jobs

OURS = UNAUDITED.partition(" ")[0]
MEMBERS, WARM_UP, BLOCK = 2, 8, 24
STEP_LIMIT, RATE_AT_LEAST, NEXT_BATCH_S = 1.05, 1.0, 0.010
CELL = Path(images.__file__)


def run(runs: int = 10, kills: int = 10, seed: int = 0) -> dict[str, Any]:
    """Measure ``runs`` pairs of blocks in each case, then ``kills`` kills."""
    rows, medians = [], {}
    for case, trains in (("a small network trains", True), ("reading is all there is", False)):
        blocks = _measure(case, trains, runs)
        for name, found in blocks.items():
            rows.append(row(name, case, "step", "s", found))
            rates = [images.GLOBAL_BATCH / step_s for step_s in found]
            rows.append(row(name, case, "samples per second", "1/s", rates))
        ratios = [ours / plain for ours, plain in zip(blocks[OURS], blocks[PLAIN], strict=True)]
        rows.append(row(OURS, case, "step against DDP with DataLoader", "ratio", ratios))
        medians[case] = statistics.median(ratios)
    waits = _waits_after_kills(kills, random.Random(seed))
    rows.append(row(OURS, f"{kills} kills of another member", "a survivor's wait for its next batch", "s", waits))
    trained, read = medians.values()
    bars = [
        bar("data_step_ratio", trained, STEP_LIMIT),
        bar("samples_per_second_ratio", 1 / read, at_least=RATE_AT_LEAST),
        bar("next_batch_after_a_kill_s", rows[-1]["median"], NEXT_BATCH_S),
    ]
    return report("data", rows, bars)


def _environment(trains: bool) -> dict[str, str]:
    return {"IMAGES_TRAIN": str(int(trains))}


def _measure(case: str, trains: bool, pairs: int) -> dict[str, list[float]]:
    """Median time of a step in seconds, block by block, of both arms."""
    with ExitStack() as stack:
        directory = stack.enter_context(scratch())
        ours = Ours(directory, OURS)
        with ours.carrying():
            store = stack.enter_context(laboratory(MEMBERS, spares=0))
        plain = PlainDdp(directory, _environment(trains), MEMBERS, "ddp_images")
        arms: dict[str, Arm] = {OURS: ours, PLAIN: plain}
        for arm in arms.values():
            arm.permit(0)
        stack.callback(plain.stop)
        plain.begin()
        env = _environment(trains) | {"LM_TURN": str(ours.turn)}
        ours.watch = submit(store, CELL.read_text(), {"name": "data", "nodes": MEMBERS, "spares": 0, "env": env})
        stack.callback(jobs.stop, store, ours.watch.job_id)
        for arm in arms.values():
            _block(arm, WARM_UP)
        blocks: dict[str, list[float]] = {name: [] for name in arms}
        for number, order in enumerate(rotation(list(arms), pairs)):
            for name in order:
                blocks[name].append(_block(arms[name], BLOCK))
            times = ", ".join(f"{name} {blocks[name][-1] * 1000:.1f} ms" for name in arms)
            progress(f"{case}, round {number + 1} of {pairs}: {times}")
        return blocks


def _block(arm: Arm, steps: int) -> float:
    """Mean time of a step, in seconds, after the queues that filled while the arm had to wait have been used."""
    done = max((commit.step for commit in arm.commits()), default=0)
    arm.permit(done + steps)
    arm.until_step(done + steps, 1 if isinstance(arm, Ours) else MEMBERS)
    times = step_times(arm.commits())
    first = done + steps // 3
    return (times[done + steps] - times[first]) / (done + steps - first)


def _waits_after_kills(kills: int, rng: random.Random) -> list[float]:
    """Seconds for which rank 0 waited for a batch, in the first step after each kill of rank 1; 0 where it did not."""
    with laboratory(MEMBERS, spares=1) as store:
        env = {"IMAGES_MICRO_BATCH": "4"}  # four for each member: what a lost one had begun is shared out
        watch = submit(store, CELL.read_text(), {"name": "data", "nodes": MEMBERS, "spares": 1, "env": env})
        found = []
        for number in range(kills):
            step = watch.view["step"]
            watch.until(lambda step=step: watch.view["step"] > step + 10 + rng.randrange(10), 60.0)  # type: ignore[misc]
            watch.until(lambda: watch.view["world_size"] == MEMBERS, 60.0)
            generation = watch.view["generation"]
            jobs.fault(store, watch.job_id, "kill", rank=1)
            watch.until(lambda generation=generation: _first_step(watch, generation) is not None, 60.0)  # type: ignore[misc]
            found.append(_waited_s(watch, _first_step(watch, generation) or 0))
            progress(f"kill {number + 1} of {kills}: the next batch after {found[-1] * 1000:.1f} ms")
        jobs.stop(store, watch.job_id)
        watch.until_ended()
    return found


def _first_step(watch: Observer, generation: int) -> int | None:
    """The first step committed after ``generation``, once what rank 0 logged of it is there."""
    watch.read()
    steps = [e.data["step"] for e in watch.of_kind("step.committed") if e.data["generation"] > generation]
    return steps[0] if steps and _logged(watch, steps[0]) else None


def _logged(watch: Observer, step: int) -> list[float]:
    values = [e.data for e in watch.of_kind("metric.logged") if e.data["step"] == step]
    return [data["values"]["waited_s"] for data in values if "waited_s" in data["values"]]


def _waited_s(watch: Observer, step: int) -> float:
    return max(_logged(watch, step))
