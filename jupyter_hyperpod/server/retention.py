"""Deletes jobs that ended long ago, now and then, where the server's settings say how long jobs are kept."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from contextlib import suppress

from ..core.errors import HyperpodError
from ..core.units import format_bytes, plural
from ..storage.store import Store

EVERY_S = 3600.0


class Retention:
    """Keeps jobs for ``keep_s`` seconds after their end, and the newest ``keep_newest`` of them however old."""

    def __init__(self, store: Store, keep_s: float, keep_newest: int, log: logging.Logger) -> None:
        self._store, self._keep_s, self._keep_newest, self._log = store, keep_s, keep_newest, log
        self._task: asyncio.Task[None] | None = None

    def start(self, threads: Executor) -> None:
        """Begin, on the running event loop; the work is done in ``threads``. A second call does nothing."""
        self._task = self._task or asyncio.get_running_loop().create_task(self._run(threads))

    async def stop(self) -> None:
        """End; a deletion that has begun is carried out."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def prune(self) -> None:
        """Delete what is old now. A job that cannot be deleted is reported."""
        from ..control import housekeeping  # in its thread: the start of a server does not wait for it

        try:
            deleted = housekeeping.delete_old(self._store, self._keep_s, keep=self._keep_newest)
        except HyperpodError as error:
            self._log.warning("jobs that ended long ago are not deleted: %s", error)
            return
        if deleted:
            size = format_bytes(sum(job.size for job in deleted))
            self._log.info("deleted %s, %s: HyperpodExtension.keep_jobs", plural(len(deleted), "job"), size)

    async def _run(self, threads: Executor) -> None:
        while True:
            try:
                await asyncio.get_running_loop().run_in_executor(threads, self.prune)
            except Exception:  # the next look may succeed, and only this task looks
                self._log.exception("jobs that ended long ago are not deleted; the next try is in an hour")
            await asyncio.sleep(EVERY_S)
