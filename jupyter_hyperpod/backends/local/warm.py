"""The zygote: an interpreter that has imported what jobs need, and that forks nodes in milliseconds.

    python -m jupyter_hyperpod.backends.local.warm --directory DIR --listener FD --preload a,b,c

It stays single-threaded, since only such a process may be forked; where a preloaded module starts a thread, it
begins again without preloading and says so.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...core.errors import ProtocolError
from ...system.diagnostics import note, open_log
from ...system.json_lines import JsonLineChannel, Message, listen
from ...system.processes import Identity, identify, signal_group
from ..forked import redirect
from ..preload import ready_to_fork
from ..source import source_digest
from .network import NetworkPlace
from .node import NodeName, run_node
from .serve import RequestServer
from .supervisor_watchdog import SupervisorWatchdog

SOCKET = "warm.sock"
LOG = "warm"
SUPERVISOR = "supervisor"
ENVIRONMENT_ZYGOTE = f"{__package__}.environment_zygote"
MOST_ENVIRONMENTS = 3
IDLE_S = 1800.0


@dataclass(eq=False)
class Environment:
    """The preloaded interpreter of another environment: its ``python``, and the name of its socket."""

    python: str
    socket: str
    pid: int = 0
    used_s: float = 0.0


class Zygote(RequestServer):
    """Serves hello, spawn, environment, drop and end."""

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
                about: [child.pid, child.start]
                for child, _, about in self.children.values()
                if about != SUPERVISOR and not isinstance(about, Environment)
            }
            channel.send({"event": "hello", **facts, "loaded": self.loaded, "nodes": nodes})
        elif operation == "spawn":
            place = None if message["place"] is None else NetworkPlace(**message["place"])
            who = NodeName(message["name"], message["incarnation"], message["spare"])
            child = self._spawn(who, message["listener"], place)
            channel.send({"event": "spawned", "name": who.name, "pid": child.pid, "start": child.start})
        elif operation == "environment":
            found = self._environment(message["python"])
            channel.send({"event": "environment", "socket": found.socket, "pid": found.pid})
        elif operation == "drop":
            for child, _, about in self.children.values():
                if isinstance(about, Environment) and about.python == message["python"]:
                    os.kill(child.pid, signal.SIGKILL)
        elif operation == "end":
            self.running = False
        elif operation != "ping":
            raise ProtocolError(f"unknown request {operation!r}")

    def left(self, channel: JsonLineChannel) -> None:
        self.watchdog.left(channel)

    def tick(self) -> None:
        self.watchdog.check()
        self._end_environments(MOST_ENVIRONMENTS, IDLE_S)

    def _environment(self, python: str) -> Environment:
        """The preloaded interpreter of another environment, started where there is none. Raises OSError."""
        found = next((e for e in self._environments() if e.python == python), None) or self._start_environment(python)
        found.used_s = time.monotonic()
        return found

    def _environments(self) -> list[Environment]:
        """Those that run, the one that was used last at the end."""
        found = [about for _, _, about in self.children.values() if isinstance(about, Environment)]
        return sorted(found, key=lambda environment: environment.used_s)

    def _start_environment(self, python: str) -> Environment:
        self._end_environments(MOST_ENVIRONMENTS - 1, IDLE_S)
        environment = Environment(python, f"environment-{sha256(python.encode()).hexdigest()[:12]}.sock")
        listener = listen(self.directory, environment.socket)
        log = open_log(self.directory / "logs", LOG)
        arguments = ["--parent", str(os.getpid()), "--directory", str(self.directory), "--socket", environment.socket]
        try:
            process = subprocess.Popen(
                [python, "-m", ENVIRONMENT_ZYGOTE, *arguments, "--listener", str(listener.fileno())]
                + ["--preload", ",".join(self.loaded)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[listener.fileno()],
                cwd=self.directory,
                start_new_session=True,
            )
        finally:
            listener.close()
            os.close(log)
        process.returncode = 0  # reaped by `RequestServer`, not by Popen
        environment.pid = self.track(process.pid, environment).pid
        return environment

    def _end_environments(self, most: int, idle_s: float) -> None:
        """End interpreters that were not used for so long, and the oldest of too many. Their forks go on."""
        there, now_s = self._environments(), time.monotonic()
        over = there[: max(0, len(there) - most)]
        for child, _, about in self.children.values():
            if isinstance(about, Environment) and (about in over or now_s - about.used_s > idle_s):
                os.kill(child.pid, signal.SIGKILL)

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
        name = f"the interpreter of {about.python}" if isinstance(about, Environment) else about
        note(f"{name} (process {child.pid}) ended with status {status}")

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
    again = ["-m", __spec__.name, "--directory", arguments.directory, "--listener", str(arguments.listener)]
    loaded = ready_to_fork([name for name in arguments.preload.split(",") if name], again, arguments.listener)
    listener = socket.socket(fileno=arguments.listener)
    listener.setblocking(False)
    Zygote(Path(arguments.directory), key, loaded, listener).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
