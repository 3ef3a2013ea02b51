"""Writes a sweep whose trials have ended, all but some. Prints its id, and the jobs of its trials."""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path

from jupyter_hyperpod.control.sweeps.plan import SweepPlan, job_name
from jupyter_hyperpod.core.spec import JobSpec, TrialSpec
from jupyter_hyperpod.policy.sweeps import space
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import Store

SPACE = ["lr=1e-5..1e-1:log", "width=64,128,256,512", "dropout=0..0.5", "optimizer=adamw,sgd,lion"]


def accuracy(values: dict, chance: random.Random) -> float:
    rate = -((math.log10(values["lr"]) + 3) ** 2) / 8
    found = 0.94 + rate - values["dropout"] / 6 + math.log2(values["width"]) / 80 - 0.1 * (values["optimizer"] == "sgd")
    return round(max(0.1, found - 0.1 + chance.gauss(0, 0.015)), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--running", type=int, default=2, help="of the last ones")
    options = parser.parse_args()
    store, chance = Store(options.store).prepare(), random.Random(1)
    plan = SweepPlan.make(space.parse(SPACE), sampler="random", trials=options.trials, metric="accuracy", maximize=True)
    sweep = "tinylm-abcdefgh"
    code = store.put_cell("lr = 1e-3\nwidth = 64\ndropout = 0.1\noptimizer = 'adamw'\n")
    print(sweep)
    for number, values in enumerate(plan.points(), 1):
        trial = TrialSpec(sweep, number, dict(values), plan.to_json())
        job = store.create_job(JobSpec(job_name(sweep, number), code, nodes=1, trial=trial))
        with event_writer(job.events, "control") as journal:
            journal.append("job.submitted", {"id": job.id, "spec": job.spec().to_json()})
            journal.append("job.state", {"state": "running", "reason": "1 of 1 node is ready"})
            value = accuracy(values, chance)
            journal.append("metric.logged", {"step": 40, "values": {"accuracy": value}})
            if number > options.trials - options.running:
                continue
            state, reason = "succeeded", "every rank finished"
            if values["lr"] > 0.05:
                state, reason = "failed", "rank 0 raised ValueError"
            elif value < 0.7:
                state, reason = "stopped", "pruned: 5 others were better at step 40"
            journal.append("job.state", {"state": state, "reason": reason})
        print(job.id, flush=True)


if __name__ == "__main__":
    main()
