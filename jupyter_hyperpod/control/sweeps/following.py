"""Follows a sweep until none of its trials runs: for a cell, a terminal and Python."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ...core.errors import ClusterError, HyperpodError
from ..watch import SupervisorSilence
from .trials import Sweep, SweepTrial

TICK_S = 0.25


class SweepSilence:
    """Notices that no supervisor looks after the trials of a sweep any more."""

    def __init__(self, sweep: Sweep, lost_after_s: float) -> None:
        self._sweep, self._lost_after_s = sweep, lost_after_s
        self._silence = SupervisorSilence(sweep.store, lambda: [trial.job for trial in sweep.unfinished])

    def check(self, news: bool) -> None:
        """Raise ClusterError after `lost_after_s` without news and without a supervisor."""
        if news:
            self._silence.heard()
        if (down_s := self._silence.down_s()) >= self._lost_after_s:
            raise ClusterError(
                f"no news from the trials of {self._sweep.id} and no supervisor for {down_s:.0f} s; "
                "`jupyter hyperpod cluster start` brings the cluster back, then `sweep follow` shows the sweep again"
            )


def updates(sweep: Sweep, lost_after_s: float = 60.0) -> Iterator[list[SweepTrial]]:
    """Yield, several times a second, the trials that have ended since, until all have that were submitted.

    Raises ClusterError where the supervisor is gone for good.
    """
    silence = SweepSilence(sweep, lost_after_s)
    told = {trial.number for trial in sweep.trials if trial.over}
    yield [trial for trial in sweep.trials if trial.over]
    while sweep.unfinished:
        time.sleep(TICK_S)
        silence.check(poll(sweep))
        ended = [trial for trial in sweep.trials if trial.over and trial.number not in told]
        told.update(trial.number for trial in ended)
        yield ended


def poll(sweep: Sweep) -> bool:
    """Read what is new; a trial whose job was deleted is left out from then on. Whether anything was new."""
    gone = []
    for trial in sweep.unfinished:
        try:
            sweep.store.job(trial.job.id)
        except HyperpodError:
            gone.append(trial)
    for trial in gone:
        sweep.trials.remove(trial)
    return sweep.poll() or bool(gone)
