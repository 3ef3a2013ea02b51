"""PyTorch's own tutorials, unchanged in kind: FSDP2 as a script on two nodes, and DDP by mp.spawn in a cell."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.runtime.conftest import Submit

FSDP2 = """
import argparse, os
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

def main(args):
    torch.manual_seed(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend="gloo")
    model = nn.Sequential(*[nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(3)])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optim = torch.optim.Adam(model.parameters(), lr=args.lr)
    for _ in range(3):
        loss = model(torch.randn(8, 32)).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optim.step()
        optim.zero_grad()
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        print("saved", len(whole), "of", dist.get_world_size(), args.lr)
    dist.destroy_process_group()

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-2)
    main(parser.parse_args())
"""
SPAWNED = """
import os, torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(10, 5)

    def forward(self, x):
        return self.net(x)

def demo_basic(rank, world_size, port):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    ddp_model = DDP(ToyModel())
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.001)
    nn.functional.mse_loss(ddp_model(torch.randn(20, 10)), torch.randn(20, 5)).backward()
    optimizer.step()
    # Both processes write to one pipe: a line must be one write.
    print(f"rank {rank} of {dist.get_world_size()}\\n", end="", flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(demo_basic, args=(2, PORT), nprocs=2, join=True)
"""


@pytest.mark.timeout(120)
def test_fsdp2_as_a_script(job: Submit, tmp_path: Path) -> None:
    file = tmp_path / "fsdp2.py"
    file.write_text(FSDP2)
    run = job(FSDP2, nodes=2, script=True, filename=str(file), arguments=("--lr", "0.003"))
    run.finish(timeout_s=90.0)
    assert run.text()[0] == "saved 12 of 2 0.003\n"


@pytest.mark.timeout(120)
def test_ddp_by_mp_spawn_in_a_cell(job: Submit) -> None:
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    run = job(SPAWNED.replace("(2, PORT)", f"(2, {port})"), nodes=1)
    run.finish(timeout_s=90.0)
    assert sorted(run.text()[0].splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
