"""Helpers beside a job's processes: which are started, and for which node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.runtime.context import Context
from jupyter_hyperpod.runtime.sidecars import SCHEDULER_NODE_VARIABLE, health_agent
from jupyter_hyperpod.storage.store import ENVIRONMENT_VARIABLE, Store


def test_a_health_agent_belongs_to_the_node_that_its_backend_names(
    store: Store, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., object]
) -> None:
    spec = JobSpec("job", store.put_cell("pass"), backend="slurm")
    job = store.create_job(spec)
    context = Context(job, "n1.7-0", store.cells / spec.cell_digest, spec, False, "0")
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(store.root))
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    assert health_agent(context) is None, "the backend has not named the node"
    monkeypatch.setenv(SCHEDULER_NODE_VARIABLE, "n1")
    agent = health_agent(context)
    assert agent is not None
    try:
        shown = Path(f"/proc/{agent.pid}/cmdline")
        words = str(eventually(shown.read_text)).split("\0")  # it is empty while the program begins
    finally:
        agent.kill()
        agent.wait()
    assert words[words.index("--node") + 1] == "n1" and words[words.index("--backend") + 1] == "slurm"
