"""Sets a job's own environment variables in its processes, from a private file that alone holds the values.

No command line, script or message to a backend contains them: each process of a job reads them from its job's
directory when it starts. What is given as a reference is in no file of the job: each node fetches it. Linux shows them
in /proc/PID/environ, to their owner and to root.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ..core.env_references import EnvReference
from ..core.errors import SpecError
from ..system.variables import SAMPLES_VARIABLE
from .store import JobStore

# variables by which a backend tells a process its place; a person's request does not change them
OWN = tuple(f"HYPERPOD_{name}" for name in "JOB_ID JOB_DIR CELL MOUNTS NODE SPARE SCHEDULER_NODE".split())
# read once, when a process starts or when a library is loaded, which a forked process has done before
READ_EARLY = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "TORCH_", "PYTORCH_", "ATEN_", "DNNL_", "ONEDNN_", "NPY_") + (
    *("OPENBLAS_", "MKL_", "KMP_", "GOMP_", "OMP_DYNAMIC", "OMP_PLACES", "OMP_PROC_BIND", "OMP_SCHEDULE"),
    *("OMP_STACKSIZE", "OMP_THREAD_LIMIT", "OMP_WAIT_POLICY"),
)
# of these, what decides which kernels compute, and so the last bits of results
CHOOSES_KERNELS = ("ATEN_", "DNNL_", "MKL_", "NPY_", "ONEDNN_", "OPENBLAS_")
HASH_SEED = "0"
IF_TOLD = ("HYPERPOD_BIND", "HYPERPOD_SOCKETS_ONLY")
# what only the job's person says, whoever has started the cluster
OF_ITS_JOB = (SAMPLES_VARIABLE,)
MOST_BYTES = 1 << 20  # of a value in a file
UNRESOLVED = os.EX_CONFIG  # the exit status of a process that could not fetch a value


def with_fixed_hashes(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which hashes of text, and so the order of sets of words, are the same in all processes."""
    return {"PYTHONHASHSEED": HASH_SEED, **environment}


def adopt(job: JobStore, node: str = "") -> list[str]:
    """Set the job's variables in this process; the names of those that were new.

    Those with references are set on a ``node`` only. Raises StoreError, SpecError.
    """
    given = job.environment() | (fetched(job.spec().env_from, node) if node else {})
    told = {*OWN, *(name for name in IF_TOLD if name in os.environ)}
    values = {name: value for name, value in with_fixed_hashes(given).items() if name not in told}
    changed = [name for name, value in values.items() if os.environ.get(name) != value]
    for name in OF_ITS_JOB:
        os.environ.pop(name, None)
    os.environ.update(values)
    tell_loaded_libraries(values)
    return changed


def fetched(references: Mapping[str, str], node: str) -> dict[str, str]:
    """The values that references name on this node. Raises SpecError, which says which is missing and shows none."""
    values = {}
    for name, text in references.items():
        try:
            reference = EnvReference.parse(text)
            if reference is None:
                raise ValueError("it is no reference")
            values[name] = _FETCH[reference.scheme](reference.place)
        except (OSError, ValueError, RuntimeError, SpecError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise SpecError(f"{node} cannot fetch the environment variable {name} from {text}: {why}") from None
    return values


def _in_file(path: str) -> str:
    """The content of a file without the end of its last line. Raises OSError, ValueError, RuntimeError."""
    with open(Path(path).expanduser(), "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"the file is larger than {MOST_BYTES >> 20} MiB")
    try:
        value = content.decode()
    except UnicodeDecodeError:
        raise ValueError("the file is not text in UTF-8") from None
    if "\0" in value:
        raise ValueError("the file has a NUL character in it")
    return value.removesuffix("\n").removesuffix("\r")


def _in_environment(name: str) -> str:
    """The value of a variable of this process. Raises ValueError."""
    if name not in os.environ:
        raise ValueError(f"{name} is not set there")
    return os.environ[name]


_FETCH: dict[str, Callable[[str], str]] = {"file": _in_file, "env": _in_environment}


def kernel_choices() -> dict[str, str]:
    """The variables of this process that libraries read once to choose their kernels."""
    return {name: value for name, value in os.environ.items() if name.startswith(CHOOSES_KERNELS)}


def begin_with(job: JobStore, node: str = "") -> None:
    """`adopt` in a newly started interpreter; where a variable comes too late, start the interpreter again.

    PYTHONPATH, LD_PRELOAD, PYTHONHASHSEED and others are read once, when a process starts.
    """
    if _adopted(job, node):
        _begin_again(*sys.orig_argv[1:])


def go_on_with(job: JobStore, module: str, node: str) -> None:
    """`adopt` in a process that may have been forked to run ``module``; one for which it is too late starts again."""
    if any(name.startswith(READ_EARLY) for name in _adopted(job, node)):
        _begin_again("-m", module, *sys.argv[1:])


def _adopted(job: JobStore, node: str) -> list[str]:
    """`adopt`; where a value cannot be fetched, the last line of the log says so, and the process ends."""
    try:
        return adopt(job, node)
    except SpecError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(UNRESOLVED)


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
