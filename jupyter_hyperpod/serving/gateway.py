"""The gateway's process: the head of a deployment. It passes clients' requests to replicas and follows the load.

It may die at any moment. The supervisor then restarts it, at the same port if that is free; replicas find it by its
endpoint file, and it restores its state from the journal. Clients lose their requests in progress; a repeated request
gets the same answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from tornado.netutil import bind_sockets

from ..core.errors import StoreError
from ..storage.environment import adopt, begin_with
from ..storage.store import write_private
from . import commands, routes
from .context import Site, shows
from .deployment import Deployment
from .http_server import GuardedServer

TICK_S = 0.1
TOUCH_S = 0.5
SAMPLE_S, LOADING_SAMPLE_S = 2.0, 0.5
DRAIN_S = 10.0
FAREWELL_S = 1.0
POLL_S = 0.01


class Gateway:
    """The gateway's server and its periodic work; `run` is its whole life."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.deployment = Deployment(site)

    async def run(self) -> int:
        """Serve until the deployment has ended; returns the exit status."""
        deployment, sockets = self.deployment, self._bind()
        server = GuardedServer(routes.application(deployment), knows=self._knows)
        server.add_sockets(sockets)
        self._announce(sockets[0].getsockname())
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, deployment.end, "stopped", "the gateway was told to terminate")
        commands.recall(deployment)
        touched_s = sampled_s = time.monotonic()
        while deployment.ending is None:
            await asyncio.sleep(TICK_S)
            commands.obey_all(deployment)
            deployment.replicas.look()
            deployment.judge()
            deployment.journal.flush()
            now_s = time.monotonic()
            if now_s - touched_s > TOUCH_S:
                touched_s = now_s
                with suppress(OSError):
                    os.utime(self.site.endpoint_file)
            loading = any(replica.state == "loading" for replica in deployment.pool)
            if now_s - sampled_s > (LOADING_SAMPLE_S if loading else SAMPLE_S):
                sampled_s = now_s
                deployment.sample()
        await self._leave()
        server.stop()
        return 0

    def _knows(self, header: str | None) -> bool:
        return shows(header, self.deployment.token) or shows(header, self.deployment.key)

    def _bind(self) -> list[socket.socket]:
        """Listen at the earlier gateway's port, else at the wanted port, else at any free one."""
        before = self.site.endpoint().get("port", 0)
        if before:
            with suppress(OSError):
                return bind_sockets(before, self.site.host, family=socket.AF_INET)
        return bind_sockets(self.site.serve.port, self.site.host, family=socket.AF_INET)

    def _announce(self, address: tuple[str, int]) -> None:
        host, port = address
        record = {"host": host, "port": port, "pid": os.getpid()}
        write_private(self.site.endpoint_file, json.dumps(record).encode())
        self.deployment.take_over(f"http://{host}:{port}", os.getpid())

    async def _leave(self) -> None:
        """Answer requests in progress, end the replicas and journal the end."""
        deployment = self.deployment
        assert deployment.ending is not None
        state, reason = deployment.ending
        await _until(lambda: not (deployment.pool.outstanding and deployment.pool.replicas), DRAIN_S)
        for replica in deployment.pool:
            replica.retired = replica.ending = True
            replica.say("end")
        deployment.sample()
        await _until(lambda: not deployment.pool.replicas, FAREWELL_S)
        deployment.journal.write("job.state", {"state": state, "reason": reason})
        try:
            write_private(self.site.endpoint_file, json.dumps({"ended": state}).encode())
        except StoreError:
            self.site.endpoint_file.unlink(missing_ok=True)
        deployment.journal.close()


async def _until(condition: Callable[[], bool], limit_s: float) -> None:
    """Wait for a condition, for a limited time."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if condition():
            return
        await asyncio.sleep(POLL_S)


def main() -> int:
    """Entry point of the head's process."""
    site = Site.from_environment()
    adopt(site.job)
    return asyncio.run(Gateway(site).run())


if __name__ == "__main__":
    begin_with(Site.from_environment().job)
    sys.exit(main())
