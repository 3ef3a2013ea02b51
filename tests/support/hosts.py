"""Hosts of a testbed on one machine: each in namespaces of its own, on one switch. Needs root, iproute2, util-linux.

The kernel removes everything of a host when its process 1 ends, and ends that when this process does, whatever way.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from jupyter_hyperpod.core.errors import ClusterError
from tests.support.links import add_link
from tests.support.slurm.machine import PATH, die_with

SPACES = ("--mount", "--uts", "--pid", "--ipc", "--net", "--fork", "--kill-child", "--mount-proc")
NETWORK = 0x40000000  # CLONE_NEWNET
UP_S = 60.0


class Hosts:
    """The first host that is booted has the switch that all are plugged into."""

    def __init__(self, logs: Path, marks: Mapping[str, str]) -> None:
        """``logs``: a directory for the consoles. ``marks``: what every process finds in its environment."""
        self._logs, self._marks = logs, dict(marks)
        self._up: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def _switch(self) -> str:
        return next(iter(self._up))

    def boot(self, host: str, address: str, init: Sequence[str], routes: Sequence[str] = ()) -> None:
        """Start the process 1 of a host and plug it in; it waits for a line on its input until that is done.

        ``routes``: lines for `ip` that need the host's own interface.
        """
        with open(self._logs / f"{host}.console", "ab") as console:
            me = os.getpid()
            process = subprocess.Popen(
                ["unshare", *SPACES, sys.executable, *init],
                stdin=subprocess.PIPE,
                stdout=console,
                stderr=console,
                env={"PATH": PATH, "LC_ALL": "C", **self._marks},
                preexec_fn=lambda: die_with(me),
            )
        self._up[host] = process
        self._await(host)
        self._plug_in(host, address)
        if routes:
            self.ip(host, *routes)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()

    def power_cut(self, host: str) -> None:
        """Everything on it ends at once; nothing says good-bye."""
        process = self._up[host]
        if children := _children(process):
            os.kill(children[0], signal.SIGKILL)  # the kernel reaps it when all others of its namespace are gone
        else:
            process.kill()
        process.wait()

    def close(self) -> None:
        """Cut the power of all."""
        for host in reversed(self._up):
            self.power_cut(host)

    def is_up(self, host: str) -> bool:
        """The host is switched on."""
        return self._up[host].poll() is None

    def pid(self, host: str) -> int:
        """Process 1 of the host, as it is numbered outside. Raises ClusterError where the host is switched off."""
        children = _children(self._up[host])
        if not children:
            raise ClusterError(f"{host} is switched off")
        return children[0]

    def ip(self, host: str, *commands: str) -> None:
        """Configure the network of a host. Raises ClusterError where that fails."""
        self._in_network(host, ["ip", "-batch", "-"], "".join(f"{command}\n" for command in commands))

    def bridge(self, host: str, state: str) -> None:
        """Set the state of the switch's port of the host: "disabled" lets nothing pass, "forwarding" everything."""
        self._in_network(self._switch, ["bridge", "link", "set", "dev", host, "state", state])

    def inside(self, host: str, command: Sequence[str]) -> list[str]:
        """The same command, on a host, in the present directory."""
        here = f"--wdns={os.getcwd()}"
        return ["nsenter", "-t", str(self.pid(host)), "-m", "-u", "-i", "-n", "-p", here, "--", *command]

    def found(self, env: Mapping[str, str] | None) -> dict[str, str]:
        """The environment of a command on a host."""
        return {**os.environ, "PATH": PATH, **self._marks, **(env or {})}

    def run(
        self,
        host: str,
        *command: str,
        env: Mapping[str, str] | None = None,
        text: str = "",
        timeout_s: float = 60.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host; ``text`` is its input. Raises ClusterError where it fails or takes too long."""
        try:
            done = subprocess.run(
                self.inside(host, command),
                input=text,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                env=self.found(env),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"{command} on {host} took more than {timeout_s:g} s") from error
        if check and done.returncode:
            raise ClusterError(f"{command} on {host} ended with {done.returncode}: {done.stderr}{done.stdout}")
        return done

    def start(
        self, host: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command on a host; it dies with the host."""
        with open(log, "ab") as said:
            return subprocess.Popen(
                self.inside(host, command),
                env=self.found(env),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,  # an interrupt of the terminal is for the test
            )

    @contextmanager
    def joined(self, host: str) -> Iterator[None]:
        """This thread, and threads and processes that it starts meanwhile, are in the network of a host."""
        with in_network(self.pid(host)):
            yield

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL for a command that `start` has started, and wait for its end."""
        deadline = time.monotonic() + UP_S
        while process.poll() is None and not (children := _children(process)):
            if time.monotonic() > deadline:
                raise ClusterError(f"{process.args!r} does not begin within {UP_S:g} s")
            time.sleep(0.005)  # it enters the host's namespaces
        if process.poll() is None:
            os.kill(children[0], signal.SIGKILL)
        process.wait()

    def _await(self, host: str) -> None:
        deadline = time.monotonic() + UP_S
        while not _children(self._up[host]):
            if time.monotonic() > deadline or not self.is_up(host):
                raise ClusterError(f"{host} does not come up: {(self._logs / f'{host}.console').read_text()[-1500:]}")
            time.sleep(0.005)

    def _plug_in(self, host: str, address: str) -> None:
        if host == self._switch:
            made = ["link add switch type bridge stp_state 0 forward_delay 0", f"addr add {address}/24 dev switch"]
            return self.ip(host, *made, "link set switch up", "link set lo up")
        add_link(partial(self.ip, self._switch), host, self.pid(host))
        self.ip(self._switch, f"link set {host} master switch up")
        self.ip(host, f"addr add {address}/24 dev eth0", "link set eth0 up", "link set lo up")

    def _in_network(self, host: str, command: list[str], text: str = "") -> None:
        enter = ["nsenter", "-t", str(self.pid(host)), "-n", "--"]
        done = subprocess.run(
            [*enter, *command],
            input=text,
            capture_output=True,
            text=True,
            timeout=30,
            env={"PATH": PATH},
            check=False,
        )
        if done.returncode:
            raise ClusterError(f"{command} {text!r}: {done.stderr}")


@contextmanager
def in_network(pid: int) -> Iterator[None]:
    """This thread, and threads and processes that it starts meanwhile, are in the network of a process."""
    with open("/proc/thread-self/ns/net") as own, open(f"/proc/{pid}/ns/net") as theirs:
        _enter(theirs.fileno())
        try:
            yield
        finally:
            _enter(own.fileno())


def _enter(network: int) -> None:
    """Move this thread; `os` has a function for it only since Python 3.12."""
    if ctypes.CDLL(None, use_errno=True).setns(network, NETWORK):
        raise OSError(ctypes.get_errno(), "setns")


def _children(process: subprocess.Popen[bytes]) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    except OSError:
        return []
