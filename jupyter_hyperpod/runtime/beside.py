"""The health agent beside a job's own: where no supervisor of ours looks after a node, one watches while a job runs."""

from __future__ import annotations

import os
import subprocess
import sys

from ..storage.store import ENVIRONMENT_VARIABLE
from .context import Context

MODULE = "jupyter_hyperpod.health.agent"
WATCHER = "jupyter_hyperpod.health.logwatch"


def log_watcher(context: Context) -> subprocess.Popen[bytes] | None:
    """Start what watches the output of all ranks, where the job has rules about it; it ends with this process."""
    if not context.spec.log_rules:
        return None
    command = [sys.executable, "-m", WATCHER, "--job", str(context.job.path), "--parent", str(os.getpid())]
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"nobody watches the output: {error}", file=sys.stderr)
        return None


def health_agent(context: Context) -> subprocess.Popen[bytes] | None:
    """Start it where SLURM runs the node; it ends with this process, and at once where the node has one already."""
    root, node = os.environ.get(ENVIRONMENT_VARIABLE), os.environ.get("SLURMD_NODENAME")
    if context.spec.backend != "slurm" or not root or not node:
        return None
    command = [sys.executable, "-m", MODULE, "--store", root, "--node", node, "--slurm", "--parent", str(os.getpid())]
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"no health agent on {node}: {error}", file=sys.stderr)
        return None
