"""A store of torch.distributed that no process serves: members tell each other what they set, over their own links.

A process group is formed from a store, in which every member finds the others' addresses, or NCCL's unique id. A
store that one member serves dies with it. This one belongs to one generation: it needs its links only while the group
is formed, and a member that is lost meanwhile is noticed as in any other exchange.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed

from .mesh import Exchange

ROUND_S = 0.001  # between two rounds in which nobody has news
GET_S = 60.0
FAILED = "failed"


class MeetingStore(torch.distributed.Store):
    """Keys and values that any thread may set or wait for, while another one calls `meet`."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}
        self._news: dict[str, bytes] = {}
        self._closed = self._woken = False

    def set(self, key: str, value: Any) -> None:
        """Set a value, for all members."""
        with self._changed:
            self._values[key] = self._news[key] = value.encode() if isinstance(value, str) else bytes(value)
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        """Wait for a value. Raises RuntimeError where the store is closed, or after a minute."""
        self.wait([key])
        return self._values[key]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set. Raises RuntimeError where the store is closed, or after the timeout."""
        seconds = GET_S if timeout is None else timeout.total_seconds()
        with self._changed:
            self._changed.wait_for(lambda: self._closed or all(key in self._values for key in keys), seconds)
            if missing := [key for key in keys if key not in self._values]:
                raise RuntimeError(f"no member has set {missing[0]!r}" + (f" in {seconds:g} s" * (not self._closed)))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are set here."""
        return all(key in self._values for key in keys)

    def set_timeout(self, timeout: timedelta) -> None:
        """Every call that waits has its own time."""

    def wake(self) -> None:
        """End the pause between two rounds: what `ended` says has changed."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        """Let everybody who waits fail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def meet(
        self, exchange: Exchange, rank: int, world_size: int, ended: Callable[[], dict[str, Any] | None]
    ) -> list[dict[str, Any]]:
        """Tell each other what is set until ``ended()`` is not None on every member; return what it is, by rank.

        Where it has the key `FAILED` on one of them, all return at once, those that have not ended with {}.
        Raises the errors of ``exchange``.
        """
        while True:
            own = ended()
            with self._changed:
                news, self._news = self._news, {}
            said = {"ended": own, "news": {key: value.hex() for key, value in news.items()}}
            heard = gather(exchange, rank, world_size, said)
            with self._changed:
                for other in heard:
                    self._values |= {key: bytes.fromhex(value) for key, value in other["news"].items()}
                self._changed.notify_all()
                results = [other["ended"] for other in heard]
                if None not in results or any(FAILED in (result or {}) for result in results):
                    return [result or {} for result in results]
                self._changed.wait_for(lambda: bool(self._news) or self._woken, ROUND_S)
                self._woken = False


def gather(exchange: Exchange, rank: int, world_size: int, value: Any) -> list[Any]:
    """The JSON value of every member, by rank. Raises the errors of ``exchange``."""
    own = json.dumps(value).encode()
    others = [peer for peer in range(world_size) if peer != rank]
    sizes = {peer: bytearray(8) for peer in others}
    size = len(own).to_bytes(8, "big")
    exchange([(peer, memoryview(size)) for peer in others], [(p, memoryview(sizes[p])) for p in others])
    texts = {peer: bytearray(int.from_bytes(sizes[peer], "big")) for peer in others}
    exchange([(peer, memoryview(own)) for peer in others], [(p, memoryview(texts[p])) for p in others])
    return [json.loads(texts[peer]) if peer in texts else value for peer in range(world_size)]
