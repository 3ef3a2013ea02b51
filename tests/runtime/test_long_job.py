"""A job whose journal grows is kept while it runs, and a coordinator that starts again begins at the snapshot."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.storage.folded import SNAPSHOT
from tests.runtime.conftest import Submit

# the same commits as a training of many steps, without the weights
CELL = """
import os, time
import torch
import jupyter_hyperpod as hp

model = torch.nn.Linear(1, 1)
data = torch.ones(4, 1)
with hp.Session(model, torch.optim.SGD(model.parameters(), lr=0.0), data, global_batch=2, micro_batch=2) as session:
    for step in session.steps(1_000_000):
        step.run(lambda batch: model(batch).sum())
"""


@pytest.mark.timeout(300)
def test_the_journal_of_a_running_job_is_kept(
    job: Submit, patience: Callable[[Callable[[], object], float], None]
) -> None:
    run = job(CELL, nodes=1)
    path = run.store.job(run.job_id).path / SNAPSHOT
    patience(path.exists, 120.0)
    kept = json.loads(path.read_bytes())["view"]["step"]
    assert kept > 0
    run.kill_coordinator()
    patience(lambda: jobs.job_view(run.store, run.job_id)["step"] > kept + 2000, 120.0)
    run.stop()
    view = jobs.wait(run.store, run.job_id, timeout_s=60.0)
    assert (view["state"], view["fenced"]) == ("stopped", {}), "no member was lost"
