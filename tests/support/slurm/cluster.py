"""A real SLURM of several nodes on one machine: each in network, UTS, process, mount and IPC namespaces of its own.

The kernel removes everything of a node when its process 1 ends, and ends that when this process does, whatever way.
Killing process 1 is a power cut: nothing says good-bye. Needs root, iproute2, util-linux, slurm-wlm and munge.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from jupyter_hyperpod.core.errors import ClusterError
from jupyter_hyperpod.system.processes import identify
from tests.support.links import add_link
from tests.support.slurm.boot import REBOOT
from tests.support.slurm.machine import PATH, PLACE, PREFIX, die_with, sweep
from tests.support.slurm.settings import address, gres_conf, hosts, scripts, slurm_conf

CONTROLLER = "ctl"
UP_S = 60.0
BOOT_S = 1.0
COMPLETING_S = 5.0
GPU_MAJOR = 195


class Testbed:
    """``with Testbed(4) as bed``: one controller ``ctl`` and the nodes ``n1``… that are idle when it is entered."""

    __test__ = False

    def __init__(self, nodes: int = 4, environment: Mapping[str, str] | None = None, logins: int = 0) -> None:
        """``environment``: what every process of the nodes finds in its environment, a mark for example.

        ``logins``: hosts ``login1``… from which people submit, and which run no jobs.
        """
        self._marks = dict(environment or {})
        self.nodes = [f"n{i}" for i in range(1, nodes + 1)]
        self.logins = [f"login{i}" for i in range(1, logins + 1)]
        sweep()
        me = identify(os.getpid())
        self.directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{me.pid}-{me.start}-", dir=PLACE))
        self.logs = self.directory / "log"
        self._up: dict[str, subprocess.Popen[bytes]] = {}
        self._booted_s: dict[str, int] = {}  # node -> in whole seconds since the Unix epoch, as SLURM counts
        self._slow: dict[str, threading.Event] = {}
        self._watchers: list[threading.Thread] = []
        self._closing = False

    def __enter__(self) -> Testbed:
        try:
            self._write()
            self._boot(CONTROLLER, "ctl")
            for node in self.nodes:
                self._boot(node, "first")
            for login in self.logins:
                self._boot(login, "login")
            self.until(lambda: self.states() == dict.fromkeys(self.nodes, "idle"), "all nodes are idle")
            self.until(self._schedules, "the controller schedules")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cut the power of everything and remove the files."""
        self._closing = True
        for node in [*self._slow]:
            self.full_speed(node)
        for process in self._up.values():
            process.kill()
        for process in self._up.values():
            process.wait()
        for watcher in self._watchers:
            watcher.join()
        shutil.rmtree(self.directory, ignore_errors=True)

    # -- use ---------------------------------------------------------------------------------------------------

    def run(
        self,
        node: str,
        *command: str,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a node, in the present directory. Raises ClusterError where it fails or takes too long."""
        try:
            done = subprocess.run(
                self._inside(node, command), capture_output=True, text=True, timeout=timeout_s, env=self._found(env)
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"{command} on {node} took more than {timeout_s:g} s") from error
        if check and done.returncode:
            raise ClusterError(f"{command} on {node} ended with {done.returncode}: {done.stderr}{done.stdout}")
        return done

    def start(self, node: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a command on a node; it dies with the node."""
        return subprocess.Popen(
            self._inside(node, command), env=self._found(env), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def _inside(self, node: str, command: Sequence[str]) -> list[str]:
        here = f"--wdns={os.getcwd()}"
        return ["nsenter", "-t", str(self.pid(node)), "-m", "-u", "-i", "-n", "-p", here, "--", *command]

    def _found(self, env: Mapping[str, str] | None) -> dict[str, str]:
        return {**os.environ, "PATH": PATH, **self.environment, **(env or {})}

    @property
    def environment(self) -> dict[str, str]:
        """What SLURM's commands need, and the marks."""
        return {"SLURM_CONF": str(self.directory / "slurm.conf"), **self._marks}

    def states(self) -> dict[str, str]:
        """Node -> state, as `sinfo` says it ("idle", "alloc", "down*", "drain", …)."""
        done = self.run(CONTROLLER, "sinfo", "-h", "-N", "-p", "train", "-o", "%N %t", check=False)
        return dict(line.split() for line in done.stdout.splitlines())

    def reasons(self) -> dict[str, str]:
        """Node -> why SLURM has put it out of service; only those that are."""
        told = self.run(CONTROLLER, "sinfo", "-N", "-h", "-o", "%N|%E", check=False).stdout
        pairs = (line.partition("|") for line in told.splitlines())
        return {node.strip(): reason.strip() for node, _, reason in pairs if reason.strip() not in ("", "none")}

    def situation(self) -> str:
        """What SLURM says of its nodes and jobs, for people: where something waits, the answer is in there."""
        nodes = ("sinfo", "-N", "-o", "%.6N %.9P %.12T %.19H %E")
        queue = ("squeue", "-a", "-o", "%.10i %.9P %.10T %.10M %.10l %.20S %.6D %R")
        try:
            told = [self.run(CONTROLLER, *ask, check=False) for ask in (nodes, queue)]
            return "".join(one.stdout + one.stderr for one in told)
        except ClusterError as error:
            return str(error)

    def until(self, holds: Callable[[], bool], what: str, timeout_s: float = UP_S) -> None:
        """Wait until something holds. Raises ClusterError with what the nodes said last."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline:
                raise ClusterError(f"not within {timeout_s:g} s: {what}; nodes: {self.states()}\n{self._said()}")
            time.sleep(0.05)

    def pid(self, node: str) -> int:
        """Process 1 of a node, as this machine counts."""
        if not (children := self._children(node)):
            raise ClusterError(f"{node} is switched off")
        return int(children[0])

    # -- what may happen to a node -----------------------------------------------------------------------------

    def power_cut(self, node: str) -> None:
        """Everything on it is gone at once, and its link is down: no connection is reset."""
        self._link(node, "down")
        self._up[node].kill()
        self._up[node].wait()

    def power_on(self, node: str) -> None:
        """Boot a node that was switched off."""
        self._boot(node, "login" if node in self.logins else "again")

    def cut(self, node: str) -> None:
        """Let nothing pass between the node and the others; it is not told."""
        self._bridge(node, "disabled")

    def heal(self, node: str) -> None:
        """Undo `cut`; a link that has just come up is not known as up at once."""

        def forwards() -> bool:
            try:
                self._bridge(node, "forwarding")
            except ClusterError as error:
                if "Network is down" not in str(error):
                    raise
                return False
            return True

        self.until(forwards, f"the link of {node} is up")

    def freeze(self, node: str) -> None:
        """Every process of it stands still; its connections stay up."""
        self._signal_all(node, "STOP")

    def thaw(self, node: str) -> None:
        """Undo `freeze`."""
        self._signal_all(node, "CONT")

    def slow_down(self, node: str, share: float = 0.3, period_s: float = 0.05) -> None:
        """Let it compute only a ``share`` of the time."""
        stop = self._slow[node] = threading.Event()

        def alternate() -> None:
            while not stop.wait(period_s * share):
                self.freeze(node)
                stop.wait(period_s * (1 - share))
                self.thaw(node)

        thread = threading.Thread(target=alternate, name=f"slow-{node}", daemon=True)
        self._watchers.append(thread)
        thread.start()

    def full_speed(self, node: str) -> None:
        """Undo `slow_down`."""
        self._slow.pop(node).set()

    def stop_controller(self) -> None:
        """SIGKILL for slurmctld: the nodes go on, and no command of SLURM is answered."""
        self.run(CONTROLLER, "sh", "-c", "kill -9 $(cat /run/slurmctld.pid)")

    def start_controller(self) -> None:
        """Undo `stop_controller`: a new slurmctld goes on from the saved state, which lacks the last seconds.

        A node that was put in service just before, for example, may be drained again.
        """
        self.run(CONTROLLER, "slurmctld")

    def drain(self, node: str, reason: str) -> None:
        """SLURM takes the node out of service: what runs there may end, nothing new begins."""
        self.run(CONTROLLER, "scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")

    def resume(self, node: str) -> None:
        """Undo `drain`, also where SLURM has drained or downed the node by itself; a node that is in order stays so."""
        self.run(CONTROLLER, "scontrol", "update", f"nodename={node}", "state=resume", check=False)

    def in_service(self, node: str) -> None:
        """Wait until SLURM uses the node again, and tell it to where it has put the node out of service.

        A node that was cut off ends its job only when SLURM asks it again, after a minute; downing it is quicker.
        """
        began_s = time.monotonic()

        def usable() -> bool:
            state = self.states().get(node, "")
            if state.startswith(("down", "drain", "fail")):
                self.resume(node)
            elif state.startswith("comp") and time.monotonic() > began_s + COMPLETING_S:
                self.run(CONTROLLER, "scontrol", "update", f"nodename={node}", "state=down", "reason=testbed")
            return state in ("idle", "alloc", "mix") and self._registered(node)

        self.until(usable, f"{node} is in service")

    def restore(self) -> None:
        """Every host is switched on, joined and awake, and every node is idle again."""
        for node in [*self.nodes, *self.logins]:
            if self._up[node].poll() is not None:
                self.power_on(node)
            if node in self._slow:
                self.full_speed(node)
            self.heal(node)
            self.thaw(node)
        for node in self.nodes:
            self.run(node, "rm", "-f", "/run/fault")
        for node in self.nodes:
            self.in_service(node)
        self.until(lambda: self.states() == dict.fromkeys(self.nodes, "idle"), "all nodes are idle again")

    # -- how ---------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        directory, nodes = self.directory, len(self.nodes)
        directory.chmod(0o755)
        for name in ("log", "state", "dev"):
            (directory / name).mkdir()
            shutil.chown(directory / name, "slurm")
        texts = {
            "hosts": hosts(nodes, len(self.logins)),
            "slurm.conf": slurm_conf(directory, nodes),
            "gres.conf": gres_conf(directory, nodes),
        }
        for name, text in texts.items():
            (directory / name).write_text(text)
        for name, text in scripts(directory).items():
            (directory / name).write_text(text)
            (directory / name).chmod(0o755)
        for number in range(8):
            os.mknod(directory / "dev" / f"gpu{number}", stat.S_IFCHR | 0o600, os.makedev(GPU_MAJOR, number))
        key = directory / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        shutil.chown(key, "munge")

    def _boot(self, node: str, mode: str) -> None:
        self._spawn(node, mode)
        watcher = threading.Thread(target=self._watch, args=(node,), name=f"power-{node}", daemon=True)
        self._watchers.append(watcher)
        watcher.start()

    def _watch(self, node: str) -> None:
        """Boot a node again that SLURM reboots. What a thread starts dies with the thread, so this one stays.

        A daemon: where `close` is interrupted, this process may end all the same, and everything ends with it.
        """
        while self._up[node].wait() == REBOOT and not self._closing:
            time.sleep(BOOT_S)
            self._spawn(node, "again")

    def _spawn(self, node: str, mode: str) -> None:
        self._booted_s[node] = int(time.time())
        console = os.open(self.logs / f"{node}.console", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        spaces = ["--mount", "--uts", "--pid", "--ipc", "--net", "--fork", "--kill-child", "--mount-proc"]
        init = [sys.executable, str(Path(__file__).with_name("boot.py")), node, str(self.directory), mode]
        me = os.getpid()
        process = subprocess.Popen(
            ["unshare", *spaces, *init],
            stdin=subprocess.PIPE,
            stdout=console,
            stderr=console,
            env={"PATH": PATH, "LC_ALL": "C", **self._marks},
            preexec_fn=lambda: die_with(me),
        )
        os.close(console)
        self._up[node] = process
        self._plug_in(node)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()

    def _plug_in(self, node: str) -> None:
        deadline = time.monotonic() + UP_S
        while not self._children(node):
            if time.monotonic() > deadline:
                raise ClusterError(f"{node} does not come up\n{self._said()}")
            time.sleep(0.005)
        if node == CONTROLLER:
            commands = [
                "link add switch type bridge stp_state 0 forward_delay 0",
                f"addr add {address(0)}/24 dev switch",
            ]
            return self._ip(node, *commands, "link set switch up", "link set lo up")
        index = [*self.nodes, *self.logins].index(node) + 1
        add_link(partial(self._ip, CONTROLLER), node, self.pid(node))
        self._ip(CONTROLLER, f"link set {node} master switch up")
        self._ip(node, f"addr add {address(index)}/24 dev eth0", "link set eth0 up", "link set lo up")

    def _children(self, node: str) -> list[str]:
        process = self._up[node]
        try:
            return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        except OSError:
            return []

    def _ip(self, node: str, *commands: str) -> None:
        self._in_network(node, ["ip", "-batch", "-"], "".join(f"{command}\n" for command in commands))

    def _link(self, node: str, state: str) -> None:
        self._ip(CONTROLLER, f"link set {node} {state}")

    def _bridge(self, node: str, state: str) -> None:
        self._in_network(CONTROLLER, ["bridge", "link", "set", "dev", node, "state", state])

    def _in_network(self, node: str, command: list[str], text: str = "") -> None:
        enter = ["nsenter", "-t", str(self.pid(node)), "-n", "--"]
        done = subprocess.run(
            [*enter, *command], input=text, capture_output=True, text=True, timeout=30, env={"PATH": PATH}
        )
        if done.returncode:
            raise ClusterError(f"{command} {text!r}: {done.stderr}")

    def _signal_all(self, node: str, name: str) -> None:
        enter = ["nsenter", "-t", str(self.pid(node)), "-p", "--", "kill", f"-{name}", "-1"]
        subprocess.run(
            enter, check=False, timeout=30, stdin=subprocess.DEVNULL, capture_output=True, env={"PATH": PATH}
        )

    def _registered(self, node: str) -> bool:
        """SLURM knows of the node's last boot; until then it may end what it has begun there since."""
        shown = self.run(CONTROLLER, "scontrol", "show", "node", node, env={"SLURM_TIME_FORMAT": "%s"}, check=False)
        _, found, rest = shown.stdout.partition("SlurmdStartTime=")
        began = rest.split(maxsplit=1)[0] if found else ""
        return began.isdecimal() and int(began) >= self._booted_s[node]

    def _schedules(self) -> bool:
        """What the controller launches before its scheduler has told its settings may be lost for a minute."""
        return "SchedulerParameters=" in (self.logs / "slurmctld.log").read_text(errors="replace")

    def _said(self) -> str:
        consoles = sorted(self.logs.glob("*"))
        return "\n".join(f"-- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in consoles)
