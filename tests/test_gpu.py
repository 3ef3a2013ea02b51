"""What only CUDA can show. Run on a machine with a GPU: ``pytest -m gpu``; see docs/devices.md for what has passed."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import jupyter_hyperpod as hp
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.control.device_check import STEPS, TRAIN
from jupyter_hyperpod.control.validate import result_of
from jupyter_hyperpod.core.errors import TrainingError
from jupyter_hyperpod.runtime.comm.cuda import nccl, nccl_pair
from jupyter_hyperpod.runtime.comm.pair_transfer import StripeServer, fetch
from jupyter_hyperpod.runtime.comm.process_group import ProcessGroup
from jupyter_hyperpod.runtime.session.checksum import RECORDED, ChecksummedTensors
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
        pair, "127.0.0.1", SECRET, [server.source], lambda ended: select.select([ended], [], [], 50) and None
    )
    server.close()
    assert torch.equal(copy.cpu(), stripe.cpu())


def test_checksums_of_the_device_are_those_of_the_host() -> None:
    sizes = (1, 3, 1000, 1024, 5000, 1 << 20)
    tensors = [torch.randn(size, device="cuda") for size in sizes] + [torch.randn(64, 64, device="cuda").t()]
    watched = ChecksummedTensors([*tensors, torch.ones(5)])
    for _ in range(2 * RECORDED):  # launched first, then as a recorded graph
        expected = ChecksummedTensors([tensor.cpu() for tensor in [*tensors, torch.ones(5)]])
        assert watched.checksums().tolist() == expected.checksums().tolist()
        tensors[-2].mul_(1.5)


def test_a_model_is_loaded_onto_the_device(tmp_path: Path) -> None:
    state = {f"layers.{n}.weight": torch.randn(512, 700).to(torch.bfloat16) for n in range(8)}
    hp.save_model(state, tmp_path / "model.safetensors", checksum=True)
    loaded = hp.load_model(tmp_path / "model.safetensors", device="cuda:0", checksum=True, progress=False)
    assert all(loaded[name].is_cuda and torch.equal(loaded[name].cpu(), tensor) for name, tensor in state.items())


def test_an_operator_without_a_deterministic_kernel_is_named() -> None:
    model = torch.nn.Conv2d(1, 1, 3).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(model(batch.cuda()), scale_factor=2, mode="bicubic").square().mean()

    with pytest.raises(TrainingError, match="upsample_bicubic2d.* has no deterministic kernel on cuda"):
        with hp.Session(model, optimizer, list(torch.randn(16, 1, 8, 8)), global_batch=8, micro_batch=2) as session:
            for step in session.steps(1):
                step.run(loss_of)


def test_members_that_share_the_gpu_lose_a_rank_and_keep_the_bits(shared_cluster: Store) -> None:
    source = TRAIN.format(steps=STEPS, pause_s=0.05, device="cuda")

    def ended(nodes: int, fault: str) -> object:
        job_id = jobs.submit(shared_cluster, source, {"name": "gpu", "nodes": nodes})
        if fault:
            wait_for_step(shared_cluster, job_id, 3)
            jobs.fault(shared_cluster, job_id, fault, rank=nodes - 1)
        return result_of(jobs.wait(shared_cluster, job_id, timeout_s=120), STEPS)

    alone = ended(1, "")
    assert alone is not None
    assert [ended(3, "kill"), ended(3, "hang")] == [alone, alone]


def wait_for_step(store: Store, job_id: str, step: int) -> None:
    deadline = time.monotonic() + 90
    while jobs.job_view(store, job_id)["step"] < step:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_self_check_passes(shared_cluster: Store) -> None:
    command = [sys.executable, "-m", "jupyter_hyperpod", "--store", str(shared_cluster.root), "validate", "--devices"]
    done = subprocess.run([*command, "--json", "--nodes", "3"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (json.loads(done.stdout), done.stderr)
