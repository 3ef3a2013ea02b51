"""A member that joins when all steps are done has what the program reads behind its loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.conftest import Submit

STEPS = 6
CELL = """
import os, time, torch, jupyter_hyperpod as hp
torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(64)]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

def loss_of(batch):
    if session.step == 5 and not os.path.exists(os.environ.get("GO", "/")):
        time.sleep(0.5)  # between two micro-batches, the member copies its state for newcomers
    loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    return loss, {"error": loss.detach().abs()}

with hp.Session(model, optimizer, data, global_batch=16, micro_batch=1) as session:
LOOP
print("result", loss, step.number, step.metrics["error"] if step.number == 6 else "")
"""
LOOPS = {
    "one loop": """
    for step in session.steps(6):
        loss = step.run(loss_of)
""",
    "epochs": """
    for epoch in session.epochs(3):
        for step in session.steps(2):
            loss = step.run(loss_of)
    print("last epoch", epoch)
""",
    "left by break": """
    for step in session.steps(100):
        loss = step.run(loss_of)
        if step.number == 6:
            break
""",
    "left before the step": """
    for step in session.steps(100):
        if step.number > 6:
            break
        loss = step.run(loss_of)
""",
    "stopped": """
    for step in session.steps(100):
        loss = step.run(loss_of)
        if step.number == 5:
            session.stop("it is enough")
""",
    "two loops": """
    for step in session.steps(4):
        loss = step.run(loss_of)
    for step in session.steps(2):
        loss = step.run(loss_of)
""",
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", LOOPS)
def test_a_member_that_joins_when_all_steps_are_done(job: Submit, tmp_path: Path, name: str) -> None:
    cell, go = CELL.replace("LOOP", LOOPS[name].strip("\n")), tmp_path / "go"
    alone = job(cell, nodes=1)
    alone.finish()
    run = job(cell, nodes=1, elastic="1:2", env={"GO": str(go)})
    run.until_step(STEPS - 1)
    run.scale(2)
    run.until_event("decision.made", value={"after": STEPS})
    go.touch()
    run.finish()
    texts = {rank: text for rank, text in run.text().items() if rank is not None}
    assert len(texts) == 2 and set(texts.values()) == {alone.text()[0]}, run.story()
