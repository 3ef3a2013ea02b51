"""Sets a job's own environment variables in its processes, from a private file that alone holds the values.

No command line, script or message to a backend contains them: each process of a job reads them from its job's
directory when it starts. Linux shows them in /proc/PID/environ, to their owner and to root.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping

from .store import JobStore

# variables by which a backend tells a process its place; a person's request does not change them
OWN = tuple(f"HYPERPOD_{name}" for name in "JOB_ID JOB_DIR CELL MOUNTS NODE SPARE SCHEDULER_NODE".split())
# read once, when a process starts or when a library is loaded, which a forked process has done before
READ_EARLY = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "TORCH_", "PYTORCH_", "ATEN_", "DNNL_", "ONEDNN_", "NPY_") + (
    *("OPENBLAS_", "MKL_", "KMP_", "GOMP_", "OMP_DYNAMIC", "OMP_PLACES", "OMP_PROC_BIND", "OMP_SCHEDULE"),
    *("OMP_STACKSIZE", "OMP_THREAD_LIMIT", "OMP_WAIT_POLICY"),
)
HASH_SEED = "0"
IF_TOLD = ("HYPERPOD_BIND", "HYPERPOD_SOCKETS_ONLY")


def with_fixed_hashes(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which hashes of text, and so the order of sets of words, are the same in all processes."""
    return {"PYTHONHASHSEED": HASH_SEED, **environment}


def adopt(job: JobStore) -> list[str]:
    """Set the job's variables in this process; the names of those that were new. Raises StoreError, SpecError."""
    told = {*OWN, *(name for name in IF_TOLD if name in os.environ)}
    values = {name: value for name, value in with_fixed_hashes(job.environment()).items() if name not in told}
    changed = [name for name, value in values.items() if os.environ.get(name) != value]
    os.environ.update(values)
    tell_loaded_libraries(values)
    return changed


def begin_with(job: JobStore) -> None:
    """`adopt` in a newly started interpreter; where a variable comes too late, start the interpreter again.

    PYTHONPATH, LD_PRELOAD, PYTHONHASHSEED and others are read once, when a process starts.
    """
    if adopt(job):
        _begin_again(*sys.orig_argv[1:])


def go_on_with(job: JobStore, module: str) -> None:
    """`adopt` in a process that may have been forked to run ``module``; one for which it is too late starts again."""
    if any(name.startswith(READ_EARLY) for name in adopt(job)):
        _begin_again("-m", module, *sys.argv[1:])


def _begin_again(*arguments: str) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *arguments])


def tell_loaded_libraries(values: Mapping[str, str]) -> None:
    """Make a preloaded library read again what it read at its start: threads, the temporary folder, the time zone."""
    tempfile.tempdir = None
    time.tzset()
    torch, threads = sys.modules.get("torch"), values.get("OMP_NUM_THREADS", "")
    if torch is not None and threads.isdecimal() and torch.get_num_threads() != int(threads):
        torch.set_num_threads(int(threads))
