"""What the testbed needs of this machine, and what it leaves on it if it is killed."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
from pathlib import Path

from jupyter_hyperpod.system.processes import Identity, alive

TOOLS = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "bridge", "unshare", "nsenter", "runuser")
PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
PLACE, PREFIX = Path("/var/tmp"), "slurm-testbed-"
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def missing() -> str:
    """What this machine lacks for the testbed, as a sentence; "" where nothing does."""
    if os.geteuid() != 0:
        return f"a SLURM of several nodes on one machine needs root, and this is user {os.geteuid()}"
    lacking = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
    return f"missing: {', '.join(lacking)} (Debian: apt-get install slurm-wlm munge iproute2)" if lacking else ""


def sweep() -> None:
    """Remove the files of testbeds whose process was killed; everything else of them ended with it."""
    for left in PLACE.glob(f"{PREFIX}*"):
        pid, start, *_ = [*left.name.removeprefix(PREFIX).split("-"), "", ""]
        if pid.isdecimal() and start.isdecimal() and not alive(Identity(int(pid), int(start))):
            shutil.rmtree(left, ignore_errors=True)


def die_with(parent: int) -> None:
    """Loads nothing: it runs between fork and exec of a process with threads."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
