"""The supervisor's socket: receives requests and answers each. Silent connections are closed soon."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from pathlib import Path

from ..core.errors import HyperpodError
from ..system.json_lines import JsonLineChannel, Message, Silent, accept, listen


class Listener:
    """Answers requests at ``path`` by ``answer(message)``, from the loop of ``selector``; the answer has an ``ok``."""

    def __init__(self, path: Path, selector: selectors.BaseSelector, answer: Callable[[Message], Message]) -> None:
        self._path = path
        self._selector = selector
        self._answer = answer
        self._silent = Silent()
        listener = listen(path.parent, path.name)
        selector.register(listener, selectors.EVENT_READ, lambda: self._accept(accept(listener)))

    def close(self) -> None:
        """Remove the socket's file: nobody finds this listener any more."""
        self._path.unlink(missing_ok=True)

    def _accept(self, channel: JsonLineChannel | None) -> None:
        if channel is not None:
            self._selector.register(channel, selectors.EVENT_READ, lambda: self._read(channel))
            if (oldest := self._silent.called(channel)) is not None:
                self._hang_up(oldest)

    def _read(self, channel: JsonLineChannel) -> None:
        if channel.closed:
            return  # hung up on a moment ago
        try:
            for message in channel.receive():
                self._silent.heard(channel)
                channel.send(answer := self._answer(message))
                channel.closed |= not answer["ok"]  # whoever asks for nonsense keeps no place
        except HyperpodError as error:
            channel.send({"ok": False, "error": str(error)})
            channel.closed = True
        if channel.closed:
            self._hang_up(channel)

    def _hang_up(self, channel: JsonLineChannel) -> None:
        self._selector.unregister(channel)
        self._silent.heard(channel)
        channel.close()
