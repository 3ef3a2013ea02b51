"""Process 1 of a testbed host: its own name, /run and /var/lib; on a node control groups, containerd and a kubelet too.

    unshare --mount --uts --pid --ipc --net --fork --kill-child --mount-proc python boot.py HOST DIRECTORY [GROUP …]

The groups are this node's control groups, one per hierarchy. A node has /run/booted when its images are there. What a
kubelet sets in the kernel for the whole machine it finds set already: it may not change the machine that tests run on.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

NEW_GROUP_NAMESPACE = 0x02000000
TMPFS = {"/run": "mode=755", "/dev/shm": "mode=1777,size=1g", "/var/lib": "mode=755"}
# What kubelets of 1.20 set where it is otherwise: pkg/kubelet/cm/container_manager_linux.go.
KERNEL = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
SOCKET = "/run/containerd/containerd.sock"
UP_S = 60.0
SELDOM = {"GOGC": "400"}  # programs in Go collect garbage less often: a tenth of their time went into that


def main(host: str, directory: Path, groups: list[str]) -> int:
    """Bring the host up, then collect whatever ends on it."""
    if groups:
        enter(groups)
    sys.stdin.readline()  # the testbed has plugged the network in
    call("hostname", host)
    call("mount", "--make-rprivate", "/")
    for place, options in TMPFS.items():
        call("mount", "-t", "tmpfs", "-o", options, "tmpfs", place)
    call("mount", "--bind", str(directory / "hosts"), "/etc/hosts")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")  # of this host's network alone
    if groups:
        node = directory / "nodes" / host
        disk(node)
        control_groups([Path(group) for group in groups])
        kernel()
        serve(directory, node)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            signal.pause()


def enter(groups: list[str]) -> None:
    """Move this process into the groups and make them the roots that it and its children see."""
    for group in groups:
        Path(group, "cgroup.procs").write_text("0")
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_GROUP_NAMESPACE):
        raise OSError(ctypes.get_errno(), "unshare")


def disk(node: Path) -> None:
    """What outlives a power cut, at the places where programs expect it."""
    for name in ("containerd", "kubelet", "log"):
        place = Path("/var/log" if name == "log" else f"/var/lib/{name}")
        (node / name).mkdir(parents=True, exist_ok=True)
        place.mkdir(exist_ok=True)
        call("mount", "--bind", str(node / name), str(place))
    call("mount", "--make-shared", "/var/lib/kubelet")


def control_groups(groups: list[Path]) -> None:
    """Mount the hierarchies of version 1 anew: their roots are this node's groups."""
    names = sorted({group.parts[4] for group in groups})
    call("umount", "--recursive", "/sys/fs/cgroup")  # hidden ones would still be listed, and looked for
    call("mount", "-t", "sysfs", "sysfs", "/sys")
    call("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/sys/fs/cgroup")
    for name in names:
        place = Path("/sys/fs/cgroup", name)
        place.mkdir()
        call("mount", "-t", "cgroup", "-o", name, "cgroup", str(place))
        for one in name.split(","):
            if one != name:
                Path("/sys/fs/cgroup", one).symlink_to(name)


def kernel() -> None:
    """Put files over the kernel's settings: a kubelet reads what it wants to read and changes nothing."""
    for name, value in KERNEL.items():
        shown = Path("/run/kernel", name)
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.write_text(f"{value}\n")
        call("mount", "--bind", str(shown), f"/proc/sys/{name}")


def serve(directory: Path, node: Path) -> None:
    """Start containerd and the kubelet, and import the images."""
    Path("/run/cni/net.d").mkdir(parents=True)
    Path("/run/cni/net.d/10-testbed.conflist").write_bytes((node / "network.json").read_bytes())
    Path("/run/kubelet.yaml").write_bytes((node / "kubelet.yaml").read_bytes())
    start(["containerd", f"--config={node}/containerd.toml"], node / "containerd.log")
    deadline = time.monotonic() + UP_S
    while subprocess.run(["ctr", "-a", SOCKET, "version"], capture_output=True, check=False).returncode:
        if time.monotonic() > deadline:
            raise TimeoutError(f"containerd does not answer within {UP_S:g} s")
        time.sleep(0.05)
    start((node / "kubelet.command").read_text().split("\n"), node / "kubelet.log")
    images(directory)


def images(directory: Path) -> None:
    """Import the images; pods may come then."""
    while not (archive := directory / "images.tar").exists():
        time.sleep(0.05)
    call("ctr", "-a", SOCKET, "-n", "k8s.io", "images", "import", str(archive))
    Path("/run/booted").touch()


def start(command: list[str], log: Path) -> None:
    """Start a daemon."""
    with open(log, "ab") as said:
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env={**os.environ, **SELDOM})


def call(*arguments: str) -> None:
    """Run a command; what it says goes to the host's console."""
    subprocess.run(arguments, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
