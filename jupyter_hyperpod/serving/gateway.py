"""The gateway's process: the head of a deployment. It passes clients' requests to replicas and follows the load.

Clients come to loopback of its machine. Replicas of other hosts come to an address of their own, encrypted.

It may die at any moment. The supervisor then restarts it, at the same port if that is free; replicas find it by its
endpoint file, and it restores its state from the journal. Clients lose their requests in progress; a repeated request
gets the same answer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from ..core.events import GATEWAY
from ..storage.endpoint import OwnEndpoint, Replaced
from ..storage.environment import adopt, begin_with
from ..storage.host_lease import this_host
from ..system.addresses import listen_for_words, port_error, port_problem
from . import commands, routes
from .context import HOST, Site, shows
from .deployment import Deployment
from .http_server import GuardedServer

BACKLOG = 1024  # callers that have said nothing yet wait there, too
TICK_S = 0.1
TOUCH_S = 0.5
SAMPLE_S, LOADING_SAMPLE_S = 2.0, 0.5
DRAIN_S = 10.0
FAREWELL_S = 1.0
POLL_S = 0.01
PORT_WAIT_S = 5.0
OTHER_PORT = (
    "port {0}, at which the gateway before this one listened, is not free on {1}, so clients are answered at port {2} "
    "there. Ask no longer at port {0}: whoever listens there would get the token"
)
TERMINATED = "the gateway was told to terminate (SIGTERM): the deployment goes on with the next one"


class _Terminated(Exception):
    """SIGTERM has come, as from a host that is shut down."""


class Gateway:
    """The gateway's server and its periodic work; `run` is its whole life."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.deployment = Deployment(site)
        self._endpoint = OwnEndpoint(site.endpoint_file, site.turn)
        self._servers: list[GuardedServer] = []

    async def run(self) -> int:
        """Serve until the deployment has ended, or another gateway continues it; returns the exit status."""
        status = 0
        try:
            await self._serve()
            await self._leave()
        except Replaced as error:
            self._hand_over(f"the gateway of turn {self.site.turn} ends: {error}")
        except _Terminated:
            self._hand_over(TERMINATED)
            status = 128 + signal.SIGTERM
        for server in self._servers:
            server.stop()
        return status

    def _hand_over(self, text: str) -> None:
        self.deployment.handed_over = True
        self.deployment.warn(text)
        self.deployment.journal.close()

    async def _serve(self) -> None:
        deployment = self.deployment
        if problem := await self._open():
            deployment.end("failed", problem)
            return
        told_to_terminate = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told_to_terminate.set)
        commands.recall(deployment)
        touched_s = sampled_s = time.monotonic()
        told = (0, -1)  # the generation and the target of the last sample
        while deployment.ending is None:
            if told_to_terminate.is_set():
                raise _Terminated
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            if now_s - touched_s > TOUCH_S:  # first: where another one has taken over, this one decides nothing more
                touched_s = now_s
                self._endpoint.touch()
            commands.obey_all(deployment)
            deployment.replicas.look()
            deployment.judge()
            deployment.journal.flush()
            loading = any(replica.state == "loading" for replica in deployment.pool)
            stands = deployment.replicas.generation, deployment.replicas.target
            if stands != told or now_s - sampled_s > (LOADING_SAMPLE_S if loading else SAMPLE_S):
                sampled_s, told = now_s, stands
                deployment.sample()

    def _knows(self, header: str | None) -> bool:
        return shows(header, self.deployment.token) or shows(header, self.deployment.key)

    async def _open(self) -> str:
        """Listen at the earlier gateway's ports, else at the wanted port, else at any free ones, and say where.

        Returns why that is impossible, as a sentence: where another program has the wanted port, the first gateway of
        a deployment ends it. A later one listens elsewhere, for the replicas answer.
        """
        before, host = self.site.endpoint(), socket.gethostbyname(self.site.asked_host)
        encryption = self.site.encryption(host, GATEWAY, calls=False)
        apart = encryption is not None or host != HOST
        wanted = self.site.serve.port
        known = (before.clients or before.port) if before else 0
        deadline_s = time.monotonic() + (PORT_WAIT_S if known else 0.0)
        while wanted and (problem := self._problem(known or wanted)):
            if time.monotonic() > deadline_s:
                if not known:
                    return problem
                break
            await asyncio.sleep(TICK_S)
        sockets = _listening(HOST, known, wanted)
        clients = port = sockets[0].getsockname()[1]
        self._listen(sockets)
        if apart:
            sockets = _listening(host, before.port if before else 0, 0)
            port = sockets[0].getsockname()[1]
            self._listen(sockets, encryption)
        self._endpoint.announce(host, port, clients)
        if known not in (0, clients):
            self.deployment.journal.write("warning.raised", {"text": OTHER_PORT.format(known, this_host(), clients)})
        self.deployment.take_over(f"http://{HOST}:{clients}", os.getpid())
        return ""

    @staticmethod
    def _problem(port: int) -> str:
        """Why clients cannot be listened to at this port; it may be free again when an earlier gateway has gone."""
        error = port_error(HOST, port) if port else None
        return port_problem(error, port) if error else ""

    def _listen(self, sockets: list[socket.socket], encryption: ssl.SSLContext | None = None) -> None:
        server = GuardedServer(routes.application(self.deployment), knows=self._knows, encryption=encryption)
        server.add_sockets(sockets)
        self._servers.append(server)

    async def _leave(self) -> None:
        """Answer requests in progress, end the replicas and journal the end. Raises Replaced."""
        deployment = self.deployment
        assert deployment.ending is not None
        state, reason = deployment.ending
        await _until(lambda: not (deployment.pool.outstanding and deployment.pool.replicas), DRAIN_S)
        self._endpoint.check()  # a newer gateway goes on with the replicas
        for replica in deployment.pool:
            replica.retired = replica.ending = True
            replica.say("end")
        deployment.sample()
        await _until(lambda: not deployment.pool.replicas, FAREWELL_S)
        self._endpoint.check()
        deployment.journal.write("job.state", {"state": state, "reason": reason})
        self._endpoint.end(state)
        deployment.journal.close()


def _listening(host: str, before: int, wanted: int) -> list[socket.socket]:
    """A socket at an address: at the port of ``before`` where that is free, else at the wanted one, 0 for any.

    Where there was one before and the wanted one is not free, too: at any.
    """
    for port in filter(None, (before, wanted if before else 0)):
        with suppress(OSError):
            return [_bound(host, port)]
    return [_bound(host, 0 if before else wanted)]


def _bound(host: str, port: int) -> socket.socket:
    bound = listen_for_words(host, port, BACKLOG)
    bound.setblocking(False)
    return bound


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
