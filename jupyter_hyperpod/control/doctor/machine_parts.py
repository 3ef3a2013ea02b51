"""Looks at this machine: the store, the supervisor, addresses, the clock, schedulers' commands, limits."""

from __future__ import annotations

import os
import secrets
import shlex
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ...backends import load
from ...core.backends import BACKENDS
from ...core.errors import ClusterError, HyperpodError, NoCluster, StoreError
from ...core.units import few, format_bytes, plural
from ...policy.preflight import FAILED, PASSED, SKIPPED, Row
from ...storage.host_lease import directory_of_host
from ...storage.sharing import owner_elsewhere
from ...storage.store import Store
from ...system import portable
from ...system.addresses import AUTOMATIC, BIND_VARIABLE, LOOPBACK
from ...system.locks import one_at_a_time
from .. import cluster
from ..clusters.owner import owner

LEAST_FREE = 1 << 30
LEAST_INODES = 10_000
LEAST_DESCRIPTORS = 4096
MOST_SKEW_S = 2.0
ANSWER_S = 5.0
LOOK_S = 0.05
OWN_STORE = "take a store of your own with $JUPYTER_HYPERPOD_STORE"
_PRIVATE = ("secret", "environment", "fingerprint.json")


def store_parts(store: Store) -> Iterator[Row]:
    """The store: whose it is, modes, locks and room. A store that is not there yet is made, as a submission does."""
    probe = store.root / f".doctor-{secrets.token_hex(4)}"
    if (owner := owner_elsewhere(store.root)) and store.is_shared():
        yield _shared(store, owner)
        return
    try:
        store.prepare()
        with one_at_a_time(probe, "another process has it", 1.0):
            skew_s = probe.stat().st_mtime - time.time()
    except (HyperpodError, OSError) as error:
        yield Row("store", FAILED, str(error), OWN_STORE)
        return
    finally:
        with suppress(OSError):
            probe.unlink()
    yield _modes(store)
    yield _room(store)
    yield _clock(skew_s)


def _shared(store: Store, owner: str) -> Row:
    """The store of somebody else, who shares it."""
    try:
        count = len(store.job_ids())
    except StoreError as error:
        return Row("store", FAILED, str(error), f"ask {owner}, or {OWN_STORE}")
    said = f"{store.root} belongs to {owner}, who shares it with you: {plural(count, 'job')}; to submit, {OWN_STORE}"
    return Row("store", PASSED, said)


def _modes(store: Store) -> Row:
    """Others must not read what is secret."""
    open_ = [path for path in _secret_files(store) if path_mode(path) & 0o077]
    if not store.is_shared():
        open_ += [str(path) for path in (store.root, store.jobs) if path_mode(str(path)) & 0o077]
    if open_:
        remedy = f"chmod go-rwx {shlex.join(open_[:3])}"
        return Row("store", FAILED, f"others may read {few(open_)}", remedy)
    how = "shared with a group" if store.is_shared() else "private"
    return Row("store", PASSED, f"{store.root} is yours, {how}, and has locks")


def _secret_files(store: Store) -> Iterator[str]:
    for job_id in store.job_ids():
        for name in _PRIVATE:
            path = store.jobs / job_id / name
            if path.exists():
                yield str(path)


def path_mode(path: str) -> int:
    """The mode of a file; 0 where it is gone."""
    try:
        return os.stat(path).st_mode & 0o7777
    except OSError:
        return 0


def _room(store: Store) -> Row:
    free = portable.free_bytes(store.root)
    said = f"{format_bytes(free)} are free where {store.root} is"
    remedy = "`jupyter hyperpod prune` deletes old jobs; or move the store with $JUPYTER_HYPERPOD_STORE"
    if free < LEAST_FREE:
        return Row("disk", FAILED, f"only {said}; journals and checkpoints need {format_bytes(LEAST_FREE)}", remedy)
    files = portable.free_files(store.root)
    if files is not None and files < LEAST_INODES:
        return Row("disk", FAILED, f"only {plural(files, 'file')} can be made where {store.root} is", remedy)
    return Row("disk", PASSED, said)


def _clock(skew_s: float) -> Row:
    """A server of files has a clock of its own: leases and times in journals compare the two."""
    if abs(skew_s) > MOST_SKEW_S:
        said = f"the store's file system is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} this machine"
        return Row("clock", FAILED, said, "let NTP set both clocks, such as `timedatectl set-ntp true`")
    return Row("clock", PASSED, f"it differs from that of the store's file system by {abs(skew_s):.1f} s")


def supervisor(store: Store) -> Row:
    """Whether the daemon that owns the nodes answers, where one should be there."""
    start = "jupyter hyperpod cluster start"
    try:
        view = cluster.status(store)
        if view["state"] == "lost":
            return Row("supervisor", FAILED, str(view["reason"]), start)
        if not _settled(store):
            return _unreachable(store)
        if not cluster.connectable(store):
            return Row("supervisor", PASSED, view["reason"] or "none runs, and none is needed: a submission starts one")
        pid = int(cluster.request(store, {"op": "status"}, timeout_s=ANSWER_S)["pid"])
    except StoreError as error:
        return Row("supervisor", SKIPPED, str(error))
    except (ClusterError, LookupError, ValueError) as error:
        said = f"one accepts connections and does not answer: {error}"
        remedy = f"`kill -CONT` continues one that was stopped; else `kill -KILL` it: running jobs go on, and `{start}`"
        return Row("supervisor", FAILED, said, f"{remedy} brings another one")
    return Row("supervisor", PASSED, f"process {pid} answers; {plural(len(view['nodes']), 'node')}")


def _settled(store: Store) -> bool:
    """Wait for a supervisor that begins or ends; False where one neither accepts connections nor ends."""
    deadline_s = time.monotonic() + ANSWER_S
    while owner(store) is not None and not cluster.connectable(store):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(LOOK_S)
    return True


def _unreachable(store: Store) -> Row:
    pid, path = owner(store), directory_of_host(store) / cluster.SOCKET
    if cluster.status(store)["state"] == "stopping":
        return Row("supervisor", SKIPPED, f"process {pid} ends the cluster at this moment; look again when it has")
    how = "but accepts no connections at" if path.exists() else "but nothing reaches it, as its socket is gone:"
    remedy = f"`kill -KILL {pid}`: running jobs go on, and `jupyter hyperpod cluster start` brings another one"
    return Row("supervisor", FAILED, f"process {pid} is alive, {how} {path}", remedy)


def addresses() -> Row:
    """Whether members can listen where they are told to, and this machine reaches itself."""
    asked = os.environ.get(BIND_VARIABLE, LOOPBACK)
    told = f"${BIND_VARIABLE} says {asked}"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind((LOOPBACK if asked == AUTOMATIC else asked, 0))
            listener.listen(1)
            port = listener.getsockname()[1]
            with socket.create_connection(listener.getsockname()[:2], timeout=5.0):
                pass
    except OSError as error:
        where = told if BIND_VARIABLE in os.environ else f"{asked}, on which members listen"
        remedy = f"unset {BIND_VARIABLE}, or set it to an address of this machine (`ip addr`)"
        if BIND_VARIABLE not in os.environ:
            remedy = "bring the loopback interface up: `ip link set lo up`"
        return Row("ports", FAILED, f"{where}: {error.strerror or error}", remedy)
    return Row("ports", PASSED, f"members can listen on {asked}, such as on port {port}")


def schedulers() -> Iterator[Row]:
    """Each backend of another scheduler: whether its commands are here and answer."""
    for name in BACKENDS:
        backend = load(name)
        if backend.capabilities.owns_nodes:
            continue
        if problem := backend.missing():
            yield _lacking(name, backend.programs(), problem)
            continue
        try:
            said = backend.answer(ANSWER_S)
        except NoCluster as error:
            yield Row(name, SKIPPED, str(error))
            continue
        except HyperpodError as error:
            mend = f"see what it says there; without {backend.title} use --backend local"
            yield Row(name, FAILED, f"{backend.title} does not answer: {error}", mend)
            continue
        yield Row(name, PASSED, f"{backend.title} {said}")


def _lacking(name: str, here: Sequence[str], problem: str) -> Row:
    """Programs that are missing are a fault where some of them are here."""
    if here:
        remedy = "add the folder of the scheduler's commands to PATH, such as with `module load`"
        return Row(name, FAILED, f"{few(here)} found, but {problem}", remedy)
    return Row(name, SKIPPED, f"not used from this machine: {problem}")


def descriptors() -> Row:
    """Each connection, file and process takes a descriptor; programs of this package raise the soft limit."""
    try:
        import resource
    except ModuleNotFoundError:
        return Row("ulimit -n", SKIPPED, "this system sets no limit on open files")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < LEAST_DESCRIPTORS:
        remedy = "raise `nofile` in /etc/security/limits.conf, or LimitNOFILE= of the service, and log in again"
        return Row("ulimit -n", FAILED, f"{hard} open files at most; {LEAST_DESCRIPTORS} are needed", remedy)
    return Row("ulimit -n", PASSED, f"{soft} open files, which may be raised to {hard}")
