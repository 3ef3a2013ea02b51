"""Random faults on one job of a real cluster, one after another, for as long as you like: is it ever stuck?"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.slurm.rig import compare, end
from jupyter_hyperpod.bench.laboratory import Observer, progress
from jupyter_hyperpod.bench.report import bar, report, row
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.errors import ClusterError, Conflict, NotFound
from jupyter_hyperpod.core.events import TERMINAL_STATES

OURS = "jupyter_hyperpod"
STUCK_S = 90.0
EVERY_S = 18.0  # 200 in an hour
LOOK_EVERY_S = 3.0
SAVE_EVERY = 20  # steps: the last member that holds the state may be hit as well

Act = Callable[[Any, Observer, dict[str, Any]], object]  # of a rig and a job, to a member as its view shows it
Mend = Callable[[Any, str], object]  # of a rig, on a node


def fault(kind: str, **options: float) -> Act:
    """A fault that the job deals to itself."""

    def act(_: Any, watch: Observer, victim: dict[str, Any]) -> None:
        jobs.fault(watch.store, watch.job_id, kind, rank=victim["rank"], **options)  # type: ignore[arg-type]

    return act


def nothing(*_: object) -> None:
    """Nothing is to be mended, or looked after."""


@dataclass(frozen=True)
class Soak:
    """``rig``: the cluster, with its testbed. ``faults``: a kind -> how it is dealt to a member, and how its node is
    mended. ``look``: an operator's look, every few seconds. ``members``: so many have committed a step together before
    the next fault comes."""

    name: str
    rig: Any
    watch: Observer
    faults: Mapping[str, tuple[Act, Mend]]
    look: Callable[[], None] = nothing
    members: int = 1
    dealt: Counter[str] = field(default_factory=Counter)
    whole_s: list[float] = field(default_factory=list)  # how long it took from a mended fault to a step of all members

    def run(self, minutes: float, seed: int, every_s: float) -> dict[str, Any]:
        """Disturb the job for ``minutes``, a fault every ``every_s`` seconds or as soon as the last is mended; then
        compare it with an undisturbed one. Raises ClusterError where it ends by itself.

        Every kind of fault comes once, in random order, before any comes again; however few the minutes, each comes
        once.
        """
        watch, stuck = self.watch, self._disturb(random.Random(seed), minutes, every_s)
        if watch.view["state"] in TERMINAL_STATES:
            raise ClusterError(f"the job {watch.view['state']} by itself: {watch.view['reason']}")
        end(watch)
        bars, total = compare(watch), self.dealt.total()
        case = f"{minutes:g} minutes, {total} faults, {watch.view['step']} steps"
        rows = [row(OURS, case, f"faults: {kind}", "faults", [count]) for kind, count in sorted(self.dealt.items())]
        rows.append(row(OURS, case, "incidents", "incidents", [len(watch.view["incidents"])]))
        if self.members > 1 and self.whole_s:
            rows.append(row(OURS, case, f"mended to a step of {self.members} members", "s", self.whole_s))
        bars += [bar("stuck", stuck, 0), bar("faults", total, at_least=1)]
        return report(self.name, rows, bars) | {"seed": seed}

    def _disturb(self, rng: random.Random, minutes: float, every_s: float) -> int:
        """Returns how often the job was stuck."""
        stuck, began_s = 0, time.monotonic()
        ends_s = began_s + 60 * minutes
        kinds, first_round = rng.sample(list(self.faults), len(self.faults)), True
        while (first_round or time.monotonic() < ends_s) and self.watch.view["state"] not in TERMINAL_STATES:
            kind, next_s = kinds.pop(), time.monotonic() + every_s
            if not kinds:
                kinds, first_round = rng.sample(list(self.faults), len(self.faults)), False
            at_s = time.monotonic() - began_s
            progress(f"{at_s:.0f} s, step {self.watch.view['step']}, fault {self.dealt.total() + 1}: {kind}")
            try:
                self.dealt[kind] += self._deal(kind, rng)
            except ClusterError as error:
                stuck += 1
                progress(f"STUCK after {kind}: {error}\n{self.rig.bed.situation()}")
            self.watch.until(lambda next_s=next_s: time.monotonic() >= next_s, 2 * every_s + 1.0)  # type: ignore[misc]
        return stuck

    def _deal(self, kind: str, rng: random.Random) -> bool:
        """Deal a fault, see the job commit steps, mend what was broken. Raises ClusterError where it is stuck."""
        began_s = time.monotonic()
        until_commits(self.watch, 1, self.look, self.members)
        self.whole_s.append(time.monotonic() - began_s)
        if not (members := self.watch.view["members"]):
            return False
        victim = rng.choice(members)
        act, mend = self.faults[kind]
        try:
            act(self.rig, self.watch, victim)
            until_commits(self.watch, 2, self.look)
        except (Conflict, NotFound):  # it has gone by now
            return False
        finally:
            mend(self.rig, victim["node"])
        return True


def until_commits(watch: Observer, count: int, look: Callable[[], None] = nothing, members: int = 1) -> None:
    """Wait for so many commits by so many members, of new steps or of steps that are taken again after a checkpoint;
    `look` meanwhile. Raises ClusterError where they do not come."""
    watch.read()
    before, next_s = len(watch.events), 0.0

    def committed() -> bool:
        nonlocal next_s
        if time.monotonic() >= next_s:
            look()
            next_s = time.monotonic() + LOOK_EVERY_S
        commits = [e for e in watch.events[before:] if e.kind == "step.committed"]
        return len([e for e in commits if e.data["world_size"] >= members]) >= count

    watch.until(committed, STUCK_S)
