"""The zygote: an interpreter that has imported what jobs need, and that forks nodes in milliseconds.

    python -m jupyter_hyperpod.backends.local.warm --directory DIR --listener FD --preload a,b,c

It stays single-threaded, since only such a process may be forked; where a preloaded module starts a thread, it
begins again without preloading and says so.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from ...core.errors import ProtocolError
from ...system.diagnostics import note, open_log
from ...system.json_lines import JsonLineChannel, Message, listen
from ...system.processes import Identity, identify, signal_group, thread_names
from ..source import source_digest
from .network import NetworkPlace
from .node import NodeName, redirect, run_node
from .serve import RequestServer
from .supervisor_watchdog import SupervisorWatchdog

SOCKET = "warm.sock"
LOG = "warm"
SUPERVISOR = "supervisor"


class Zygote(RequestServer):
    """Serves hello, spawn and end."""

    def __init__(self, directory: Path, warm_key: str, loaded: list[str], listener: socket.socket) -> None:
        super().__init__(listener, directory / SOCKET)
        self.directory = directory
        self.warm_key = warm_key
        self.loaded = loaded
        self.watchdog = SupervisorWatchdog(directory, self._start)

    def handle(self, message: Message, channel: JsonLineChannel) -> None:
        operation = message["op"]
        self.watchdog.heard(message, channel)
        if operation == "hello":
            me = identify(os.getpid())
            facts = {"pid": me.pid, "start": me.start, "python": sys.executable, "warm_key": self.warm_key}
            nodes = {
                about: [child.pid, child.start] for child, _, about in self.children.values() if about != SUPERVISOR
            }
            channel.send({"event": "hello", **facts, "loaded": self.loaded, "nodes": nodes})
        elif operation == "spawn":
            place = None if message["place"] is None else NetworkPlace(**message["place"])
            who = NodeName(message["name"], message["incarnation"], message["spare"])
            child = self._spawn(who, message["listener"], place)
            channel.send({"event": "spawned", "name": who.name, "pid": child.pid, "start": child.start})
        elif operation == "end":
            self.running = False
        elif operation != "ping":
            raise ProtocolError(f"unknown request {operation!r}")

    def left(self, channel: JsonLineChannel) -> None:
        self.watchdog.left(channel)

    def tick(self) -> None:
        self.watchdog.check()

    def _start(self, arguments: list[str]) -> None:
        log = open_log(self.directory, SUPERVISOR)
        try:
            self.fork(lambda: self._become(arguments, log), SUPERVISOR)
        finally:
            os.close(log)

    def _become(self, arguments: list[str], log: int) -> int:
        """Turn a forked child into a program of its own, in a session of its own; never returns."""
        os.setsid()
        redirect(log)
        os.chdir(self.directory.parent)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execv(arguments[0], arguments)

    def ended(self, child: Identity, about: Any, status: int) -> None:
        """Nodes are watched by the supervisor itself; here they are only collected."""
        note(f"{about} (process {child.pid}) ended with status {status}")

    def before_reaping(self, child: Identity) -> None:
        """Every child leads a group, and nothing of it stays behind."""
        signal_group(child, signal.SIGKILL)

    def _spawn(self, who: NodeName, socket_name: str, place: NetworkPlace | None) -> Identity:
        listener = listen(self.directory, socket_name)
        log = open_log(self.directory / "logs", who.name)
        path = self.directory / socket_name
        try:
            return self.fork(lambda: run_node(who, self.warm_key, listener, path, log, place), who.name)
        finally:
            listener.close()
            os.close(log)


def preload(names: list[str]) -> list[str]:
    """Import each module (``module:function`` also calls it) and return those that could be."""
    loaded = []
    for name in names:
        module, _, function = name.partition(":")
        try:
            imported = importlib.import_module(module)
            if function:
                getattr(imported, function)()
        except Exception as error:  # whatever a module raises, jobs can still start without it
            note(f"{name} is not preloaded: {error!r}")
        else:
            loaded.append(name)
    return loaded


def _stay_single_threaded(arguments: argparse.Namespace) -> None:
    threads = thread_names()
    if len(threads) == 1:
        return
    note(f"preloading started threads ({', '.join(threads)}): a fork would not be safe; beginning again without it")
    again = ["--directory", arguments.directory, "--listener", str(arguments.listener), "--preload", ""]
    os.set_inheritable(arguments.listener, True)
    os.execv(sys.executable, [sys.executable, "-m", "jupyter_hyperpod.backends.local.warm", *again])


def main() -> int:
    """Preload, then serve until told to end."""
    parser = argparse.ArgumentParser(prog="python -m jupyter_hyperpod.backends.local.warm", description=__doc__)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--listener", type=int, required=True)
    parser.add_argument("--preload", default="")
    arguments = parser.parse_args()
    if sys.platform != "linux":
        parser.error("the local backend needs Linux (pidfd, /proc); use --backend slurm elsewhere")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    key = source_digest()
    loaded = preload([name for name in arguments.preload.split(",") if name])
    _stay_single_threaded(arguments)
    gc.collect()
    gc.freeze()
    listener = socket.socket(fileno=arguments.listener)
    listener.setblocking(False)
    Zygote(Path(arguments.directory), key, loaded, listener).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
