"""Sets a job's own environment variables in its processes, from a private file that alone holds the values.

No command line, script or message to a backend contains them: each process of a job reads them from its job's
directory when it starts. Linux shows them in /proc/PID/environ, to their owner and to root.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from .store import JobStore

# variables by which a backend tells a process its place; a person's request does not change them
OWN = tuple(f"HYPERPOD_{name}" for name in "JOB_ID JOB_DIR CELL MOUNTS NODE SPARE SCHEDULER_NODE".split())
IF_TOLD = ("HYPERPOD_BIND", "HYPERPOD_SOCKETS_ONLY")


def adopt(job: JobStore) -> bool:
    """Set the job's variables in this process; True where any was new. Raises StoreError, SpecError."""
    told = {*OWN, *(name for name in IF_TOLD if name in os.environ)}
    values = {name: value for name, value in job.environment().items() if name not in told}
    changed = any(os.environ.get(name) != value for name, value in values.items())
    os.environ.update(values)
    tell_loaded_libraries(values)
    return changed


def begin_with(job: JobStore) -> None:
    """`adopt` in a newly started interpreter; where a variable comes too late, start the interpreter again.

    PYTHONPATH, LD_PRELOAD, PYTHONHASHSEED and others are read once, when a process starts.
    """
    if adopt(job):
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def tell_loaded_libraries(values: Mapping[str, str]) -> None:
    """Set the number of threads: a preloaded library has already read $OMP_NUM_THREADS."""
    torch, threads = sys.modules.get("torch"), values.get("OMP_NUM_THREADS", "")
    if torch is not None and threads.isdecimal() and torch.get_num_threads() != int(threads):
        torch.set_num_threads(int(threads))
