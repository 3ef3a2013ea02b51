"""The agent's connection to its coordinator. It reconnects by itself, and extends the member's lease."""

from __future__ import annotations

import selectors
import socket
import sys
import time
from contextlib import suppress

from ...core.errors import ProtocolError
from ...policy.membership import OFTEN
from ...storage import endpoint
from ..connection import HANDSHAKE_TIMEOUT_S, Channel, is_refusal, prepare
from ..context import Context
from ..protocol.codec import Message, decode, encode
from .lease import Lease

RECONNECT_S = 0.02
GIVE_UP_S = 600.0
CONNECT_TIMEOUT_S = 0.5
GIVEN_UP = 1  # exit status: the job goes on on the nodes of another host
LOOK_S = 1.0  # between two looks for a newer coordinator, in a job of at most `OFTEN` members


class CoordinatorLink:
    """``channel`` is None while there is no connection. ``exit_code``: set when the agent has to end."""

    def __init__(self, context: Context, selector: selectors.BaseSelector) -> None:
        self._context = context
        self._selector = selector
        self.channel: Channel | None = None
        self.lease = Lease()
        self.exit_code: int | None = None
        self._next_connect_s = 0.0
        self._alone_since_s = time.monotonic()
        self._turn = 0  # of the coordinator to which it is connected
        self._looked_s = 0.0
        self._look_s = LOOK_S * max(1.0, context.spec.nodes / OFTEN)

    def connect_if_needed(self) -> bool:
        """Try to connect if it is time to; True for a new connection."""
        now = time.monotonic()
        self._leave_replaced(now)
        if self.channel is not None or now < self._next_connect_s:
            return False
        self._next_connect_s = now + RECONNECT_S
        try:
            found = endpoint.read(self._context.endpoint_file)
            if found is None or found.elsewhere:
                self.exit_code = GIVEN_UP if found is not None else 0
                return False
            sock = socket.create_connection((found.host, found.port), timeout=CONNECT_TIMEOUT_S)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and is_refusal(error):
                self.lease.extend(now, time.monotonic())
            if now - self._alone_since_s > GIVE_UP_S:
                self.exit_code = 1
            return False
        prepare(sock)
        self.lease.connected(now, time.monotonic())
        self.channel = Channel(sock, self._context.job.secret(), initiator=True)
        self._selector.register(self.channel, selectors.EVENT_READ)
        self._turn, self._looked_s = found.turn, now
        return True

    def _leave_replaced(self, now_s: float) -> None:
        """Leave a coordinator that was replaced by one on another host, though it may not know that."""
        if self.channel is None or now_s - self._looked_s < self._look_s:
            return
        self._looked_s = now_s
        with suppress(OSError, ValueError):
            found = endpoint.read(self._context.endpoint_file)
            if found is not None and found.turn > self._turn:
                if found.elsewhere:
                    self.exit_code = GIVEN_UP
                self._leave()

    def send(self, member: str, fact: Message) -> None:
        """Send what ``member`` or its agent says. Without a coordinator it is lost; Register says it again."""
        if self.channel is not None:
            self.channel.send(encode(fact) | {"member": member})

    def receive(self) -> list[Message]:
        """The coordinator's messages. Closes an ended connection."""
        assert self.channel is not None
        messages = []
        try:
            for found in self.channel.receive():
                if (order := decode(found)) is not None:
                    messages.append(order)
        except ProtocolError as error:
            print(f"coordinator refused: {error}", file=sys.stderr)
            self.channel.close()
        if self.channel.closed:
            if self.channel.refused:
                now = time.monotonic()
                self.lease.extend(now, now)
            self._leave()
        return messages

    def push(self) -> None:
        """Send pending bytes; disconnect from a coordinator that never answered the greeting."""
        if self.channel is not None:
            self.channel.push()
            if not self.channel.greeted and time.monotonic() - self.channel.born_s > HANDSHAKE_TIMEOUT_S:
                self._leave()

    def close(self) -> None:
        """Send what is left and end the connection."""
        if self.channel is not None:
            self.channel.flush(0.5)
            self.channel.close()

    def _leave(self) -> None:
        assert self.channel is not None
        unregister(self._selector, self.channel)
        self.channel.close()
        self.channel = None
        self._alone_since_s = time.monotonic()


def unregister(selector: selectors.BaseSelector, source: object) -> None:
    """Forget ``source``, which may be closed already."""
    for key in list(selector.get_map().values()):
        if key.fileobj is source or key.fileobj == source:
            selector.unregister(key.fileobj)
