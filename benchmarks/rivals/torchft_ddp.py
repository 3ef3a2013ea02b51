"""torchft: one replica a process, per-step fault tolerance. A step that met an error is discarded by everybody.

After the project's own example for DDP; ``BENCH_PG_TIMEOUT_S`` is its five seconds unless the arm is tuned.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from benchmarks.rivals.task import MICRO_BATCHES, batches, committed, optimizer_of
from jupyter_hyperpod.bench import language_model as lm

MIN_REPLICAS = 2


def main() -> None:
    """Train for LM_STEPS steps as replica REPLICA_ID of REPLICAS; a replacement heals from a peer on its first step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    replica, replicas = int(os.environ["REPLICA_ID"]), int(os.environ["REPLICAS"])
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def state_dict() -> dict[str, Any]:
        return {"model": module.state_dict(), "optimizer": inner.state_dict()}

    def load_state_dict(state: dict[str, Any]) -> None:
        module.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=float(os.environ["BENCH_PG_TIMEOUT_S"]))),
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        min_replica_size=MIN_REPLICAS,
        timeout=timedelta(seconds=30),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
        replica_id=f"replica_{replica}",
    )
    module = lm.LanguageModel()
    inner = optimizer_of(module)
    model = DistributedDataParallel(manager, module, gradient_as_bucket_view=True)
    optimizer = Optimizer(manager, inner)
    share = MICRO_BATCHES / replicas
    while (step := manager.current_step()) < lm.STEPS:
        lm.wait_for_turn(step)
        optimizer.zero_grad()  # also asks the lighthouse for this step's quorum
        for last, batch in batches(step, replica, replicas):
            with nullcontext() if last else model.no_sync():
                (lm.loss_of(model, batch) / share).backward()
        optimizer.step()
        if manager.current_step() > step:
            committed(manager.current_step(), replica, manager.num_participants(), manager._quorum_id)


if __name__ == "__main__":
    main()
