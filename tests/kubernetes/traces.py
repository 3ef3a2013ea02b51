"""What a testbed could leave on a machine: processes, mounts, networks, control groups, kernel settings and files.

Others may work on this machine meanwhile, so only names that a Kubernetes would give are looked at, and what belongs to
testbeds of other processes that live is left out.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jupyter_hyperpod.system.processes import Identity, alive, identify
from tests.leaks import setting
from tests.support.kubernetes.boot import KERNEL
from tests.support.kubernetes.machine import PREFIX, maker

OURS = re.compile(r"kube|etcd|containerd|cni|runc|hollow|testbed|pods|switch", re.IGNORECASE)
# Where containers, Kubernetes and kubectl keep things on machines of their own.
PLACES = ("/etc", "/opt", "/run", "/run/netns", "/tmp", "/usr/libexec", "/var/lib", "/var/log", "/var/tmp", "~/.kube")


@dataclass(frozen=True)
class Traces:
    """Lines that say what is there, and the network namespaces of those processes."""

    lines: frozenset[str]
    networks: frozenset[str]

    @classmethod
    def now(cls, mark: tuple[str, str] = ("", ""), of: int = 0) -> Traces:
        """What is there now, also of the process ``of``; ``mark`` is a variable of the environment with its value."""
        mine = frozenset((os.getpid(), of))
        ours = _processes(setting(*mark), mine) if mark[0] else {}
        lines = {f"process {pid} {line[:100]}" for pid, line in ours.items()}
        found = (*_mounts(), *_interfaces(), *_groups(), *_files())
        lines |= {line for line in found if OURS.search(line) and not _of_others(line, mine)}
        return cls(frozenset(lines | set(_settings())), frozenset(filter(None, map(_network, ours))))

    def since(self, before: Traces) -> list[str]:
        """What was not there before."""
        return sorted(self.lines - before.lines)


def inside(networks: frozenset[str]) -> set[Identity]:
    """The processes of the machine in these network namespaces, whose numbers the kernel gives to others afterwards."""
    everybody = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return {identify(pid) for pid in everybody if _network(pid) in networks}


def _processes(mark: bytes, mine: frozenset[int]) -> dict[int, str]:
    """Processes with the mark, and those in a control group of a testbed: pods get no environment from it."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            marked = mark in b"\0" + (place / "environ").read_bytes()
            groups = (place / "cgroup").read_text()
            if marked or (PREFIX in groups and not _of_others(groups, mine)):
                found[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


def _of_others(line: str, mine: frozenset[int]) -> bool:
    """Whether it is of a testbed that another process has up: other tests run beside these."""
    made = maker(line)
    return made is not None and made.pid not in mine and alive(made)


def _network(pid: int) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net")
    return ""


def _mounts() -> list[str]:
    return [f"mount {line.split()[4]}" for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def _interfaces() -> list[str]:
    return [f"interface {name}" for name in os.listdir("/sys/class/net")]


def _groups() -> list[str]:
    return [f"control group {directory}" for directory, _, _ in os.walk("/sys/fs/cgroup")]


def _settings() -> list[str]:
    return [f"{name} = {Path('/proc/sys', name).read_text().strip()}" for name in KERNEL]


def _files() -> list[str]:
    found = []
    for place in PLACES:
        with suppress(OSError):
            found += [f"file {place}/{name}" for name in os.listdir(Path(place).expanduser())]
    return found
