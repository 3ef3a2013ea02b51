"""The health agent's process: one per machine. It watches the machine's node, or all nodes that run on it.

    python -m jupyter_hyperpod.health.agent --store DIR --node n1 --backend slurm

A second agent for the same node and store ends at once. With `--parent` the agent ends together with that process.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

from ..core.backends import BACKENDS, load
from ..core.errors import ClusterError
from ..core.health import RECOVERIES
from ..storage.journal import follow_events, forget_oldest
from ..storage.journal_search import read_kinds
from ..storage.journal_writer import JournalWriter
from ..storage.store import Store
from ..system.child import run_child
from .monitor import Hands, Monitor
from .probes import ProbeRoot

TICK_S = 0.2
WRITER = "health"
SETTINGS = "health.json"
KERNEL_LOG = "HYPERPOD_KERNEL_LOG"
STAND_IN = "kernel-logs"  # files that replace the kernel logs of local nodes
JOURNALS_KEPT = 4


def recovery(store: Store) -> str:
    """NodeRecovery of this store's cluster: Automatic unless set to None."""
    try:
        value = json.loads((store.cluster / SETTINGS).read_text())["recovery"]
    except (OSError, ValueError, KeyError, TypeError):
        return RECOVERIES[0]
    return value if value in RECOVERIES else RECOVERIES[0]


def claim(store: Store, name: str) -> socket.socket | None:
    """The right to watch a node, held while the socket is open; None where another has it. Raises ClusterError."""
    digest = hashlib.sha256(f"{store.root} {name}".encode()).hexdigest()[:24]
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        mark.bind(f"\0hyperpod-health-{digest}")
    except OSError as error:
        mark.close()
        if error.errno != errno.EADDRINUSE:
            raise ClusterError(f"{name} cannot be claimed for this health agent: {error.strerror}") from error
        return None
    return mark


def stand_in(store: Store, node: str) -> Path:
    """The file that replaces the kernel log of a local node."""
    return store.cluster / STAND_IN / f"{node}.log"


class HealthAgent:
    def __init__(self, store: Store, names: list[str], log: str, backend: str, local: bool) -> None:
        self.store = store
        writer = WRITER if local else f"{WRITER}-{names[0]}"
        forget_oldest(store.cluster_events, JOURNALS_KEPT, f"{writer}.")
        self.pen = JournalWriter(store.cluster_events, writer)
        self.ends = False
        logs = {name: str(stand_in(store, name)) if local else log for name in names}
        # without a backend, another process carries out what is decided
        hands: Hands | None = load(backend).remedies() if backend else None
        self.monitor = Monitor(logs, ProbeRoot(store), self.pen.write, lambda: recovery(store), hands)
        self._others = follow_events(store.cluster_events) if local else None
        if self._others is not None:
            self._others.poll()  # before the recall: an event that comes in between is read twice, not missed
        self.monitor.recall(read_kinds(store.cluster_events, ("node.health", "incident.stage")))

    def run(self) -> None:
        """Watch until told to end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        self.monitor.start()
        while not self.ends and self.store.cluster.is_dir():
            self.monitor.tick()
            self.pen.flush()
            self._listen()
            time.sleep(TICK_S)
        self.monitor.stop()
        self.pen.close()

    def _listen(self) -> None:
        """Read the messages of the supervisor about its nodes."""
        for event in self._others.poll() if self._others is not None else ():
            if event.kind == "node.health" and not event.writer.startswith(f"{WRITER}."):
                node = self.monitor.nodes.get(str(event.data["node"]))
                if node is not None and event.data["action"] == "watch":
                    self.monitor.restored(node.name, event.time_s)
                elif node is not None:
                    self.monitor.adopt(node.name, str(event.data["action"]), str(event.data["fault"]))

    def _end(self, *_: object) -> None:
        self.ends = True


def main(arguments: list[str] | None = None) -> int:
    """Entry point; exit status 0 also where another agent watches already."""
    parser = argparse.ArgumentParser(prog="python -m jupyter_hyperpod.health.agent")
    parser.add_argument("--store", required=True, type=Path)
    parser.add_argument("--node", action="append", required=True)
    parser.add_argument("--kernel-log", default=os.environ.get(KERNEL_LOG, ""))
    parser.add_argument("--backend", default="", choices=BACKENDS, help="carry remedies out through this backend")
    parser.add_argument("--local", action="store_true", help="nodes of the local cluster, which share this machine")
    return run_child(parser, _watch, arguments)


def _watch(options: argparse.Namespace) -> int:
    store = Store(options.store).prepare()
    if (mark := claim(store, options.node[0])) is not None:
        with mark:
            HealthAgent(store, options.node, options.kernel_log, options.backend, options.local).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
