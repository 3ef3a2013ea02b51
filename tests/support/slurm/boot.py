"""Process 1 of a testbed node: its own host name, /run, /dev/shm, munge and SLURM daemon. Ends with 42 to be rebooted.

    unshare --mount --uts --pid --ipc --net --fork --kill-child --mount-proc python boot.py NODE DIRECTORY MODE

MODE is "ctl" for the controller, "first" for a node, "again" for a node that was switched off before and "login" for a
host that runs no jobs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

REBOOT = 42
TMPFS = {"/run": "mode=755", "/dev/shm": "mode=1777,size=1g"}


def main(node: str, directory: Path, mode: str) -> int:
    """Bring the node up, then collect whatever ends on it."""
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(REBOOT))  # what RebootProgram sends
    sys.stdin.readline()  # the testbed has plugged the network in
    call("hostname", node)
    call("mount", "--make-rprivate", "/")
    for place, options in TMPFS.items():
        call("mount", "-t", "tmpfs", "-o", options, "tmpfs", place)
    call("mount", "--bind", str(directory / "hosts"), "/etc/hosts")
    call("ip", "link", "set", "lo", "up")
    for path, owner in (("/run/munge", "munge"), ("/run/slurm/spool", "root")):
        Path(path).mkdir(parents=True)
        call("chown", owner, path)
    os.environ["SLURM_CONF"] = str(directory / "slurm.conf")
    munged = ["munged", f"--key-file={directory}/munge.key", "--log-file=/run/munge/log"]
    call("runuser", "-u", "munge", "--", *munged, "--pid-file=/run/munge/pid", "--seed-file=/run/munge/seed")
    if mode != "login":
        call(*(["slurmctld", "-i"] if mode == "ctl" else ["slurmd", *(["-b"] if mode == "again" else [])]))
    while True:
        try:
            os.wait()
        except ChildProcessError:
            signal.pause()


def call(*arguments: str) -> None:
    """Run a command; what it says goes to the node's console."""
    subprocess.run(arguments, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
