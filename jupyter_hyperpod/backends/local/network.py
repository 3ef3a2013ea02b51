"""Gives each node a network of its own, joined by a private switch, so that a node can be cut off as by pulling its
cable: packets vanish in both directions without an error.

The switch is a bridge in a network namespace that has no name and no way out; jobs' heads live in it. Every node lives
in a namespace of its own, joined to the switch by a veth pair. Namespaces exist for as long as somebody holds them:
the supervisor and every node hold the switch, a node's processes hold the node's. When the last one is gone, the
kernel removes everything, whatever way they ended. Nothing of it is ever seen in the machine's own network, so
addresses cannot clash and several clusters need not know of each other.

`ip` and `bridge` (iproute2) do the work, as root.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ...core.errors import ClusterError

HEAD_INDEX = 0
_CLONE_NEWNET = 0x40000000
_BRIDGE = "switch"
_LINK = "eth0"
_COMMAND_TIMEOUT_S = 10.0
_TOOLS = ("ip", "bridge")
_TOOL_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
_OWN = "/proc/thread-self/ns/net"
_libc = ctypes.CDLL(None, use_errno=True)


def missing() -> str:
    """What this machine lacks for isolated networks, as a sentence; "" where nothing does."""
    if os.geteuid() != 0:
        return (
            f"isolated networks need root and this is user {os.geteuid()}: start the cluster as root, or without "
            "--isolate-network"
        )
    if lacking := [tool for tool in _TOOLS if shutil.which(tool, path=_TOOL_PATH) is None]:
        return (
            f"isolated networks need `{'` and `'.join(lacking)}` of iproute2, which was not found on PATH: "
            "install it (Debian: apt-get install iproute2), or start the cluster without --isolate-network"
        )
    return ""


def address(index: int) -> str:
    """The address of the head (index 0) or of a node (from 1), on the cluster's private network 10.98.0.0/16."""
    return f"10.98.{(index + 1) >> 8}.{(index + 1) & 255}"


def environment(index: int) -> dict[str, str]:
    """What processes with a network of their own have to know: where to listen, and not to share memory with others."""
    if index == HEAD_INDEX:
        return {"HYPERPOD_BIND": address(index)}
    return {"HYPERPOD_BIND": address(index), "HYPERPOD_SOCKETS_ONLY": "1", "GLOO_SOCKET_IFNAME": _LINK}


@dataclass(frozen=True, slots=True)
class NetworkPlace:
    """Where a process is to be joined: ``switch`` is a path to the switch, ``index`` 0 the head, else the node."""

    switch: str
    index: int


class Switch:
    """The namespace with the bridge. Raises ClusterError where the kernel or iproute2 refuses."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def create(cls) -> Switch:
        """A switch that nobody is joined to yet."""
        if problem := missing():
            raise ClusterError(problem)
        with _returning():
            _unshare()
            switch = cls(os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC))
            _run(
                "ip",
                "link set lo up",
                f"link add {_BRIDGE} address {_hardware(HEAD_INDEX)} type bridge stp_state 0 forward_delay 0",
                f"addr add {address(HEAD_INDEX)}/16 dev {_BRIDGE}",
                f"link set {_BRIDGE} up",
            )
        return switch

    @classmethod
    def adopt(cls, path: str) -> Switch | None:
        """The switch that another process holds; None where it does not any more."""
        try:
            return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return None

    @property
    def path(self) -> str:
        """Where other processes of the same user find it, while this process lives."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def is_at(self, path: str) -> bool:
        """True where `path` leads to this very switch."""
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._descriptor))
        except OSError:
            return False

    def cut(self, index: int) -> None:
        """Let nothing pass to or from the node any more; its own link stays up, so it is not told."""
        with _inside(self._descriptor):
            _run("bridge", f"link set dev {_port(index)} state disabled")

    def heal(self, index: int) -> None:
        with _inside(self._descriptor):
            _run("bridge", f"link set dev {_port(index)} state forwarding")

    def cut_off(self) -> frozenset[int]:
        with _inside(self._descriptor):
            found = _call(["bridge", "-json", "link", "show"])
        ports = json.loads(found or "[]")
        names = [re.fullmatch(r"node-(\d+)", port["ifname"]) for port in ports if port.get("state") == "disabled"]
        return frozenset(int(name[1]) for name in names if name)

    @classmethod
    def join(cls, place: NetworkPlace) -> Switch:
        """Move this process, which must be single-threaded, to its place; its children will be there too."""
        try:
            switch = cls(os.open(place.switch, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise ClusterError(f"the cluster's private network is gone: {error}") from error
        if place.index == HEAD_INDEX:
            _enter(switch._descriptor)
        else:
            switch._connect(place.index)
        return switch

    def _connect(self, index: int) -> None:
        _unshare()
        own = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with _inside(self._descriptor):
                self._plug_in(index, own)
        finally:
            os.close(own)
        _run("ip", "link set lo up", f"addr add {address(index)}/16 dev {_LINK}", f"link set {_LINK} up")

    @staticmethod
    def _plug_in(index: int, own: int) -> None:
        # the hardware address stays that of the node, so that its peers need not forget its predecessor's
        peer = f"{_LINK} address {_hardware(index)} netns /proc/{os.getpid()}/fd/{own}"
        commands = (
            f"link add {_port(index)} type veth peer name {peer}",
            f"link set {_port(index)} master {_BRIDGE} up",
        )
        try:
            _run("ip", *commands)
        except ClusterError:  # the predecessor's namespace may not have been taken down yet
            _run("ip", f"link delete {_port(index)}")
            _run("ip", *commands)

    def close(self) -> None:
        os.close(self._descriptor)


def _port(index: int) -> str:
    return f"node-{index}"


def _hardware(index: int) -> str:
    return "02:00:" + ":".join(f"{int(part):02x}" for part in address(index).split("."))


@contextmanager
def _returning() -> Iterator[None]:
    """Come back to the present network afterwards, whatever happens."""
    home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        _enter(home)
        os.close(home)


@contextmanager
def _inside(descriptor: int) -> Iterator[None]:
    with _returning():
        _enter(descriptor)
        yield


def _unshare() -> None:
    if _libc.unshare(_CLONE_NEWNET) != 0:
        raise _refused("created")


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise _refused("entered")


def _refused(what: str) -> ClusterError:
    reason = os.strerror(ctypes.get_errno())
    return ClusterError(
        f"a network namespace cannot be {what}: {reason}; expected root with CAP_SYS_ADMIN and CAP_NET_ADMIN "
        "(in a container: --privileged), or a cluster without --isolate-network"
    )


def _run(tool: str, *commands: str) -> None:
    _call([tool, "-batch", "-"], "".join(f"{command}\n" for command in commands))


def _call(arguments: list[str], text: str = "") -> str:
    try:
        done = subprocess.run(
            arguments,
            input=text,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            env={**os.environ, "PATH": _TOOL_PATH, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"`{' '.join(arguments)}` cannot be run: {error}") from error
    if done.returncode:
        problem = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise ClusterError(f"`{arguments[0]}` refused {text.strip()!r}: {problem}")
    return done.stdout
