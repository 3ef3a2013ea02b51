"""A real job on real mounts: data read from one, checkpoints written to it, killed in the middle of a save."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_hyperpod.control import attach
from jupyter_hyperpod.core.mount_spec import MountSpec
from jupyter_hyperpod.mounts import table
from jupyter_hyperpod.runtime.checkpoint.store import Directory
from jupyter_hyperpod.storage.store import Store
from tests.runtime.conftest import STEPS, Run, Submit
from tests.storage import volumes

# Its state is large for its gradients, so that a save takes long enough to be hit.
CELL = f"""
import os, time, torch, jupyter_hyperpod as hp
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(256, 8), nn.Linear(8, 256)
        self.register_buffer("ballast", torch.arange(4 << 20, dtype=torch.float32))
    def forward(self, tokens):
        return self.head(self.tokens(tokens))

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = hp.TokenDataset(os.environ["DATA"], 16)

def loss_fn(batch):
    time.sleep(float(os.environ["PAUSE_S"]))
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

place = os.environ.get("PLACE")
checkpoint = hp.Checkpoint(place, every_steps=4) if place else None
with hp.Session(model, optimizer, data, global_batch=16, micro_batch=2, seed=3, checkpoint=checkpoint) as session:
    for step in session.steps({STEPS}):
        session.log(loss=step.run(loss_fn))
"""


@pytest.fixture(params=["directory", pytest.param("juicefs", marks=pytest.mark.fuse)])
def mount(request: pytest.FixtureRequest, shared_cluster: Store, tmp_path: Path) -> Iterator[MountSpec]:
    """A mount of the shared cluster; the plain directory has another path on the nodes."""
    if request.param == "juicefs":
        spec = volumes.juicefs(tmp_path, "work")
    else:
        (tmp_path / "fsx").symlink_to(tmp_path / "here")
        spec = MountSpec("work", str(tmp_path / "here"), str(tmp_path / "fsx"))
    table.add(shared_cluster, spec)
    try:
        attach.attach(shared_cluster, spec)
        yield spec
    finally:
        attach.detach(shared_cluster, spec, force=True)
        attach.remove(shared_cluster, "work")


def stop_in_a_save(run: Run, place: Path, after: int) -> int:
    """Stop rank 0 while it writes a checkpoint later than step `after`; return its pid."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        run.read()
        assert not run.ended, run.story()
        if not run.of_kind("checkpoint.saved") or run.of_kind("checkpoint.saved")[-1].data["step"] < after:
            continue
        if any(place.glob(".saving-*/*")):
            pid = run.worker_pid(0)
            os.kill(pid, signal.SIGSTOP)
            if any(place.glob(".saving-*/*")):
                return pid
            os.kill(pid, signal.SIGCONT)
    raise AssertionError(f"no save was seen within a minute\n{run.story()}")


def test_data_and_checkpoints_on_a_mount_survive_a_kill_in_a_save(job: Submit, mount: MountSpec) -> None:
    root = Path(mount.notebook_path)
    (root / "tokens.bin").write_bytes(bytes(range(256)) * 20)
    environment = {"DATA": "shared://work/tokens.bin", "PAUSE_S": "0"}
    reference = job(CELL, nodes=1, spares=0, env=environment)
    reference.finish()
    place = root / table.USERS / table.login() / "run"
    run = job(CELL, nodes=2, env=environment | {"PLACE": "work://~/run", "PAUSE_S": "0.01"})
    pids = [stop_in_a_save(run, place, after=4), run.worker_pid(1)]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    run.finish()
    run.same_as(reference)
    loaded = run.of_kind("checkpoint.loaded")
    assert loaded and loaded[0].data["step"] >= 4, run.story()
    assert [step for step, _ in Directory(place).committed()][0] == STEPS
    assert not list(place.glob(".saving-*")), "what the killed writer left is gone"
    assert place.parent.stat().st_mode & 0o777 == 0o700
