"""Benchmarks: real clusters, real faults, an observer outside. Each returns both sides of every comparison as JSON."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from typing import Any

from ..control.request import near_matches
from ..core.errors import SpecError

NAMES = {
    "latency": "a second cell on a warm cluster: submit to the first line of its own output",
    "recovery": "a node is killed: the survivors' stall, and the time until a spare is at full strength",
    "partition": "a node is cut off the network: the survivors' stall, and whether it ever commits a step (root)",
    "overhead": "an undisturbed step of ours against plain DDP's, in alternating blocks",
    "elastic": "a job grows and shrinks while it trains: the survivors' pause, and whether a process is started anew",
    "abuse": "a member is killed every 5.5 and every 1.4 steps: how much of an undisturbed run's speed is left",
    "chaos": "random schedules of faults against one undisturbed run: every loss and the final state, bit for bit",
    "corruption": "random bit flips in the training state: found when, whose, and what looking for them costs",
    "soak": "one job under a fault every few seconds, for as long as you like: what grows, is anything lost?",
    "serving": "a deployment grows: decision to first answer by stages; replicas are killed under load: requests lost",
    "components": "a rank is killed with each checkpointless component switched off: what each is worth",
    "health": "an Xid in a node's kernel log of a real SLURM: labelled, drained, rebooted or replaced when (root)",
    "slurm": "a real SLURM of four nodes: a kill, a power cut, an urgent job, a thousand jobs (root)",
    "slurm-soak": "random faults on that SLURM, one after another, for as long as you like (root)",
    "plan": "the planner: a year of a hundred thousand instances, and real jobs under faults against their simulation",
    "loading": "a model from an object store into memory: ours against other loaders, and against the machine",
}


def run(name: str, **options: Any) -> dict[str, Any]:
    """Run one benchmark and return its report (see `bench.report`). Raises SpecError for an unknown name or option."""
    if name not in NAMES:
        raise SpecError(f"no benchmark named {name!r}; expected one of {', '.join(NAMES)}")
    module = import_module(f".{name.replace('-', '_')}", __name__)
    known = list(signature(module.run).parameters)
    for option in options.keys() - set(known):
        expected = f"expected one of {', '.join(known)}" if known else "it has none"
        raise SpecError(f"bench {name}: no option {option!r}; {expected}{near_matches(option, known)}")
    report: dict[str, Any] = module.run(**options)
    return report
