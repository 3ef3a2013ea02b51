"""Turns a JobSpec into a LaunchPlan, and builds the command that restarts the supervisor."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from functools import lru_cache

from ..backends import load
from ..backends.base import Host
from ..backends.source import same_interpreter, source_digest
from ..control.cluster import SOCKET
from ..core.backend_options import is_apart
from ..core.spec import HIDDEN, TURN_VARIABLE, JobSpec, LaunchPlan
from ..mounts import table
from ..storage.environment import HASH_SEED
from ..storage.store import ENVIRONMENT_VARIABLE, SHARED, JobStore, Store
from ..system.diagnostics import note
from ..system.processes import identify

AGENT = "jupyter_hyperpod.runtime.agent.main"
HEAD = "jupyter_hyperpod.runtime.coordinator.main"
SERVING = "jupyter_hyperpod.serving"
REPLICA, GATEWAY = f"{SERVING}.replica", f"{SERVING}.gateway"
NOT_SHARED = (
    "the pods of this job share no directory, so there is no shared://; give them a volume claim that all of them may "
    "write (--kubernetes claim=NAME:/PATH), or use an object store"
)
SUCCEED, SINCE, TAKE_OVER = "--succeed", "--since", "--take-over"
# loaded once by the zygote; names only, since control never imports the runtime
PRELOAD = (
    "torch",
    "jupyter_hyperpod.runtime.worker.warmup:torch_first_use",
    AGENT,
    "jupyter_hyperpod.runtime.agent.node_agent",  # which it imports late
    HEAD,
    "jupyter_hyperpod.runtime.worker.main",
    "jupyter_hyperpod.runtime.session.session",
    "jupyter_hyperpod.runtime.data.tokens",
    REPLICA,
    f"{SERVING}.models",  # which a replica imports where it has no engine
    GATEWAY,
    "jupyter_hyperpod.loader.read.s3:signing",
)
OF_HEADS = (HEAD, GATEWAY)  # without torch: they are ready seconds sooner, where all nodes are elsewhere


@lru_cache(maxsize=1)
def digest_of(second: int) -> str:
    """The digest of the source as it was in that second: a thousand jobs at once cost one look at it."""
    return source_digest()


class Renewal:
    """Replaces zygote and nodes, once, where the installed source is no longer what they have loaded."""

    def __init__(self, host: Host) -> None:
        self._host, self._renewed_for = host, ""

    def due(self, python: str) -> bool:
        """Whether they are being replaced now, so that a job of this interpreter waits for that."""
        digest = source_digest()
        if digest in (self._host.warm_key, self._renewed_for) or not same_interpreter(python):
            return False
        if not self._host.renewable:
            return False
        note("the installed source has changed: loading it anew")
        self._renewed_for = digest
        self._host.renew()
        return True


def successor() -> dict[str, object]:
    """What the zygote needs to start this very supervisor again, should it die without removing its socket."""
    me = identify(os.getpid())
    own = [
        argument
        for argument in sys.argv[1:]
        if argument not in (SUCCEED, TAKE_OVER) and not argument.startswith(f"{SINCE}=")
    ]
    arguments = [sys.executable, "-m", "jupyter_hyperpod.supervisor.main", *own, SUCCEED]
    return {"successor": arguments, "since": SINCE, "mark": SOCKET, "supervisor": [me.pid, me.start]}


def launch_plan(store: Store, job: JobStore, spec: JobSpec, warm_key: str) -> LaunchPlan:
    """Return what a backend starts for the job; `warm_key` is the digest of the source that is to run."""
    return LaunchPlan(
        job_id=job.id,
        module=AGENT if spec.serve is None else REPLICA,
        head_module=HEAD if spec.serve is None else GATEWAY,
        arguments=(),
        env=environment(store, job, spec),
        python=spec.python or sys.executable,
        working_directory=spec.working_directory or str(job.path),
        log_directory=str(job.path / "logs"),
        warm_key=warm_key,
    )


def in_turn(plan: LaunchPlan, turn: int) -> LaunchPlan:
    """The plan for a job's head, which another host may replace in a later turn."""
    return replace(plan, env={**plan.env, TURN_VARIABLE: str(turn)})


def environment(store: Store, job: JobStore, spec: JobSpec) -> dict[str, str]:
    """What a backend puts into the environment of the job's processes; its own variables they take up themselves."""
    known = {mount.name: mount for mount in (table.default_mount(store), *spec.mounts)}
    mounts = table.for_job(known.values())
    if is_apart(spec.backend_options):
        mounts |= table.unreachable(SHARED, NOT_SHARED)
    return {
        "OMP_NUM_THREADS": str(spec.threads),
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": HASH_SEED,  # or each process would start again with it
        ENVIRONMENT_VARIABLE: str(store.root),
        **_of_old(spec),
        "HYPERPOD_JOB_ID": job.id,
        "HYPERPOD_JOB_DIR": str(job.path),
        "HYPERPOD_CELL": str(store.cells / spec.cell_digest),
        "HYPERPOD_MOUNTS": json.dumps(mounts),
    }


def _of_old(spec: JobSpec) -> dict[str, str]:
    """Variables of a job whose nodes may run an older source, which expects them here."""
    own = load(spec.backend).capabilities.owns_nodes
    return {name: value for name, value in spec.env.items() if value != HIDDEN} if own else {}


def supervisor_arguments() -> argparse.ArgumentParser:
    """The command line of `python -m jupyter_hyperpod.supervisor.main`."""
    parser = argparse.ArgumentParser(prog="python -m jupyter_hyperpod.supervisor.main")
    parser.add_argument("--store", required=True, type=Store)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--spares", type=int, default=1)
    parser.add_argument("--queues", type=json.loads, default={}, metavar="JSON")
    parser.add_argument("--isolate-network", action="store_true")
    parser.add_argument("--standby", action="store_true", help="wait until no other host serves the store")
    parser.add_argument(TAKE_OVER, action="store_true", help="serve the store in the place of another host")
    parser.add_argument(SUCCEED, action="store_true", help="only in place of one that died; leave where there is none")
    parser.add_argument(SINCE, type=float, metavar="TIME", help="when that was, in seconds since the Unix epoch")
    return parser
