"""NVIDIA resiliency extension: the training function is called again in the processes that are left, one in reserve.

After the project's basic example, its timeouts shortened; it resumes from the newest checkpoint, as torchrun does.
"""

import os  # annotations stay objects here: the wrapper finds its argument by them
from datetime import timedelta

import nvidia_resiliency_ext.inprocess as inprocess
import torch
import torch.distributed as dist

from benchmarks.rivals.task import optimizer_of, train_from_checkpoint
from jupyter_hyperpod.bench import language_model as lm


def train(store: dist.Store, call: inprocess.CallWrapper = None) -> None:
    """Train for LM_STEPS steps with the ranks that this restart assigned."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(str(call.iteration), store),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=3),  # gloo cannot be aborted: survivors wait this long for a lost peer
    )
    train_from_checkpoint(rank, world_size, call.iteration)


def main() -> None:
    """Run the wrapped function with at most BENCH_ACTIVE active ranks; the others wait in reserve."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    optimizer_of(lm.LanguageModel())  # its first use imports much, which a watchdog would take for a hang
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        port,
        int(os.environ["WORLD_SIZE"]),
        is_master=os.environ["RANK"] == "0",
        multi_tenant=True,
        wait_for_workers=True,
    )
    wrapper = inprocess.Wrapper(
        store_kwargs={"port": int(os.environ["BENCH_STORE_PORT"])},
        rank_assignment=inprocess.Compose(
            inprocess.rank_assignment.MaxActiveWorldSize(int(os.environ["BENCH_ACTIVE"])),
            inprocess.rank_assignment.ShiftRanks(),
        ),
        monitor_thread_interval=timedelta(milliseconds=200),
        monitor_process_interval=timedelta(milliseconds=200),
        progress_watchdog_interval=timedelta(milliseconds=500),
        heartbeat_interval=timedelta(milliseconds=500),
        heartbeat_timeout=timedelta(seconds=5),
        soft_timeout=timedelta(seconds=5),
        hard_timeout=timedelta(seconds=6),
        last_call_wait=timedelta(milliseconds=200),
        termination_grace_time=timedelta(milliseconds=200),
    )
    wrapper(train)(store)


if __name__ == "__main__":
    main()
