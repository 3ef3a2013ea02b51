"""Renders a LaunchPlan as a SLURM array of one-node jobs, and parses SLURM's output about it. Pure.

Every node of a job is an array element of its own, so the end of one does not end others. The elements that must be
there come from one partition, those that may be taken back from another.
Formats: sbatch(1) and squeue(1) of 22.05.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...core.backend_options import BIND, STARTUP_DEADLINE
from ...core.errors import ClusterError
from ...core.spec import LaunchPlan
from ..types import ELASTIC, Element, ElementPhase

ELASTIC_PARTITION = "elastic-partition"
OWN_OPTIONS = (ELASTIC_PARTITION, BIND, STARTUP_DEADLINE)
STEP = 0  # the script's own srun
WARNING_S = 60  # how long before the end of its time an element is told
QUEUE_FORMAT = "%F|%K|%T|%N|%r|%j|%k"
NODES_FORMAT = "%N|%T|%P|%E"
HISTORY_FORMAT = "JobID,State,NodeList,ExitCode"
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SUSPENDED"})
QUEUED = frozenset({"PENDING", "REQUEUED"})  # of those that wait, what only lacks nodes or time
RUNNING = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"})
# of the reasons for which they wait, those that say no more than that there is no node
FOR_NODES = frozenset({"", "None", "Priority", "Resources", "ReqNodeNotAvail", "Nodes required for job are DOWN"})
FAILED = frozenset({"FAILED", "TIMEOUT", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"})
FORGOTTEN = "FORGOTTEN"  # our own word for an end that neither the queue nor accounting knows
NEVER = "launch failed"  # SLURM holds what it could not start once; only a person would release it
DELAYED = ("BeginTime", "None")  # what SLURM says of what it has just requeued
REQUEUED_WAITS = "SLURM lets what it has requeued wait for `cred_expire`, two minutes by default, whatever is idle"
# what sinfo calls a node that shall get nothing new, or never again, and one that gets work
DRAINING = frozenset({"drained", "draining", "fail", "failing"})
SERVING = frozenset({"idle", "allocated", "mixed", "completing", "planned"})
MARKS = "*~#!%$@^-+"  # behind a state: it does not answer, sleeps, wakes, is to be rebooted, is planned for, ...
AWAY = ("unable to contact", "timed out", "connection refused", "connection reset", "communication", "cannot be run")
NO_ACCOUNTING = "accounting storage is disabled"
_BIND_TO = "auto"
History = dict[str, tuple[str, str, str]]  # element -> (state, node, exit code)
# They describe the one node of an element, as it was when that began: a library that takes them for the job's is wrong.
STALE = (
    "SLURM_JOB_NODELIST SLURM_NODELIST SLURM_STEP_NODELIST SLURM_JOB_NUM_NODES SLURM_NNODES SLURM_STEP_NUM_NODES "
    "SLURM_NTASKS SLURM_NPROCS SLURM_STEP_NUM_TASKS SLURM_TASKS_PER_NODE SLURM_STEP_TASKS_PER_NODE SLURM_PROCID "
    "SLURM_NODEID SLURM_LOCALID"
).split()


def element(array: int, task: int, state: str, node: str, reason: str, job: str = "", part: str = "") -> Element:
    """An array's element; ``job`` and ``part`` are what it was submitted as."""
    phase = (
        ElementPhase.QUEUED if state in QUEUED else ElementPhase.WAITING if state in WAITING else ElementPhase.RUNNING
    )
    if state not in WAITING and state not in RUNNING:
        phase = ElementPhase.FAILED if state in FAILED else ElementPhase.ENDED
    status = 0 if state == "COMPLETED" else None
    aliases = (f"{node}.{array}-{task}",)
    return Element(f"{array}_{task}", state, phase, node, reason, job, part, array, aliases, status)


def named(name: str, state: str, node: str, reason: str, job: str, part: str) -> Element | None:
    """An element by the name that SLURM's commands have for it; None for a name that is none."""
    array, _, task = name.partition("_")
    if not (array.isdecimal() and task.isdecimal()):
        return None
    return element(int(array), int(task), state, node, reason, job, part)


def why_held(element: Element, requeued: bool) -> str:
    """Why SLURM will not start an element that waits, or not soon; "" where it may. What a person holds stays held."""
    if element.waits and NEVER in element.reason.lower():
        return element.reason
    return REQUEUED_WAITS if requeued and element.reason in DELAYED else ""


def partition(options: Mapping[str, str], part: str) -> str:
    """The partitions from which a part of a job comes; "" for the default one."""
    base = options.get("partition", "")
    return options.get(ELASTIC_PARTITION, base) if part == ELASTIC else base


def excluding(options: Mapping[str, str], nodes: Sequence[str]) -> dict[str, str]:
    """A person's options, with nodes excluded beside those they exclude themselves."""
    excluded = [name for name in (options.get("exclude", ""), *nodes) if name]
    return dict(options) | ({"exclude": ",".join(excluded)} if nodes else {})


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
        "export": "ALL",  # of the little that it is run with; NIL makes every node start a login shell first
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
    lines.append('export HYPERPOD_SCHEDULER_NODE="$SLURMD_NODENAME"')
    lines.append(f"cd {shlex.quote(plan.working_directory)} || cd /")
    shown = " ".join(f"-u {name}" for name in STALE)
    command = shlex.join([plan.python, "-m", plan.module, *plan.arguments])
    lines.append(f"exec srun --ntasks=1 --nodes=1 --export=ALL --kill-on-bad-exit=0 env {shown} {command}")
    return "\n".join(lines) + "\n"


def away(problem: str) -> bool:
    """Whether a command failed because the controller does not answer, so that it may be tried again."""
    return any(words in problem.lower() for words in AWAY)


def submitted(text: str) -> int:
    """The array's number in what `sbatch --parsable` printed. Raises ClusterError."""
    number = text.strip().partition(";")[0]
    if not number.isdecimal():
        raise ClusterError(f"sbatch printed {text.strip()[:200]!r}; expected the number of the job it has submitted")
    return int(number)


def queue(text: str) -> Iterator[Element]:
    """The elements in what `squeue -h -r -o QUEUE_FORMAT` printed; lines about other kinds of jobs are left out."""
    for line in text.splitlines():
        fields = line.split("|", 6)
        if len(fields) == 7 and fields[0].isdecimal() and fields[1].isdecimal():
            array, task, state, node, reason, job, part = fields
            yield element(int(array), int(task), state, node, reason, job, part)


def _nodes(text: str) -> Iterator[tuple[str, str, str, str]]:
    """(node, state, partition, why); of the marks behind a state only `*` stays: the node does not answer.

    The mark of the default partition stays, too.
    """
    for line in text.splitlines():
        fields = line.split("|", 3)
        if len(fields) == 4:
            node, state, partition, why = fields
            bare = state.rstrip(MARKS)
            yield node, bare + "*" * ("*" in state), partition, "" if why.strip() == "none" else why.strip()


def node_states(text: str) -> dict[str, tuple[str, str]]:
    """Node -> (state, why) in what `sinfo -h -N -o NODES_FORMAT` printed."""
    return {node: (state, why) for node, state, _, why in _nodes(text)}


def serving(text: str, partitions: str = "") -> set[str]:
    """Nodes that get work, of partitions ("a,b") or of the default one, in the same."""
    wanted = set(filter(None, partitions.split(",")))
    return {
        node
        for node, state, name, _ in _nodes(text)
        if state in SERVING and (name.rstrip("*") in wanted if wanted else name.endswith("*"))
    }


def draining(text: str) -> dict[str, str]:
    """Nodes that shall get nothing new, and why, in the same."""
    states = node_states(text).items()
    return {node: reason or state.rstrip("*") for node, (state, reason) in states if state.rstrip("*") in DRAINING}


def ended(element: Element, found: History) -> Element:
    """An element that the queue has forgotten, from accounting."""
    state, node, code = found.get(element.name, (FORGOTTEN, "", ""))
    reason = f"accounting tells exit code {code}" if code else "neither the queue nor accounting knows its end"
    told = named(element.name, state, node or element.node, reason, element.job, element.part)
    assert told is not None
    return replace(told, status=_exit_status(code))


def _exit_status(code: str) -> int | None:
    """What accounting has as "STATUS:SIGNAL", negative for a signal."""
    status, _, number = code.partition(":")
    if not (status.isdecimal() and number.isdecimal()):
        return None
    return -int(number) if int(number) else int(status)


def history(text: str) -> History:
    """What `sacct -n -X -P --format=HISTORY_FORMAT` printed, the newest last."""
    found: History = {}
    for line in text.splitlines():
        fields = line.split("|")
        array, _, task = fields[0].partition("_")
        if len(fields) == 4 and array.isdecimal() and task.isdecimal():
            state = fields[1].split(" ")[0]
            found[fields[0]] = (state, "" if fields[2] == "None assigned" else fields[2], fields[3])
    return found
