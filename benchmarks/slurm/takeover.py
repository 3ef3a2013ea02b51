"""The host from which a job was submitted loses its power, and another login host takes over, again and again.

Two hosts share a store. One serves it, the other stands by. SIGKILL ends everything on the one that serves, and its
link goes down; then it is switched on again and stands by. How long does training stand still, and is a step lost?
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.slurm.rig import Rig, compare, end, slurm_rig
from jupyter_hyperpod.bench.laboratory import Observer, progress
from jupyter_hyperpod.bench.report import bar, not_run, report, row
from jupyter_hyperpod.storage import host_lease
from tests.support.slurm import missing

OURS = "jupyter_hyperpod"
ROUNDS = 20
SETTLE_S = 60.0
STEPS_BETWEEN = 8
STANDSTILL_LIMIT_S = 5.0
WARM = "ready to fork"


def run(runs: int = ROUNDS) -> dict[str, Any]:
    """Cut the power of the serving host ``runs`` times. Needs root and SLURM."""
    if reason := missing():
        return report("takeover", [not_run(OURS, "everything", reason)], [])
    with slurm_rig(logins=2) as rig:
        watch = rig.train("takeover", 3, partition="train")
        watch.until_step(STEPS_BETWEEN, SETTLE_S)
        other = rig.bed.logins[1]
        _stand_by(rig, other)
        found = []
        for number in range(runs):
            host, other = other, _serving(rig)
            found.append(_takeover(rig, watch, other))
            progress(f"takeover {number + 1} by {host}: training stood still for {found[-1]:.2f} s")
            rig.bed.power_on(other)
            _stand_by(rig, other)
        restarted = len({event.writer for event in watch.events if event.writer.startswith("coordinator.")}) - 1
        lost = len(watch.of_kind("member.lost"))
        end(watch)
        rows = [row(OURS, "the submit host loses its power", "training stands still", "s", found)]
        bars = [
            bar("standstill_s", max(found), STANDSTILL_LIMIT_S),
            bar("takeovers", restarted, at_least=runs),
            bar("members_lost", lost, 0),
        ]
        return report("takeover", rows, [*bars, *compare(watch)])


def _takeover(rig: Rig, watch: Observer, host: str) -> float:
    """The longest time between two commits, minus an ordinary step, around a power cut of ``host``."""
    before = len(watch.commits())
    rig.bed.power_cut(host)
    watch.until(lambda: _serving(rig) not in ("", host), SETTLE_S)
    served = len(watch.commits())
    watch.until(lambda: len(watch.commits()) >= served + STEPS_BETWEEN, SETTLE_S)
    times = sorted(commit.time_s for commit in watch.commits()[max(0, before - 4) :])
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    return max(gaps) - min(gaps)


def _serving(rig: Rig) -> str:
    record = host_lease.read(rig.store)
    return record.host if record is not None else ""


def _stand_by(rig: Rig, host: str) -> None:
    """Start a standby on a host, and wait until it could fork a coordinator."""
    directory = rig.store.cluster if _first(rig) == host else rig.store.cluster / host_lease.OTHER_HOSTS / host
    log = directory / "supervisor.log"
    before = _times_warm(log)
    rig.on(host, "cluster", "start", "--standby")
    deadline_s = time.monotonic() + SETTLE_S
    while _times_warm(log) <= before and time.monotonic() < deadline_s:
        time.sleep(0.05)


def _times_warm(log: Path) -> int:
    return log.read_text().count(WARM) if log.exists() else 0


def _first(rig: Rig) -> str:
    return (rig.store.cluster / host_lease.FIRST_HOST).read_text().strip()
