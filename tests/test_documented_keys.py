"""What the guide says about the JSON of `logs` is what it prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import Store

GUIDE = Path(__file__).parents[1] / "docs" / "your-training.md"


def test_logs_print_the_documented_keys(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = [line for line in GUIDE.read_text().splitlines() if line.startswith("| `--json`")]
    documented = re.findall(r"`([a-z_.]+)`", row.split("|")[2])
    assert {"time_s", "data.node", "data.rank", "data.step"} <= set(documented)
    job = store.create_job(JobSpec(name="train", cell_digest=store.put_cell("1")))
    output = {"member": "m", "node": "node-1", "rank": 0, "stream": "stdout", "text": "a\n", "session": 1, "step": 2}
    with event_writer(job.events, "agent-node-1") as journal:
        journal.append("output.written", output)
    assert main(["logs", job.id, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    for path in documented:
        found = printed
        for key in path.split("."):
            assert key in found, path
            found = found[key]
