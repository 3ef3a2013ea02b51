"""What only CUDA can show. Run on a machine with GPUs: ``pytest -m gpu``. Not verified on a GPU so far."""

from __future__ import annotations

import json
import select
import subprocess
import sys

import pytest
import torch

import jupyter_hyperpod as hp
from jupyter_hyperpod.runtime.comm.cuda import nccl, nccl_pair
from jupyter_hyperpod.runtime.comm.pair_transfer import StripeServer, fetch
from jupyter_hyperpod.runtime.comm.process_group import ProcessGroup
from jupyter_hyperpod.storage.store import Store
from tests.runtime.meshes import SECRET, meshes, together
from tests.runtime.test_device_collectives import Member

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
several = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL takes one GPU per member")


def trained(collectives: str) -> str:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    data = [(x, x.sum().sin()) for x in torch.randn(64, 8)]

    def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
        inputs, targets = (part.cuda() for part in batch)
        return torch.nn.functional.mse_loss(model(inputs).squeeze(-1), targets)

    options = {"global_batch": 16, "micro_batch": 2, "max_grad_norm": 1.0, "collectives": collectives}
    with hp.Session(model, optimizer, data, **options) as session:  # type: ignore[arg-type]
        for step in session.steps(8):
            step.run(loss_of)
        return session.digest()


def test_gradients_on_the_device_give_the_bits_of_host_memory() -> None:
    assert trained("nccl") == trained("host")


@several
def test_nccl_carries_slices_and_is_given_up() -> None:
    connected = meshes(2)

    def member(rank: int) -> list[int]:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        group = ProcessGroup(nccl(device), Member(connected[rank]))
        received = torch.empty(2, dtype=torch.uint8, device=device)
        group.exchange_slices(torch.tensor([rank, rank + 10], dtype=torch.uint8, device=device), received, [0, 1])
        group.abandon()
        return received.tolist()

    assert together(2, member) == [[0, 1], [10, 11]]
    for mesh in connected:
        mesh.close()


@several
def test_a_stripe_goes_from_device_to_device_by_nccl() -> None:
    stripe = torch.randn(1 << 20, device="cuda:0").view(torch.uint8)
    server = StripeServer(nccl_pair(stripe.device), "127.0.0.1", SECRET, 1, stripe)
    pair = nccl_pair(torch.device("cuda", 1))
    (copy,) = fetch(
        pair, "127.0.0.1", SECRET, [server.source], lambda ended: select.select([ended], [], [], 20) and None
    )
    server.close()
    assert torch.equal(copy.cpu(), stripe.cpu())


@several
def test_the_self_check_passes(shared_cluster: Store) -> None:
    command = [sys.executable, "-m", "jupyter_hyperpod", "--store", str(shared_cluster.root), "validate", "--devices"]
    nodes = str(min(3, torch.cuda.device_count()))
    done = subprocess.run([*command, "--json", "--nodes", nodes], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, (json.loads(done.stdout), done.stderr)
