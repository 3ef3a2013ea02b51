"""What the testbed needs of this machine, and what it leaves on it if it is killed: files and control groups."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from jupyter_hyperpod.system.processes import Identity, alive, identify
from tests.support.kubernetes.build import programs
from tests.support.slurm.machine import PATH

TOOLS = ("etcd", "containerd", "ctr", "runc", "busybox", "ip", "bridge", "unshare", "nsenter")
CNI = Path("/usr/lib/cni")
DEBIAN = "etcd-server containerd runc containernetworking-plugins busybox-static iproute2"
PLACE, PREFIX = Path("/var/tmp"), "kubernetes-testbed-"
GROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids")
GONE_S = 10.0


def missing() -> str:
    """What this machine lacks for the testbed, as a sentence; "" where nothing does."""
    if os.geteuid() != 0:
        return f"a Kubernetes of several nodes on one machine needs root, and this is user {os.geteuid()}"
    lacking = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
    lacking += [str(CNI / name) for name in ("bridge", "host-local", "loopback") if not (CNI / name).exists()]
    if lacking:
        return f"missing: {', '.join(lacking)} (Debian: apt-get install {DEBIAN})"
    if absent := {"cpu", "cpuacct", "cpuset", "memory"} - hierarchies().keys():
        return f"Kubernetes 1.20 needs control groups of version 1, and none is mounted for {', '.join(sorted(absent))}"
    return "" if programs().is_dir() else f"{programs()} is missing: run `make kubernetes`, which builds it once"


def name() -> str:
    """How what belongs to a testbed of this process begins."""
    me = identify(os.getpid())
    return f"{PREFIX}{me.pid}-{me.start}-"


def sweep() -> None:
    """Remove what testbeds have left whose process was killed; their processes and mounts ended with it."""
    for left in PLACE.glob(f"{PREFIX}*"):
        if _is_dead(left.name):
            shutil.rmtree(left, ignore_errors=True)
    for base in hierarchies().values():
        for left in base.glob(f"{PREFIX}*"):
            if _is_dead(left.name):
                _remove(left)


def maker(text: str) -> Identity | None:
    """The process whose testbed is named in a text; None where none is."""
    found = re.search(rf"{PREFIX}(\d+)-(\d+)-", text)
    return Identity(*map(int, found.groups())) if found else None


def _is_dead(left: str) -> bool:
    made = maker(left)
    return made is not None and not alive(made)


def hierarchies() -> dict[str, Path]:
    """Controller -> this process's own control group of version 1, among those that the kubelet uses."""
    found = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for controller in names.split(","):
            place = GROUPS / names / path.lstrip("/")
            if controller in CONTROLLERS and place.is_dir():
                found[controller] = place
    return found


def groups(directory: str) -> Iterator[Path]:
    """The control groups of that name, one per hierarchy."""
    yield from dict.fromkeys(base / directory for base in hierarchies().values())


def make_groups(directory: str) -> None:
    """Make a control group in every hierarchy, empty ones of the same name first taken away."""
    remove_groups(directory)
    for controller, base in hierarchies().items():
        group = base
        for part in Path(directory).parts:
            group /= part
            group.mkdir(exist_ok=True)
            if controller == "cpuset":  # a new one has neither cores nor memory
                for what in ("cpuset.cpus", "cpuset.mems"):
                    (group / what).write_text((group.parent / what).read_text())


def remove_groups(directory: str) -> None:
    """Remove control groups and those within them, once the last process has left them."""
    for group in groups(directory):
        _remove(group)


def _remove(group: Path) -> None:
    deadline = time.monotonic() + GONE_S
    while group.is_dir():
        for inner, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):
                os.rmdir(inner)
        if group.is_dir():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{group} is still in use after {GONE_S:g} s")
            time.sleep(0.02)
