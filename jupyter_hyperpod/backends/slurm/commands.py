"""Runs SLURM's commands with little of this process's environment, and says which of them this machine lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

from ...core.errors import ClusterError
from . import script

PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH", "TZ", "SLURM_CONF")
COMMAND_TIMEOUT_S = 30.0
COMMANDS = ("sbatch", "squeue", "scancel", "sinfo")
QUEUE = ["squeue", "--noheader", "--array", "--me", "--states=all", f"--format={script.QUEUE_FORMAT}"]
NODES = ["sinfo", "--noheader", "--Node", f"--format={script.NODES_FORMAT}"]
HISTORY = ["sacct", "--noheader", "--allocations", "--parsable2", f"--format={script.HISTORY_FORMAT}"]


def node_states(partition: str = "") -> dict[str, tuple[str, str]]:
    """Node -> (state, why), of a partition or of all. Raises ClusterError."""
    return script.node_states(run([*NODES, *([f"--partition={partition}"] if partition else [])]))


def found() -> list[str]:
    """SLURM's programs that this machine has, of those that are needed."""
    return [command for command in COMMANDS if shutil.which(command)]


def missing() -> str:
    """What this machine lacks to be where jobs are submitted to SLURM, as a sentence; "" where nothing does."""
    here = found()
    lacking = [command for command in COMMANDS if command not in here]
    if not lacking:
        return ""
    commands = ", ".join(f"`{command}`" for command in lacking)
    return (
        f"{commands} not found in PATH ({os.environ.get('PATH', '')}): the backend slurm is used on a login node of "
        "the cluster, where SLURM's commands are (try `module load slurm`); --backend local needs none"
    )


def run(command: list[str], text: str = "") -> str:
    """Return what a command with the input ``text`` prints. Raises ClusterError where it fails."""
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, env=_environment(os.environ)
        )
    except FileNotFoundError as error:
        raise ClusterError(missing() or f"`{command[0]}` was not found in PATH") from error
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"`{command[0]}` cannot be run: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise ClusterError(f"`{command[0]}` refused: {said[:500]}")
    return done.stdout


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The little of it that SLURM's commands need, and that jobs then get: no secrets, no options for SLURM."""
    return {name: environment[name] for name in PASSED_ON if name in environment} | {"LC_ALL": "C.UTF-8"}
