"""A cell that trains on each node by itself is told so; one that trains on all of them, or on one, is not."""

from __future__ import annotations

import pytest

from tests.runtime.conftest import TRAIN, Submit

LOOP = """
import torch
GROUP
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""
GROUP = "torch.distributed.init_process_group('gloo')"


def loop(steps: int, group: str = "") -> str:
    return LOOP.replace("STEPS", str(steps)).replace("GROUP", group)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("source", "nodes", "told"),
    [
        (loop(3), 2, 1),
        (loop(50), 3, 1),
        (loop(50), 1, 0),
        (loop(50, GROUP), 2, 0),
        ("print(1)", 2, 0),
        (TRAIN, 2, 0),
    ],
    ids=["short", "long", "one node", "process group", "no training", "session"],
)
def test_a_cell_that_trains_on_each_node_by_itself_is_told_so(job: Submit, source: str, nodes: int, told: int) -> None:
    run = job(source, nodes=nodes, env={"PAUSE_S": "0"})
    run.finish()
    said = [event.data["text"] for event in run.of_kind("warning.raised")]
    assert [f"each of the {nodes} members does the whole training by itself" in text for text in said] == [True] * told
