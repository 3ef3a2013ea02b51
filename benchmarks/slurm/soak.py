"""Random faults on a real SLURM, one after another, for as long as you like: is anything lost, or ever stuck?"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from benchmarks.slurm.rig import Rig, compare, end, slurm_rig
from jupyter_hyperpod.bench.laboratory import Observer, progress
from jupyter_hyperpod.bench.report import bar, not_run, report, row
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.errors import ClusterError, Conflict, NotFound
from jupyter_hyperpod.core.events import TERMINAL_STATES
from tests.support.slurm import CONTROLLER, missing

OURS = "jupyter_hyperpod"
STUCK_S = 90.0
EVERY_S = 18.0  # 200 in an hour
LOOK_EVERY_S = 3.0
DUPLICATE = "Duplicate jobid"  # SLURM's words where a number that it has forgotten is given once more
SAVE_EVERY = 20  # steps: the last member that holds the state may be hit as well


def run(minutes: float = 60.0, seed: int = 0, every_s: float = EVERY_S, keep: str = "") -> dict[str, Any]:
    """Disturb one job on three of four nodes for ``minutes``, a fault every ``every_s`` seconds or as soon as the last
    is mended; after each further steps have to be committed. Then compare with an undisturbed run. Needs root.

    Every kind of fault comes once, in random order, before any comes again; however few the minutes, each comes once.
    ``keep`` names a directory that gets the journals and SLURM's logs.
    """
    if reason := missing():
        return report("slurm-soak", [not_run(OURS, "everything", reason)], [])
    with slurm_rig(keep=keep) as rig:
        return _soak(rig, minutes, seed, every_s)


def _soak(rig: Rig, minutes: float, seed: int, every_s: float) -> dict[str, Any]:
    rng = random.Random(seed)
    dealt: Counter[str] = Counter()
    stuck = 0
    watch = rig.train("soak", 3, "1:3", save_every=SAVE_EVERY, partition="train", elastic_partition="spot")
    watch.until_step(5, STUCK_S)
    ends_s = time.monotonic() + 60 * minutes
    kinds, first_round = rng.sample(list(FAULTS), len(FAULTS)), True
    while (first_round or time.monotonic() < ends_s) and watch.view["state"] not in TERMINAL_STATES:
        kind, next_s = kinds.pop(), time.monotonic() + every_s
        if not kinds:
            kinds, first_round = rng.sample(list(FAULTS), len(FAULTS)), False
        progress(f"step {watch.view['step']}, fault {dealt.total() + 1}: {kind}")
        try:
            dealt[kind] += _deal(rig, watch, kind, rng)
        except ClusterError as error:
            stuck += 1
            progress(f"STUCK after {kind}: {error}\n{rig.bed.situation()}")
        watch.until(lambda next_s=next_s: time.monotonic() >= next_s, 2 * every_s + 1.0)  # type: ignore[misc]
    if watch.view["state"] in TERMINAL_STATES:
        raise ClusterError(f"the job {watch.view['state']} by itself: {watch.view['reason']}")
    end(watch)
    bars = compare(watch)
    case = f"{minutes:g} minutes, {dealt.total()} faults, {watch.view['step']} steps"
    rows = [row(OURS, case, f"faults: {kind}", "faults", [count]) for kind, count in sorted(dealt.items())]
    rows.append(row(OURS, case, "incidents", "incidents", [len(watch.view["incidents"])]))
    bars += [bar("stuck", stuck, 0), bar("faults", dealt.total(), at_least=1)]
    return report("slurm-soak", rows, bars) | {"seed": seed}


def _deal(rig: Rig, watch: Observer, kind: str, rng: random.Random) -> bool:
    """Deal a fault, see the job commit steps, mend what was broken. Raises ClusterError where it is stuck."""
    watch.read()
    if not (members := watch.view["members"]):
        return False
    victim = rng.choice(members)
    act, mend = FAULTS[kind]
    try:
        act(rig, watch, victim)
        _until_commits(watch, 2, lambda: _look_after(rig))
    except (Conflict, NotFound):  # it has gone by now
        return False
    finally:
        mend(rig, victim["node"])
    return True


def _until_commits(watch: Observer, count: int, look: Callable[[], None] = lambda: None) -> None:
    """Wait for so many commits, of new steps or of steps that are taken again after a checkpoint; `look` meanwhile."""
    watch.read()
    before, next_s = len(watch.events), 0.0

    def committed() -> bool:
        nonlocal next_s
        if time.monotonic() >= next_s:
            look()
            next_s = time.monotonic() + LOOK_EVERY_S
        return sum(e.kind == "step.committed" for e in watch.events[before:]) >= count

    watch.until(committed, STUCK_S)


def _look_after(rig: Rig) -> None:
    """An operator's part: a controller that has lost its last seconds gives numbers of jobs anew that nodes know, and
    puts these nodes out of service until somebody puts them back.
    """
    with suppress(ClusterError):  # SLURM does not answer just now: there is a next look
        for node, reason in rig.bed.reasons().items():
            if reason == DUPLICATE:
                progress(f"{node} is put back into service: {reason}")
                rig.bed.resume(node)


Act = Callable[[Rig, Observer, dict[str, Any]], object]
Mend = Callable[[Rig, str], object]


def _fault(kind: str, **options: float) -> Act:
    def act(_: Rig, watch: Observer, victim: dict[str, Any]) -> None:
        jobs.fault(watch.store, watch.job_id, kind, rank=victim["rank"], **options)  # type: ignore[arg-type]

    return act


def _at_node(kind: str) -> Act:
    def act(_: Rig, watch: Observer, victim: dict[str, Any]) -> None:
        jobs.fault(watch.store, watch.job_id, kind, node=victim["node"])

    return act


def _urgent(rig: Rig, _: Observer, __: dict[str, Any]) -> None:
    command = ["srun", "-p", "urgent", "-N2", "--exclusive", "sh", "-c", "echo here; sleep 2"]
    done = rig.bed.run(CONTROLLER, *command, timeout_s=STUCK_S, check=False)
    if "here" not in done.stdout:
        raise ClusterError(f"the urgent job got no node: {done.stderr}")
    if done.returncode:  # it has had its nodes, which is all that this job owes it
        progress(f"the urgent job ended with {done.returncode}: {done.stderr}")


def _controller(rig: Rig, watch: Observer, _: dict[str, Any]) -> None:
    rig.bed.stop_controller()
    try:
        _until_commits(watch, 3)
    finally:
        rig.bed.start_controller()


def _resize(_: Rig, watch: Observer, __: dict[str, Any]) -> None:
    jobs.scale(watch.store, watch.job_id, 2)
    watch.until(lambda: watch.view["world_size"] == 2, STUCK_S)
    jobs.scale(watch.store, watch.job_id, 3)


def _back(rig: Rig, node: str) -> None:
    rig.bed.in_service(node)


def _back_if_it_can(rig: Rig, node: str) -> None:
    try:
        rig.bed.in_service(node)
    except ClusterError as error:  # the job has to live with it; what comes next is dealt to three nodes
        progress(f"{node} is not back: {error}")


def _no_urgent(rig: Rig, _: str) -> None:
    rig.bed.run(CONTROLLER, "scancel", "--partition=urgent", check=False)


def _all_back(rig: Rig, _: str) -> None:
    """A controller that goes on from a saved state drains nodes again that were in service, and believes in jobs that
    have ended: an allocation whose `srun` is gone would keep its nodes for ever.
    """
    _no_urgent(rig, "")
    for node in rig.bed.nodes:
        _back_if_it_can(rig, node)


def _nothing(_: Rig, __: str) -> None:
    return


def _heal(undo: Callable[[Rig, str], object]) -> Mend:
    def mend(rig: Rig, node: str) -> None:
        undo(rig, node)
        _back_if_it_can(rig, node)

    return mend


FAULTS: dict[str, tuple[Act, Mend]] = {
    "kill": (_fault("kill"), _nothing),
    "hang": (_fault("hang"), _nothing),
    "throttle": (_fault("throttle", factor=3.0, duration_s=3.0), _nothing),
    "preempt": (_fault("preempt"), _nothing),
    "kill the node's processes": (_at_node("kill"), _back),
    "power cut": (
        lambda rig, _, victim: rig.bed.power_cut(victim["node"]),
        _heal(lambda rig, node: rig.bed.power_on(node)),
    ),
    "freeze": (lambda rig, _, victim: rig.bed.freeze(victim["node"]), _heal(lambda rig, node: rig.bed.thaw(node))),
    "partition": (lambda rig, _, victim: rig.bed.cut(victim["node"]), _heal(lambda rig, node: rig.bed.heal(node))),
    "slow node": (
        lambda rig, _, victim: rig.bed.slow_down(victim["node"]),
        _heal(lambda rig, node: rig.bed.full_speed(node)),
    ),
    "drain": (lambda rig, _, victim: rig.bed.drain(victim["node"], "soak"), _back),
    "urgent job": (_urgent, _no_urgent),
    "controller restarted": (_controller, _all_back),
    "resize": (_resize, _nothing),
}
