"""Starts helpers beside a job's processes: the log watcher, the journal's keeper, and a health agent on the nodes of a
scheduler."""

from __future__ import annotations

import os
import subprocess
import sys

from ..storage.store import ENVIRONMENT_VARIABLE
from .context import Context

MODULE = "jupyter_hyperpod.health.agent"
WATCHER = "jupyter_hyperpod.health.logwatch"
KEEPER = "jupyter_hyperpod.storage.journal_keeper"
SCHEDULER_NODE_VARIABLE = "HYPERPOD_SCHEDULER_NODE"  # set by a backend whose nodes need a health agent of their own


def log_watcher(context: Context) -> subprocess.Popen[bytes] | None:
    """Start the log watcher, where the job has log rules; it ends with this process."""
    if not context.spec.log_rules:
        return None
    return _start([WATCHER, "--job", str(context.job.path)], "nobody watches the output")


def journal_keeper(context: Context) -> subprocess.Popen[bytes] | None:
    """Start a process that keeps the job's journal once, and ends."""
    return _start([KEEPER, "--job", str(context.job.path)], "the journal is not kept small")


def health_agent(context: Context) -> subprocess.Popen[bytes] | None:
    """Start a health agent on a scheduler's node; it ends with this process, and at once where the node has one."""
    root, node = os.environ.get(ENVIRONMENT_VARIABLE), os.environ.get(SCHEDULER_NODE_VARIABLE)
    if not root or not node:
        return None
    return _start(
        [MODULE, "--store", root, "--node", node, "--backend", context.spec.backend], f"no health agent on {node}"
    )


def _start(module: list[str], otherwise: str) -> subprocess.Popen[bytes] | None:
    """Start a process that ends with this one; a failure is only a warning, because the job does not need it."""
    command = [sys.executable, "-m", *module, "--parent", str(os.getpid())]
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{otherwise}: {error}", file=sys.stderr)
        return None
