"""Writes the journals of runs that have ended, for the table of runs and the comparison. Prints their ids.

They are written as a job's parts write theirs, so what is shown from them is labelled "recorded".
"""

from __future__ import annotations

import argparse
import math
import random
import time
from pathlib import Path

from jupyter_hyperpod.control.runs import labels
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import Store

SOURCE = """import jupyter_hyperpod as hp
import torch

model = TinyLM(layers={layers}, width=256)
optimizer = torch.optim.{optimizer}(model.parameters(), lr={rate})
for step, batch in enumerate(hp.Session(model, optimizer, loader, steps=400)):
    loss = model(batch)
    loss.backward()
"""
# name, nodes, layers, optimizer, rate, seed, the step from which it goes its own way, state, tags, note
RUNS = [
    ("tinylm", 4, 6, "AdamW", 0.001, 0, 401, "succeeded", ["baseline"], "what all others are compared with"),
    ("tinylm", 4, 6, "AdamW", 0.001, 0, 214, "succeeded", ["baseline", "killed-node"], "node-2 was killed twice"),
    ("tinylm", 8, 6, "AdamW", 0.003, 0, 1, "succeeded", ["sweep"], ""),
    ("tinylm", 8, 12, "AdamW", 0.001, 1, 1, "succeeded", ["sweep", "best"], "deeper, and better"),
    ("tinylm-sgd", 4, 6, "SGD", 0.1, 0, 1, "failed", ["sweep"], ""),
    ("tinylm-long", 2, 6, "AdamW", 0.0003, 0, 1, "stopped", [], ""),
    ("probe", 1, 2, "AdamW", 0.001, 0, 1, "succeeded", [], ""),
]


def write(store: Store, run: tuple, ago_s: float, steps: int) -> str:
    name, nodes, layers, optimizer, rate, seed, apart, state, tags, note = run
    source = SOURCE.format(layers=layers, optimizer=optimizer, rate=rate)
    origin = {"notebook": str(store.root.parent / "files" / f"{name.partition('-')[0]}.ipynb"), "cell_id": "a"}
    spec = JobSpec(name, store.put_cell(source), nodes=nodes, seed=seed, origin=origin, priority=10 * (name == "probe"))
    job = store.create_job(spec)
    common, own = random.Random(f"{layers} {rate}"), random.Random(f"{name} {apart} {rate}")
    now_s = time.time() - ago_s

    def clock() -> float:
        return now_s

    member = {"member": "node-1.1", "node": "node-1", "rank": 0, "pid": 1}
    with event_writer(job.events, "control", clock=clock) as control:
        control.append("job.submitted", {"id": job.id, "spec": spec.to_json()})
        now_s += 1.2
        control.append("job.state", {"state": "running", "reason": f"{nodes} of {nodes} nodes are ready"})
        formed = {"generation": 1, "members": [member | {"rank": r} for r in range(nodes)], "spares": []}
        control.append("generation.formed", formed | {"target": nodes, "reason": "all are ready"})
        sizes = {"total_steps": 400, "global_batch": 64, "micro_batch": 4, "micro_batches": 16}
        control.append("session.opened", sizes | {"parameters": layers * 1_400_000, "state_bytes": layers * 16_800_000})
        last = {"failed": steps // 3, "stopped": steps // 2}.get(state, steps)
        for step in range(1, last + 1):
            took_s = 0.8 / nodes * (1 + 0.1 * own.random())
            now_s += took_s * (6 if step == apart else 1)
            noise = (common if step < apart else own).gauss(0, 0.03)
            base = 1.62 - 0.02 * layers + 3.9 * math.exp(-step * rate * 900 * layers / 6 / 130) + noise * (0.4 + math.exp(-step / 150))
            loss = base if optimizer == "AdamW" else base + 0.01 * step
            committed = {"step": step, "generation": 1, "loss": loss, "loss_hex": loss.hex(), "step_time_s": took_s}
            control.append("step.committed", committed | {"samples": 64, "world_size": nodes, "redone": 0})
            if step % 10 == 0:
                values = {"accuracy": round(1 - math.exp(-step / 160) * 0.9 + noise / 9, 4), "lr": rate * (1 - step / 500)}
                control.append("metric.logged", {"step": step, "values": values})
        if state == "failed":
            error = {"member": "node-1.1", "node": "node-1", "rank": 0, "type": "ValueError", "message": "loss is NaN"}
            control.append("user.error", error | {"traceback": ["ValueError: loss is NaN\n"]})
        now_s += 0.6
        reasons = {"failed": "rank 0 raised ValueError", "stopped": "stopped by ada"}
        control.append("job.state", {"state": state, "reason": reasons.get(state, "every rank finished")})
    if tags or note:
        labels.label(store, job.id, add=tags, note=note or None)
    return job.id


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--many", type=int, default=0, help="short runs beside those of the list")
    options = parser.parse_args()
    store = Store(options.store).prepare()
    for number in range(options.many):
        name, nodes, *rest = RUNS[number % len(RUNS)]
        write(store, (f"many-{number}", nodes, *rest[:6], [f"group-{number % 7}"], ""), 90_000 + 60 * number, 3)
    for at, run in enumerate(reversed(RUNS)):
        print(write(store, run, (len(RUNS) - at) * 5000, 400), flush=True)


if __name__ == "__main__":
    main()
