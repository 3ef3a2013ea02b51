"""The health agent of a node that its scheduler keeps the health of: it needs no store, and shows all at the node.

    python -m jupyter_hyperpod.health.node_pod --backend kubernetes --node n1 [--recovery None]

What it finds and decides is on standard output too, one JSON object a line. It begins again with what the node shows.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.backends import BACKENDS, load
from ..core.errors import ClusterError
from ..core.events import Event
from ..core.health import DETAILS, RECOVERIES, Finding, HealthBoard, HealthRecord, from_json, skipped
from ..system.child import run_child
from . import kernel
from .monitor import Monitor
from .probes import HOST, TYPE_VARIABLE, Probe, ProbeRoot

TICK_S, AGAIN_S = 0.2, 5.0
PAST_KEPT, TEXT_MOST = 8, 300
STRONG = ("reboot", "replace")


def boot_id() -> str:
    """An id that changes with every boot of the machine, and not with the pod."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


class BoardHands:
    """See `monitor.Hands`: what is decided is done by showing it, so that it is done again until it has been."""

    def __init__(self, board: HealthBoard) -> None:
        self._board = board

    def carry_out(self, node: str, action: str, why: str) -> str:
        return self._board.meaning(action)

    def resume(self, node: str) -> None:
        """Nothing more than what is shown."""

    def serves(self, node: str) -> bool:
        return self._board.returned()


class NodePod:
    """Watches one node and shows its health on a board."""

    def __init__(
        self,
        node: str,
        board: HealthBoard,
        recovery: str,
        log: str = "",
        boot: str | None = None,
        probes: Sequence[Probe] = HOST,
    ) -> None:
        self._node, self._board = node, board
        self._boot = boot_id() if boot is None else boot
        self._findings: dict[str, list[Finding]] = {}
        self._shown: HealthRecord | None = None
        self._record: HealthRecord | None = None
        self._again_s, self._problem = 0.0, ""
        self.ends = False
        self.monitor = Monitor(
            {node: log}, ProbeRoot(), self._say, lambda: recovery, BoardHands(board), probes, self._boot
        )
        if self.monitor.unread:
            places = log or ", ".join((kernel.DEVICE, *kernel.FILES))
            why = f"no log of the kernel can be read here ({places}): Xid errors and others of the kernel are not seen"
            self._findings[kernel.PROBE] = [skipped(kernel.PROBE, why)]

    def begin(self) -> None:
        """Go on with what the node shows. Raises ClusterError."""
        self._shown = self._record = self._board.read()
        if kind := self._board.instance_type():
            os.environ.setdefault(TYPE_VARIABLE, kind)
        if self._shown is not None:
            self.monitor.recall(events_of(self._node, self._shown))
            if self._shown.action != "watch" and self._shown.boot == self._boot:
                self.monitor.retain(self._node, self._shown.causes)
        self.monitor.start()

    def run(self) -> None:
        """Watch until told to end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        while not self.ends:
            try:
                self.begin()
                break
            except ClusterError as error:
                self._trouble(error)
                time.sleep(AGAIN_S)
        while not self.ends:
            self.step()
            time.sleep(TICK_S)
        self.monitor.stop()

    def step(self) -> None:
        """Handle what was found, and show what is new."""
        self.monitor.tick()
        record = self._record
        if record is None or record == self._shown or time.monotonic() < self._again_s:
            return
        try:
            self._board.show(record)
            self._shown, self._problem = record, ""
        except ClusterError as error:
            self._trouble(error)
            self._again_s = time.monotonic() + AGAIN_S

    def _say(self, kind: str, data: Mapping[str, Any]) -> None:
        print(json.dumps({"time_s": round(time.time(), 3), "kind": kind, **data}), flush=True)
        if kind == "node.findings":
            fresh = [from_json(finding) for finding in data["findings"]]
            for probe in {finding.probe for finding in fresh}:
                self._findings[probe] = [_short(finding) for finding in fresh if finding.probe == probe]
            if self._record is not None:
                self._record = replace(self._record, findings=self._all())
        elif kind == "node.health":
            self._record = self._decided(data)

    def _decided(self, data: Mapping[str, Any]) -> HealthRecord:
        action, fault, before = str(data["action"]), str(data["fault"]), self._record
        causes = tuple(_short(from_json(one)) for one in json.loads(data["labels"].get(DETAILS, "[]")))
        record = HealthRecord(
            action,
            fault,
            str(data["reason"]),
            str(data["recovery"]),
            self._boot,
            causes,
            self._all(),
            data["devices"] or (before.devices if before else {}),
            before.past if before else (),
        )
        if before is not None and (before.action, before.fault) == (action, fault) and action != "watch" and not causes:
            return replace(record, reason=before.reason, causes=before.causes, recovery=before.recovery)
        if record.fences and action in STRONG:
            record = replace(record, past=(*record.past, (action, fault, time.time()))[-PAST_KEPT:])
        return record

    def _all(self) -> tuple[Finding, ...]:
        return tuple(finding for probe in sorted(self._findings) for finding in self._findings[probe])

    def _trouble(self, error: ClusterError) -> None:
        if str(error) != self._problem:
            self._problem = str(error)
            print(f"the health of {self._node} cannot be shown: {error}", file=sys.stderr, flush=True)

    def _end(self, *_: object) -> None:
        self.ends = True


def events_of(node: str, record: HealthRecord) -> list[Event]:
    """What an agent with a store would find in its journal: remedies of before, then the present state."""
    told = [(action, fault, time_s, False) for action, fault, time_s in record.past]
    if record.action in STRONG and told and told[-1][:2] == (record.action, record.fault):
        told.pop()  # that one is under way
    now = [one for past in told for one in (past, ("watch", "", past[2], True))]
    began_s = record.past[-1][2] if record.past else time.time()
    now.append((record.action, record.fault, began_s, record.recovery == RECOVERIES[0]))
    return [
        Event(
            "node",
            number,
            time_s,
            "node.health",
            {
                "node": node,
                "action": action,
                "fault": fault,
                "recovery": RECOVERIES[0] if automatic else RECOVERIES[1],
                "boot": record.boot if number == len(now) else "",
            },
        )
        for number, (action, fault, time_s, automatic) in enumerate(now, 1)
    ]


def _short(finding: Finding) -> Finding:
    return replace(finding, text=finding.text[:TEXT_MOST])


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m jupyter_hyperpod.health.node_pod")
    parser.add_argument("--backend", required=True, choices=BACKENDS)
    parser.add_argument("--node", required=True)
    parser.add_argument("--recovery", default=RECOVERIES[0], choices=RECOVERIES)
    parser.add_argument("--kernel-log", default="")
    return run_child(parser, _watch, arguments)


def _watch(options: argparse.Namespace) -> int:
    board: HealthBoard | None = load(options.backend).health_board(options.node)
    if board is None:
        raise ClusterError(
            f"the backend {options.backend} keeps no health of nodes; run `jupyter hyperpod health agent`"
        )
    with closing(board):
        NodePod(options.node, board, options.recovery, options.kernel_log).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
