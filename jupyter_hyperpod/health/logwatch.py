"""Watches what a job's ranks print, by the job's log rules, and asks the coordinator to replace faulty ranks.

    python -m jupyter_hyperpod.health.logwatch --job DIR --parent PID

People write the patterns, so each search has a limit (`timed_search.py`); a rule that often needs longer is switched
off.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import StoreError
from ..core.events import TERMINAL_STATES, Event
from ..core.rules import LogRule
from ..policy import logwatch
from ..policy.decision import Decision
from ..policy.logwatch import BROKEN, Standing
from ..storage.journal import command_writer, follow_events
from ..storage.journal_writer import JournalWriter
from ..storage.output.output_reader import JournalGaps, OutputReader
from ..storage.store import JobStore
from ..system.child import run_child
from ..system.timed_search import search

WRITER = "rules"
TICK_S = 0.2
TOO_OFTEN = 3
LINE_LIMIT = 4096
TELL_S = 10.0  # at most this often a changed value is journaled
Say = Callable[[str, dict[str, Any]], object]
Blame = Callable[[int | None, str, str], None]


class Watcher:
    """The state of each rule for each rank. The frequency applies to a rank after its first match."""

    def __init__(self, rules: Sequence[LogRule], say: Say, blame: Blame) -> None:
        self.rules = {rule.name: rule for rule in rules}
        self._patterns = {rule.name: re.compile(rule.pattern) for rule in rules}
        self._stops = {rule.name: re.compile(rule.stop_pattern) for rule in rules if rule.stop_pattern}
        self._say, self._blame = say, blame
        self._standing: dict[tuple[str, str], Standing] = {}  # (rule, member); "" means all members together
        self._ranks: dict[str, int] = {}
        self._rest: dict[tuple[str, str], str] = defaultdict(str)
        self._slow: dict[str, int] = defaultdict(int)
        self._told_s: dict[tuple[str, str], float] = {}
        self._running = False
        self.ended = False

    def hear(self, event: Event, quiet: bool = False) -> None:
        """Handle one event of the job's journal; ``quiet``: the event is past, nothing is reported or done."""
        data = event.data
        if event.kind == "job.state":
            self._state(str(data["state"]), event.time_s)
        elif event.kind == "generation.formed":
            self._ranks = {str(m["member"]): int(m["rank"]) for m in data["members"] if m.get("rank") is not None}
            staying = {"", *self._ranks}
            self._standing = {key: one for key, one in self._standing.items() if key[1] in staying}
        elif event.kind == "output.written":
            self._output(str(data["member"]), str(data["stream"]), str(data["text"]), event.time_s, quiet)

    def _state(self, state: str, now_s: float) -> None:
        self.ended = self.ended or state in TERMINAL_STATES
        if state == "running" and not self._running:  # no clock runs while a job waits or recovers
            for name in self.rules:
                self._standing.setdefault((name, ""), Standing(since_s=now_s))
            self._standing = {key: replace(one, since_s=now_s) for key, one in self._standing.items()}
        self._running = state == "running"

    def _output(self, member: str, stream: str, text: str, now_s: float, quiet: bool) -> None:
        *lines, self._rest[member, stream] = (self._rest[member, stream] + text).split("\n")
        self._rest[member, stream] = self._rest[member, stream][:LINE_LIMIT]
        for line in lines:
            for name in list(self.rules):
                try:
                    self._line(name, member, line[:LINE_LIMIT], now_s, quiet)
                except TimeoutError as error:
                    self._cut_short(name, str(error))

    def _line(self, name: str, member: str, line: str, now_s: float, quiet: bool) -> None:
        rule = self.rules[name]
        stop = self._stops.get(name)
        if stop is not None and search(stop, line):
            self._set(name, member, logwatch.stopped(rule, self._of(name, member)), now_s, quiet)
        elif match := search(self._patterns[name], line):
            group = match[1] if match.re.groups else None
            decision = logwatch.matched(rule, self._of(name, member), group, now_s)
            self._set(name, member, decision, now_s, quiet)
        else:
            return
        self._standing[name, ""] = Standing(logwatch.HEALTHY, now_s, stopped=True)  # the start cut-off is kept

    def missed(self, nodes: Collection[str], now_s: float) -> None:
        """Some output of these nodes could not be read: their time limits start again."""
        for (name, member), standing in list(self._standing.items()):
            if nodes and (not member or member.rsplit(".", 2)[0] in nodes):
                self._standing[name, member] = replace(standing, since_s=max(now_s, standing.since_s))

    def look(self, now_s: float) -> None:
        """Time has passed."""
        if not self._running or self.ended:
            return
        for (name, member), standing in list(self._standing.items()):
            decision = logwatch.looked(self.rules[name], standing, now_s)
            if decision.value != standing:
                self._set(name, member, decision, now_s, False)

    def _of(self, name: str, member: str) -> Standing:
        return self._standing.get((name, member), Standing())

    def _set(self, name: str, member: str, decision: Decision[Standing], now_s: float, quiet: bool) -> None:
        before, after, key = self._of(name, member), decision.value, (name, member)
        self._standing[key] = after
        news = after.state != before.state
        if quiet or not (news or now_s - self._told_s.get(key, 0.0) > TELL_S):
            return
        self._told_s[key] = now_s
        rank = self._ranks.get(member)
        record = {"rule": name, "state": after.state, "member": member, "rank": rank, "value": after.value}
        who = f"rank {rank}: " if rank is not None else ""
        self._say("rule.state", record | {"text": f"{who}{decision.reason}"})
        if news and after.state in BROKEN and (rank is not None or not member):
            self._standing[key] = Standing(since_s=now_s)  # a member that replaces it starts with a new limit
            self._blame(rank, f"log rule {name}", f"{who}{decision.reason}: {after.state}")

    def _cut_short(self, name: str, problem: str) -> None:
        self._slow[name] += 1
        if self._slow[name] >= TOO_OFTEN:
            del self.rules[name]
            self._standing = {key: one for key, one in self._standing.items() if key[0] != name}
            self._say("warning.raised", {"text": f"log rule {name} is switched off: {problem}"})


def run(job: JobStore) -> int:
    """Watch until the job has ended."""
    rules = job.spec().log_rules
    pen = JournalWriter(job.events, WRITER)
    journal, beside = follow_events(job.events), OutputReader(job)  # the journal does not hold all that ranks print
    gaps = JournalGaps(job)

    def news() -> list[Event]:
        printed = beside.poll()  # read first: then the journal already holds what this output continues
        return sorted([*gaps.told(journal.poll()), *printed], key=lambda event: event.time_s)

    def blame(rank: int | None, cause: str, reason: str) -> None:
        try:
            with command_writer(job.commands, WRITER) as commands:
                commands.append("blame", {"rank": rank, "cause": cause, "reason": reason})
        except StoreError as error:  # a full disk hides what ranks print, too, so no rank is to blame
            print(f"{cause} is not acted upon: {error}", file=sys.stderr, flush=True)

    watcher = Watcher(rules, pen.write, blame)
    for event in news():
        watcher.hear(event, quiet=True)
    while not watcher.ended and job.events.is_dir():
        now_s = time.time()  # everything printed before is handled below, however long that takes
        for event in news():
            watcher.hear(event)
        watcher.missed(beside.missed | gaps.missed, now_s)
        watcher.look(now_s)
        pen.flush()
        time.sleep(TICK_S)
    pen.close()
    return 0


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m jupyter_hyperpod.health.logwatch")
    parser.add_argument("--job", required=True, type=Path)
    return run_child(parser, lambda options: run(JobStore(options.job)))


if __name__ == "__main__":
    sys.exit(main())
