"""torchrun: DDP that begins again from its last checkpoint whenever a worker is lost."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from benchmarks.rivals.task import train_from_checkpoint

TIMEOUT = timedelta(seconds=10)


def main() -> None:
    """Train for LM_STEPS steps from the newest checkpoint."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    train_from_checkpoint(dist.get_rank(), dist.get_world_size(), restarts)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
