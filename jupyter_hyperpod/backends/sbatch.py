"""A LaunchPlan as a SLURM array of one-node jobs, and what SLURM says about it, as text. Pure.

Every node of a job is an array element of its own: what becomes of one is nobody else's end, and SLURM requeues it by
itself. The elements that must be there come from one partition, those that may be taken back from another.
Formats: sbatch(1) and squeue(1) of 22.05.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..core.errors import ClusterError
from ..core.spec import LaunchPlan

BASE, ELASTIC = "base", "elastic"
ELASTIC_PARTITION, BIND = "elastic-partition", "bind"
OWN_OPTIONS = (ELASTIC_PARTITION, BIND)
WARNING_S = 60  # how long before the end of its time an element is told
QUEUE_FORMAT = "%F|%K|%T|%N|%r"
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SUSPENDED"})
RUNNING = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"})
_BIND_TO = "auto"


@dataclass(frozen=True, slots=True)
class Element:
    """One array element as squeue shows it; ``node`` is empty while it waits, ``reason`` is SLURM's own word."""

    array: int
    task: int
    state: str
    node: str
    reason: str

    @property
    def active(self) -> bool:
        """It runs, or it will."""
        return self.state in WAITING or self.state in RUNNING


def arguments(plan: LaunchPlan, options: Mapping[str, str], part: str, count: int) -> list[str]:
    """The command line that submits ``count`` more elements of a part; the script is its input."""
    given = {name: value for name, value in options.items() if name not in OWN_OPTIONS}
    if part == ELASTIC and ELASTIC_PARTITION in options:
        given["partition"] = options[ELASTIC_PARTITION]
    fixed = {
        "job-name": plan.job_id,
        "array": f"0-{count - 1}",
        "nodes": "1",
        "ntasks": "1",
        "output": f"{plan.log_directory.replace('%', '%%')}/slurm-%A-%a.log",
        "open-mode": "append",
        "export": "NIL",
        "signal": f"USR1@{WARNING_S}",
        "comment": part,
    }
    flags = ["--parsable", "--requeue", *([] if "cpus-per-task" in options else ["--exclusive"])]
    return ["sbatch", *flags, *(f"--{name}={value}" for name, value in (given | fixed).items())]


def script(plan: LaunchPlan, options: Mapping[str, str]) -> str:
    """The script of an element: the plan's environment, and its module in the place of the shell."""
    env = dict(plan.env) | {"HYPERPOD_BIND": _BIND_TO, "HYPERPOD_SOCKETS_ONLY": "1", "HYPERPOD_SPARE": ""}
    lines = ["#!/bin/sh", f"# {plan.job_id}: one of its nodes"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(env.items())]
    suffix = ".$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID" if "cpus-per-task" in options else ""
    lines.append(f'export HYPERPOD_NODE="$SLURMD_NODENAME{suffix}"')
    lines.append(f"cd {shlex.quote(plan.working_directory)} || cd /")
    command = shlex.join([plan.python, "-m", plan.module, *plan.arguments])
    lines.append(f"exec srun --ntasks=1 --nodes=1 --export=ALL --kill-on-bad-exit=0 {command}")
    return "\n".join(lines) + "\n"


def submitted(text: str) -> int:
    """The array's number in what `sbatch --parsable` printed. Raises ClusterError."""
    number = text.strip().partition(";")[0]
    if not number.isdecimal():
        raise ClusterError(f"sbatch printed {text.strip()[:200]!r}; expected the number of the job it has submitted")
    return int(number)


def queue(text: str) -> Iterator[Element]:
    """The elements in what `squeue -h -r -o QUEUE_FORMAT` printed; lines about other kinds of jobs are left out."""
    for line in text.splitlines():
        fields = line.split("|", 4)
        if len(fields) == 5 and fields[0].isdecimal() and fields[1].isdecimal():
            yield Element(int(fields[0]), int(fields[1]), fields[2], fields[3], fields[4])
