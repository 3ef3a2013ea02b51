"""Carries out remedies through SLURM: builds command lines, parses `scontrol` (pure), and runs the commands.

Amazon SageMaker HyperPod reboots or replaces a node whose reason is exactly ``Action:Reboot`` or ``Action:Replace``.
Where SLURM itself can reboot (RebootProgram), SLURM reboots the node and returns it to service afterwards.
Formats: scontrol(1) of 22.05.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ...core.errors import ClusterError
from ...core.health import REASON_ACTIONS
from ..types import NodeInfo

COMMAND_S = 20.0
OWN_REASON = "hyperpod: "
SHOW_ALL = ["scontrol", "show", "node", "--oneliner"]
_REASONS = {action: reason for reason, action in REASON_ACTIONS.items()}
_REASON_LIMIT = 160
_FIELD = re.compile(r"(?:^|\s)([A-Za-z]+)=(\S*)")
_REASON = re.compile(r"\sReason=(.*?)(?:\s\[[^\]]*\])?\s*(?:Comment=.*)?$")
_OUT = frozenset({"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "DOWN", "REBOOT", "REBOOT_ISSUED"})


def nodes(text: str) -> Iterator[NodeInfo]:
    """The nodes in the output of ``SHOW_ALL``; other lines are left out."""
    for line in text.splitlines():
        found = dict(_FIELD.findall(line))
        if not found.get("NodeName"):
            continue
        reason = _REASON.search(line)
        states = frozenset(found.get("State", "").rstrip("*").split("+"))
        yield NodeInfo(
            name=found["NodeName"],
            states=states,
            reason=reason[1].strip() if reason else "",
            cpus=_count(found.get("CPUTot", "")),
            cpus_allocated=_count(found.get("CPUAlloc", "")),
            load=_load(found.get("CPULoad", "")),
            gres=found.get("Gres", "").replace("(null)", ""),
            gres_allocated=",".join(part for part in found.get("AllocTRES", "").split(",") if part.startswith("gres/")),
            out=bool(states & _OUT),
        )


def commands(node: str, action: str, why: str, reboots: bool) -> list[str]:
    """The commands for an action; ``why`` becomes the reason of a drained node; ``reboots``: SLURM can reboot."""
    if action == "reboot" and reboots:
        return ["scontrol", "reboot", "ASAP", "nextstate=RESUME", f"reason={_REASONS[action]}", node]
    if action in _REASONS:
        return ["scontrol", "update", f"nodename={node}", "state=fail", f"reason={_REASONS[action]}"]
    reason = f"{OWN_REASON}{why}"[:_REASON_LIMIT]
    return ["scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}"]


def reboots(config: str) -> bool:
    """Whether `scontrol show config` names a program that reboots a node."""
    match = re.search(r"^RebootProgram\s*=\s*(\S+)", config, re.M)
    return match is not None and match[1] != "(null)"


def returned(node: str) -> list[str]:
    """The command that returns a node to service."""
    return ["scontrol", "update", f"nodename={node}", "state=resume"]


class SlurmRemedies:
    """See `backends.base.Remedies`."""

    shares_store = True

    def __init__(self) -> None:
        self._reboots: bool | None = None

    def installed(self) -> bool:
        return shutil.which("scontrol") is not None

    def carry_out(self, node: str, action: str, why: str) -> str:
        if self._reboots is None:
            self._reboots = reboots(run(["scontrol", "show", "config"]))
        command = commands(node, action, why, self._reboots)
        present = self.node_info(node)
        if present is not None and present.out and present.reason == _REASONS.get(action):
            return f"SLURM was asked before: {present.reason}"
        run(command)
        return " ".join(command)

    def resume(self, node: str) -> None:
        present = self.node_info(node)
        if present is not None and present.out and present.reason.startswith(OWN_REASON):
            run(returned(node))

    def put_back(self, node: str) -> None:
        run(returned(node))

    def run_on(self, node: str, words: Sequence[str], name: str, directory: Path, limit_s: float) -> str:
        """By a job of its own: no other way is sure to lead there."""
        present = self.node_info(node)
        if present is not None and present.out:
            raise ClusterError(
                f"SLURM starts nothing on {node}, which is {'+'.join(sorted(present.states)).lower()} "
                f"({present.reason}): return it to service (`jupyter hyperpod nodes resume {node}`), or run "
                "`jupyter hyperpod health check` there"
            )
        output, log = directory / f"{name}.out", directory / "log"
        options = ["--wait", "--quiet", f"--nodelist={node}", "--nodes=1", "--ntasks=1", f"--job-name={name}"]
        options += [f"--output={_plain(output)}", f"--error={_plain(log)}-%j"]
        script = f"#!/bin/sh\nexec {shlex.join([sys.executable, '-m', *words])}\n"
        try:
            done = subprocess.run(["sbatch", *options], input=script, capture_output=True, text=True, timeout=limit_s)
            lines = output.read_text(errors="replace").strip().splitlines() if output.exists() else []
        except FileNotFoundError as error:
            raise ClusterError(f"{node} is no node of the local cluster, and `sbatch` was not found") from error
        except BaseException as error:  # nobody waits any more, so it shall not begin hours later
            with suppress(ClusterError):
                run(["scancel", "--quiet", f"--name={name}"])
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeoutError(f"{name} did not end within {limit_s:g} s") from error
            raise
        finally:
            output.unlink(missing_ok=True)
        if not lines:
            said = " ".join(done.stderr.split())[:300] or f"exit status {done.returncode}"
            raise ClusterError(f"the check of {node} printed nothing: {said}; its log is in {directory}")
        return lines[-1]

    def show_check(self, node: str, state: str) -> str:
        """SLURM shows nothing of the kind."""
        return ""

    def recovery(self) -> str:
        return ""

    def serves(self, node: str) -> bool:
        present = self.node_info(node)
        return present is not None and not present.out

    def node_info(self, node: str) -> NodeInfo | None:
        try:
            shown = nodes(run(["scontrol", "show", "node", "--oneliner", node]))
            return next((info for info in shown if info.name == node), None)
        except ClusterError as error:
            if f"Node {node} not found" in str(error):
                return None
            raise


def _plain(path: Path) -> str:
    """A path in which SLURM replaces nothing."""
    return str(path).replace("%", "%%")


def run(command: Sequence[str]) -> str:
    """Run one of SLURM's commands, without a shell. Raises ClusterError."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_S,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
    except FileNotFoundError as error:
        raise ClusterError(f"`{command[0]}` was not found: remedies go through SLURM where its commands are") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"`{command[0]}` cannot be run: {error}") from error
    if done.returncode:
        said = " ".join(f"{done.stderr} {done.stdout}".split())  # scontrol writes some errors to standard output
        raise ClusterError(f"`{' '.join(command)}` was refused: {said[:300]}")
    return done.stdout


def _count(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _load(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
