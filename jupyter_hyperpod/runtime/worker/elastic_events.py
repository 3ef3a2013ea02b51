"""hp.elastic_event_detected(), by which a plain PyTorch loop learns that its job is about to change in size."""

from __future__ import annotations

from .main import current


def elastic_event_detected() -> bool:
    """Whether the job is about to change in size, or this rank's node to be taken away. Call it once per iteration.

    It becomes True in the same call on every rank, however far apart the ranks are, and stays True. The script then
    saves its checkpoint and ends (exit status 0); the job starts it again with the new RANK, WORLD_SIZE and
    MASTER_PORT. Always False outside a job, and where hp.Session trains: a session needs no restart.
    """
    worker = current()
    if worker is None or worker.sessions:
        return False
    return worker.progress.call()
