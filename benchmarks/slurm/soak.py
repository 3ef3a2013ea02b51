"""Random faults on a real SLURM, one after another, for as long as you like: is anything lost, or ever stuck?"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from benchmarks.slurm.rig import Rig, slurm_rig
from benchmarks.soak import EVERY_S, OURS, SAVE_EVERY, STUCK_S, Act, Mend, Soak, fault, nothing, until_commits
from jupyter_hyperpod.bench.laboratory import Observer, progress
from jupyter_hyperpod.bench.report import not_run, report
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.errors import ClusterError
from tests.support.slurm import CONTROLLER, missing

DUPLICATE = "Duplicate jobid"  # SLURM's words where a number that it has forgotten is given once more


def run(minutes: float = 60.0, seed: int = 0, every_s: float = EVERY_S, keep: str = "") -> dict[str, Any]:
    """Disturb one job on three of four nodes for ``minutes``, a fault every ``every_s`` seconds or as soon as the last
    is mended; after each further steps have to be committed. Then compare with an undisturbed run. Needs root.

    Every kind of fault comes once, in random order, before any comes again; however few the minutes, each comes once.
    ``keep`` names a directory that gets the journals and SLURM's logs.
    """
    if reason := missing():
        return report("slurm-soak", [not_run(OURS, "everything", reason)], [])
    with slurm_rig(keep=keep) as rig:
        watch = rig.train("soak", 3, "1:3", save_every=SAVE_EVERY, partition="train", elastic_partition="spot")
        watch.until_step(5, STUCK_S)
        soak = Soak("slurm-soak", rig, watch, FAULTS, partial(_look_after, rig))
        return soak.run(minutes, seed, every_s)


def _look_after(rig: Rig) -> None:
    """An operator's part: a controller that has lost its last seconds gives numbers of jobs anew that nodes know, and
    puts these nodes out of service until somebody puts them back.
    """
    with suppress(ClusterError):  # SLURM does not answer just now: there is a next look
        for node, reason in rig.bed.reasons().items():
            if reason == DUPLICATE:
                progress(f"{node} is put back into service: {reason}")
                rig.bed.resume(node)


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
        until_commits(watch, 3)
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


def _heal(undo: Callable[[Rig, str], object]) -> Mend:
    def mend(rig: Rig, node: str) -> None:
        undo(rig, node)
        _back_if_it_can(rig, node)

    return mend


FAULTS: dict[str, tuple[Act, Mend]] = {
    "kill": (fault("kill"), nothing),
    "hang": (fault("hang"), nothing),
    "throttle": (fault("throttle", factor=3.0, duration_s=3.0), nothing),
    "preempt": (fault("preempt"), nothing),
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
    "resize": (_resize, nothing),
}
