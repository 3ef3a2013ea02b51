"""Starts, queries and stops the local cluster, as a client. Importing this module loads nothing heavy."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..backends import load
from ..core.backends import DEFAULT_BACKEND
from ..core.errors import ClusterError, Conflict, NotFound, SpecError, StoreError
from ..core.people import Person
from ..core.views import View, apply, new_cluster_view
from ..storage import host_lease
from ..storage.journal import follow_events
from ..storage.sharing import owner_elsewhere
from ..storage.store import Store, private_directory
from ..system import portable
from ..system.json_lines import JsonLineChannel, connect
from .clusters.owner import owner_lives
from .clusters.shape import (
    DEFAULT_SHAPE,
    check_shape,
    idle_timeout,
    keep_idle_timeout,
    known_shape,
    local_shape,
    usual_shape,
)

SOCKET = "supervisor.sock"
LOG = "supervisor.log"
START_TIMEOUT_S = 20.0
STATUS_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 20.0
READY_TIMEOUT_S = 120.0
ANSWERS = "the supervisor answers"
EXIT_LOCKED = 3  # of a supervisor that finds another one
LOCKED_S = 2.0  # from when on such a one is about to end, not about to answer
UP = ("idle", "busy", "partitioned")
_LOG_TAIL_LINES = 15
# variables of the kernel or server that started the cluster; its jobs must not inherit them
_FOREIGN_PREFIXES = ("JPY_", "JUPYTERHUB_", "JUPYTER_TOKEN", "JUPYTER_SERVER")
_OF_ONE_JOB = tuple(
    f"HYPERPOD_{name}" for name in ("JOB_ID", "JOB_DIR", "CELL", "MOUNTS", "NODE", "MEMBER", "SCHEDULER_NODE")
)


def ensure_started(
    store: Store,
    *,
    nodes: int | None = None,
    spares: int | None = None,
    queues: Mapping[str, int] | None = None,
    isolated: bool | None = None,
    idle_timeout_s: float | None = None,
    standby: bool = False,
    take_over: bool = False,
) -> str:
    """Start the cluster's supervisor where none answers. It survives this process.

    Returns the name of the other host whose supervisor serves the store, "" where it is this host. ``standby``: start
    one on this host all the same, which takes over when that host is lost. ``take_over``: now. Such a supervisor gets
    no local nodes unless they are asked for.

    ``queues``: how many of the nodes each queue is guaranteed. ``isolated``: each node has a network of its own, which
    takes root and iproute2. None means: as the running cluster, else 4 nodes, 1 spare, no queue and this machine's
    network; with None for all of them, a cluster that ended because it was idle comes back as it was.
    ``idle_timeout_s``: end it after so long without a job, a schedule and a request, infinity for never; None leaves
    that as it is. Returns as soon as the supervisor answers; its nodes may still be warming up. Raises Conflict where a
    cluster of another shape runs, ClusterError with the log's last lines where it does not start, StoreError where the
    store refuses.
    """
    shape = {"nodes": nodes, "spares": spares, "queues": None if queues is None else dict(queues), "isolated": isolated}
    wanted = {name: value for name, value in shape.items() if value is not None}
    check_shape(wanted)
    if problem := load(DEFAULT_BACKEND).missing(isolated=bool(isolated)):
        raise ClusterError(problem)
    if standby and take_over:
        raise SpecError("--standby waits until the other host is lost, and --take-over does not wait: give one of them")
    store.prepare()
    stands_by = standby_for(store) is not None
    if stands_by and take_over:
        request(store, {"op": "take-over"})
        _until_served_here(store)
        stands_by = False
    if _running(store, {} if stands_by else wanted):
        _choose_idle_timeout(store, idle_timeout_s)
        return ""
    if not (standby or take_over) and (host := host_lease.served_by(store)):
        return host
    _choose_idle_timeout(store, idle_timeout_s)
    flags = [*(["--standby"] if standby else []), *(["--take-over"] if take_over else [])]
    usual = {**DEFAULT_SHAPE, **known_shape(store)} if wanted else usual_shape(store)
    usual = {**DEFAULT_SHAPE, "nodes": 0, "spares": 0} if flags else usual
    process = _spawn(store, {**usual, **wanted}, flags)
    deadline = time.monotonic() + START_TIMEOUT_S
    again_s = time.monotonic() + LOCKED_S
    while time.monotonic() < deadline:
        if _running(store, {} if standby else wanted):
            if take_over:
                _until_served_here(store)
            return ""
        if process.poll() not in (None, EXIT_LOCKED):
            break
        if process.poll() == EXIT_LOCKED and time.monotonic() > again_s:
            process, again_s = _spawn(store, {**usual, **wanted}, flags), time.monotonic() + LOCKED_S
        time.sleep(0.01)
    raise ClusterError(f"the cluster's supervisor did not start; {_log_tail(store)}")


def wait_ready(
    store: Store, timeout_s: float = READY_TIMEOUT_S, tell: Callable[[int, int], object] = lambda up, nodes: None
) -> View:
    """Wait until every node is up, nodes that are cut off included, and return the cluster view. Raises ClusterError.

    A cluster without local nodes, which only served jobs elsewhere, gets the usual nodes. ``tell`` gets, again and
    again, how many nodes are up and how many there are.
    """
    if not request(store, {"op": "status", "use": True})["states"]:
        request(store, {"op": "extend", **local_shape(store)})
    deadline = time.monotonic() + timeout_s
    while True:
        view = status(store)
        states = [node["state"] for node in view["nodes"]]
        if view["state"] == "running" and states and all(state in UP for state in states):
            return view
        if view["state"] == "stopped" and not connectable(store):
            raise ClusterError(f"the cluster has ended before its nodes were ready: {view['reason']}")
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the nodes are not ready after {timeout_s:g} s: {', '.join(states) or 'none'}; {_log_tail(store)}"
            )
        tell(sum(state in UP for state in states), len(states))
        time.sleep(0.05)


def status(store: Store) -> View:
    """The cluster view. ``state`` is "lost" where nodes were running but their supervisor does not answer."""
    store.refuse_private()
    view, journal = new_cluster_view(), follow_events(store.cluster_events)
    said: View | None = None
    while True:
        before = view["state"]
        for event in journal.poll():
            apply(view, event)
        if said is not None and view["state"] == before:
            return view | said
        said = standing(store, view["state"])  # it may have changed while the supervisor was asked


def standing(store: Store, state: str) -> View:
    """What the journal cannot know of a cluster in this ``state``: fields that replace those of its view."""
    if state != "stopped" and not owner_elsewhere(store.root) and not connectable(store):
        if host := host_lease.served_by(store):
            return {"reason": f"the supervisor is on {host}"}
        if owner_lives(store):  # one that begins or ends accepts no connections yet, or no more
            begins_or_ends = state in ("starting", "stopping")
            return {} if begins_or_ends else {"reason": "the supervisor is alive, but accepts no connections"}
        if host := host_lease.elsewhere(store):
            said = f"{host}, which served this store, gives no sign of life; `cluster start` here takes over"
            return {"state": "lost", "reason": said}
        restart = "running jobs go on, and the next submit or `cluster start` restarts it"
        return {"state": "lost", "reason": f"the supervisor does not answer; {restart}"}
    if (other := standby_for(store)) is not None:
        return {"reason": f"{other} serves this store, and this host stands by"}
    return {}


def standby_for(store: Store) -> str | None:
    """The host for which a supervisor of this host stands by; None where it serves the store, or none runs here."""
    channel = _connect(store)
    if channel is None:
        return None
    try:
        found = channel.ask({"op": "status"}, STATUS_TIMEOUT_S).get("standby_for")
    except ClusterError:
        return None
    finally:
        channel.close()
    return None if found is None else str(found)


def _until_served_here(store: Store) -> None:
    """Wait until this host has said that it took over. Raises ClusterError."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while standby_for(store) is not None or status(store)["pid"] != request(store, {"op": "status"})["pid"]:
        if time.monotonic() > deadline:
            raise ClusterError(f"this host did not take over within {START_TIMEOUT_S:g} s; {_log_tail(store)}")
        time.sleep(0.05)


def connectable(store: Store) -> bool:
    """True where a supervisor accepts connections."""
    channel = _connect(store)
    if channel is not None:
        channel.close()
    return channel is not None


def _connect(store: Store) -> JsonLineChannel | None:
    directory = host_lease.directory_of_host(store)
    return connect(directory, SOCKET) if directory.is_dir() else None


def request(store: Store, message: Mapping[str, Any], *, timeout_s: float = 10.0) -> dict[str, Any]:
    """Send a request to the supervisor and return its answer. Raises ClusterError where none runs or it refuses.

    Raises NotFound where the request names what is not there.
    """
    refuse_member(store)
    channel = _connect(store)
    if channel is None:
        raise ClusterError(_nothing_here(store))
    try:
        answer = channel.ask(dict(message), timeout_s)
    finally:
        channel.close()
    if answer.get("unknown"):
        raise NotFound(str(answer.get("error")))
    if not answer.get("ok"):
        raise ClusterError(f"the supervisor refused: {answer.get('error', 'no reason given')}")
    return answer


def refuse_member(store: Store) -> None:
    """Raise ClusterError where the store belongs to another user: its cluster obeys the owner, and root."""
    if owner := owner_elsewhere(store.root):
        raise ClusterError(f"the cluster obeys only {owner}, the owner of the store {store.root}")


def poke(store: Store, job_id: str) -> None:
    """Tell the supervisor that a job or its commands changed. Raises ClusterError where none runs."""
    request(store, {"op": "poke", "job": job_id})


def keep(store: Store) -> None:
    """Somebody wants the cluster to go on: the time after which it ends, because it is idle, begins anew.

    Raises ClusterError.
    """
    request(store, {"op": "keep"})


def heal(store: Store, node: str | None = None) -> list[str]:
    """Reconnect one node, or all, that the fault `partition` cut off from the network; return their names.

    Raises NotFound where there is no such node, and ClusterError where there is no cluster.
    """
    healed: list[str] = request(store, {"op": "heal", "node": node})["healed"]
    return healed


def stop(
    store: Store,
    *,
    reason: str = "the cluster was stopped",
    by: Person | None = None,
    timeout_s: float = STOP_TIMEOUT_S,
) -> None:
    """End every job, every node and the supervisor, and wait until all are gone. ``by``: who asks. Raises ClusterError.

    A dead supervisor is started once more, so that it finds and ends its nodes.
    """
    from ..system.processes import start_ticks  # it opens the C library, which a submit does not need

    refuse_member(store)
    if not store.cluster.is_dir():
        raise ClusterError(f"no cluster has been started in {store.root}")
    if not connectable(store):  # looked at once: it may be ending at this moment, since somebody else has stopped it
        if owner_lives(store) and _was_stopped(store, time.monotonic() + timeout_s):
            return
        sockets = host_lease.directory_of_host(store).glob("*.sock")
        if not any(path.name != SOCKET for path in sockets):
            raise ClusterError("no cluster is running" if not host_lease.elsewhere(store) else _nothing_here(store))
        ensure_started(store)
    if by is not None:
        reason = f"the cluster was stopped by {by}"
    try:
        answer = request(store, {"op": "stop", "reason": reason}, timeout_s=timeout_s)
    except ClusterError:
        if _was_stopped(store, time.monotonic() + timeout_s):
            return
        raise
    deadline = time.monotonic() + timeout_s
    while start_ticks(answer["pid"]) == answer["start"]:
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the supervisor (process {answer['pid']}) did not end within {timeout_s:g} s; {_log_tail(store)}"
            )
        with suppress(ChildProcessError):
            os.waitpid(answer["pid"], os.WNOHANG)
        time.sleep(0.005)


def _was_stopped(store: Store, deadline_s: float) -> bool:
    """Wait for a supervisor that begins or ends at this moment; True where somebody else has stopped the cluster."""
    while owner_lives(store) and not connectable(store):
        if time.monotonic() > deadline_s:
            raise ClusterError(f"the supervisor neither answers nor ends; {_log_tail(store)}")
        time.sleep(0.01)
    return not connectable(store) and status(store)["state"] == "stopped"


def _choose_idle_timeout(store: Store, timeout_s: float | None) -> None:
    """Raises SpecError where what holds otherwise is no duration."""
    idle_timeout(host_lease.directory_of_host(store))
    if timeout_s is not None:
        keep_idle_timeout(store, timeout_s)


def _running(store: Store, wanted: Mapping[str, Any]) -> bool:
    if not connectable(store):
        return False
    if not wanted:
        return True
    answer = request(store, {"op": "status", "use": True})
    if not answer["states"] and wanted.get("nodes", 0) > 0 and not wanted.get("isolated"):
        answer = request(store, {"op": "extend", **DEFAULT_SHAPE, **wanted})  # it has no local nodes yet
    for key, what in (("nodes", "nodes"), ("spares", "spare nodes"), ("queues", "as queues")):
        if answer[key] != wanted.get(key, answer[key]):
            raise Conflict(
                f"a cluster with {answer[key]} {what} runs already, {wanted[key]} were asked for; stop it first: "
                "`jupyter hyperpod cluster stop`"
            )
    if wanted.get("isolated", answer["isolated"]) != answer["isolated"]:
        found = "each node has a network of its own" if answer["isolated"] else "the nodes share this machine's network"
        raise Conflict(f"a cluster runs already, where {found}; stop it first: `jupyter hyperpod cluster stop`")
    return True


def _nothing_here(store: Store) -> str:
    here = "`jupyter hyperpod cluster start --take-over` moves it here"
    if host := host_lease.served_by(store):
        return f"the supervisor of {store.root} is on {host}: run this there; {here}"
    if host := host_lease.elsewhere(store):
        return f"no cluster is running: {host}, which served {store.root}, gives no sign of life; {here}"
    return "no cluster is running; start one with `jupyter hyperpod cluster start`"


def _spawn(store: Store, shape: Mapping[str, Any], flags: Sequence[str]) -> subprocess.Popen[bytes]:
    arguments = ["--store", str(store.root), "--nodes", str(shape["nodes"]), "--spares", str(shape["spares"])]
    isolated = ["--isolate-network"] if shape["isolated"] else []
    arguments += ["--queues", json.dumps(shape["queues"]), *isolated, *flags]
    path = private_directory(host_lease.directory_of_host(store)) / LOG
    try:
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | portable.NOT_INHERITED, 0o600)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyter_hyperpod.supervisor.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=store.root,
            env=daemon_environment(os.environ),
            start_new_session=True,
        )
    except OSError as error:
        raise ClusterError(f"cannot start {sys.executable}: {error.strerror}") from error
    finally:
        os.close(log)
    # a thread reaps it, so that it never becomes a zombie of the kernel or server that started it
    threading.Thread(target=process.wait, name="hyperpod-reaper", daemon=True).start()
    return process


def daemon_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for processes that outlive this one: without the kernel's or server's own variables."""
    foreign = {name for name in environment if name.startswith(_FOREIGN_PREFIXES)}.union(_OF_ONE_JOB)
    kept = {name: value for name, value in environment.items() if name not in foreign}
    if "inline" in kept.get("MPLBACKEND", ""):
        del kept["MPLBACKEND"]
    package_parent = str(Path(__file__).resolve().parents[2])
    if package_parent not in (*site.getsitepackages(), site.getusersitepackages()):
        paths = [package_parent, *filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))]
        kept["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return kept


def _log_tail(store: Store) -> str:
    log = host_lease.directory_of_host(store) / LOG
    return "\n".join([f"the last lines of {log}:", *last_lines(log, _LOG_TAIL_LINES)])


def last_lines(log: Path, most: int) -> list[str]:
    """The end of a log, at least one line."""
    try:
        return log.read_text(errors="replace").splitlines()[-most:] or ["(empty)"]
    except OSError:
        return ["(empty)"]
