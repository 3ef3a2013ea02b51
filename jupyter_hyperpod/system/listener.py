"""Listens at a private socket, in the loop of a selector, and receives the messages of every connection."""

from __future__ import annotations

import selectors
import socket

from ..core.errors import HyperpodError
from .json_lines import JsonLineChannel, Message, accept

MOST_SILENT = 128


class Listener:
    """Gives each message of each connection to `handle`. An error of the kinds ``refused`` ends the connection.

    At most `MOST_SILENT` connections may have sent nothing yet: if there are more, the oldest is closed.
    """

    refused: tuple[type[Exception], ...] = (HyperpodError,)

    def __init__(self, listener: socket.socket, selector: selectors.BaseSelector) -> None:
        self.selector = selector
        self.channels: list[JsonLineChannel] = []
        self._silent: dict[JsonLineChannel, None] = {}  # the oldest first
        selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))

    def handle(self, message: Message, channel: JsonLineChannel) -> None:
        """Carry out one request; `channel.closed` ends the connection."""
        raise NotImplementedError

    def refuse(self, error: Exception, channel: JsonLineChannel) -> None:
        """A request led to an error of the kinds ``refused``, and its connection is about to end."""

    def left(self, channel: JsonLineChannel) -> None:
        """A connection has ended."""

    def _accept(self, listener: socket.socket) -> None:
        channel = accept(listener)
        if channel is None:
            return
        self.channels.append(channel)
        self._silent[channel] = None
        self.selector.register(channel, selectors.EVENT_READ, lambda: self._read(channel))
        if len(self._silent) > MOST_SILENT:
            self._hang_up(next(iter(self._silent)))

    def _read(self, channel: JsonLineChannel) -> None:
        if channel.closed:
            return  # hung up on a moment ago
        try:
            for message in channel.receive():
                self._silent.pop(channel, None)
                self.handle(message, channel)
        except self.refused as error:
            self.refuse(error, channel)
            channel.closed = True
        if channel.closed:
            self._hang_up(channel)

    def _hang_up(self, channel: JsonLineChannel) -> None:
        self.selector.unregister(channel)
        self.channels.remove(channel)
        self._silent.pop(channel, None)
        channel.close()
        self.left(channel)
