"""Reports and comparisons of real jobs: one that loses a member, one that nothing disturbs, and one that runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.control.runs.run_record import read
from jupyter_hyperpod.control.watch import wait_for_step
from jupyter_hyperpod.storage.store import Store
from tests.cells import MODEL
from tests.runs.pages import harmless

Wait = Callable[..., Any]
BOUND_S = 120.0
CELL = f"""{MODEL}
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=1) as session:
    for step in session.steps(40):
        loss = step.run(loss_fn)
        session.log(loss=loss, momentum=step.number / 40)
        while step.number == 20 and GATE and not os.path.exists(GATE):
            time.sleep(0.01)
print("the <last> line")
"""


def run(store: Store, *words: str) -> str:
    command = [sys.executable, "-m", "jupyter_hyperpod", "--store", str(store.root), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_a_job_with_a_loss_and_one_without_are_the_same_to_the_last_bit(cluster: Store, tmp_path: Path) -> None:
    gate, page = tmp_path / "gate", tmp_path / "page.html"
    disturbed = jobs.submit(cluster, f"GATE = {str(gate)!r}\n{CELL}", nodes=2, spares=1, name="disturbed")
    wait_for_step(cluster, disturbed, 19)
    run(cluster, "report", disturbed, "-o", str(page))
    text = harmless(page.read_text()).text
    assert "has trained" in text and "it is running" in text and "while the job ran" in text
    jobs.fault(cluster, disturbed, "kill", rank=1)
    gate.touch()
    assert jobs.wait(cluster, disturbed, timeout_s=BOUND_S)["state"] == "succeeded"
    calm = jobs.submit(cluster, f"GATE = ''\n{CELL}", nodes=3, spares=0, name="calm")
    assert jobs.wait(cluster, calm, timeout_s=BOUND_S)["state"] == "succeeded"

    record = read(cluster, disturbed)
    assert record.incident_count == 1 and record.decisions and 0 < (record.time.goodput or 0) < 1
    assert "process killed" in record.time.lost and record.output[-1][1].endswith("the <last> line")
    assert record.curves[1, "momentum"].last == 1.0
    run(cluster, "report", disturbed, "-o", str(page))
    shown = harmless(page.read_text())
    for text in (record.decisions[0][2], "process killed", record.view["digest"], "the <last> line", "momentum"):
        assert text in shown.text
    assert any("1 loss of a node" in alt for alt in shown.pictures)

    found = json.loads(run(cluster, "compare", "disturbed", "calm", "-o", str(page), "--json"))
    assert found["identity"][0]["sentence"] == (
        f"{disturbed} and {calm} are bit-identical until step 40; their states after step 40 have the same digest"
    )
    assert found["differences"]["parameters"]["nodes"] == ["2", "3"]
    assert "-GATE" in harmless(page.read_text()).text
