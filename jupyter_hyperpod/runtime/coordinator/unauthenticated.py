"""Limits callers that have not proved the job's secret, in number and in time, and reports them briefly."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable

from ..connection import HANDSHAKE_TIMEOUT_S, Channel

MOST_STRANGERS = 128  # in a job of no more nodes than this
MOST_PLACES = 1024  # in any job: as many as the listener's queue holds
SPARE_FILES = 128  # descriptors for journals and helpers
MOST_BYTES = 32 << 20  # that all of them may have sent
TELL_EVERY_S = 60.0


def places(nodes: int, descriptors: int) -> int:
    """How many callers may wait: all agents of a job may call at once, but its members' descriptors stay free.

    ``descriptors``: the limit of this process.
    """
    if descriptors == resource.RLIM_INFINITY:
        return max(MOST_STRANGERS, min(nodes, MOST_PLACES))
    return max(MOST_STRANGERS, min(nodes, MOST_PLACES, descriptors - nodes - SPARE_FILES))


class Strangers:
    """``tell(text)`` is called for the first refusal, and then once per minute with the number of the others.

    A member proves the secret at once, so if there are too many callers, the oldest is disconnected. The methods
    return the connections to close.
    """

    def __init__(self, tell: Callable[[str], object], most: int = MOST_STRANGERS) -> None:
        self._tell = tell
        self._most = most
        self._waiting: dict[Channel, int] = {}  # in the order of their calls, with the bytes that each has sent
        self._unread = 0  # the sum of those bytes
        self._told_s = -math.inf
        self._untold = 0
        self._reason = ""

    @property
    def next_to_go(self) -> Channel | None:
        """Who is disconnected if somebody else connects now."""
        return next(iter(self._waiting)) if len(self._waiting) >= self._most else None

    def called(self, channel: Channel, now: float) -> list[Channel]:
        """Somebody has connected."""
        self._waiting[channel] = 0
        if len(self._waiting) <= self._most:
            return []
        return self._dismiss([next(iter(self._waiting))], f"more than {self._most} callers proved nothing", now)

    def heard(self, channel: Channel, now: float) -> list[Channel]:
        """Somebody has said something: from who has proved the secret, nothing more is asked."""
        if channel not in self._waiting:
            return []
        if channel.authenticated or channel.closed:
            self._forget(channel)
            return []
        self._unread += channel.unread - self._waiting[channel]
        self._waiting[channel] = channel.unread
        if self._unread > MOST_BYTES:
            largest = max(self._waiting, key=lambda stranger: self._waiting[stranger])
            return self._dismiss([largest], f"callers that proved nothing sent more than {MOST_BYTES >> 20} MiB", now)
        return []

    def look(self, now: float) -> list[Channel]:
        """Return callers whose time is over, and report refusals that were held back. Call it regularly."""
        if self._untold and now - self._told_s >= TELL_EVERY_S:
            were = "connection was" if self._untold == 1 else "connections were"
            more = f"{self._untold} {were} refused in the last {now - self._told_s:.0f} s"
            self._say(f"{more}; the last: {self._reason}", now)
        late = self.late(now)
        return self._dismiss(late, f"nothing was proved within {HANDSHAKE_TIMEOUT_S:g} s", now) if late else []

    def late(self, now: float) -> list[Channel]:
        """Callers whose time is over, as far as they were heard."""
        found = []
        for channel in self._waiting:  # who called later is not late either
            if now - channel.born_s <= HANDSHAKE_TIMEOUT_S:
                break
            found.append(channel)
        return found

    def refused(self, reason: str, now: float) -> None:
        """A connection was refused."""
        self._untold, self._reason = self._untold + 1, reason
        if self._told_s == -math.inf:
            self._say(f"a connection was refused: {reason}", now)

    def _dismiss(self, channels: list[Channel], reason: str, now: float) -> list[Channel]:
        for channel in channels:
            self._forget(channel)
            self.refused(reason, now)
        return channels

    def _forget(self, channel: Channel) -> None:
        self._unread -= self._waiting.pop(channel)

    def _say(self, text: str, now: float) -> None:
        self._told_s, self._untold = now, 0
        self._tell(text)
