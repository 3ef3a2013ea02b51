"""The lease of a member: how long it may continue without a sign of life from its coordinator's host.

A coordinator that hears nothing from a member for `BEATS_LOST_S` fences it. A member that is cut off must have stopped
by then, or its work would count twice. So every beat that the coordinator's host confirms (TCP) extends the lease by
`LEASE_S`, counted from when the beat was *sent*: the coordinator has heard it at that time or later, so its patience
ends later than the lease.

A coordinator that is frozen or slow extends it, too: its host confirms beats that it has not read, and it cannot fence
a member before reading them. A refused or reset connection proves that no coordinator can fence this member: members
keep training while a coordinator is replaced. Only silence is dangerous.
"""

from __future__ import annotations

import math
from collections import deque

from ...policy.membership import LEASE_S
from ..connection import Channel


class Lease:
    """Times on the monotonic clock, in seconds. ``lapsed``: it has run out once, for good."""

    def __init__(self) -> None:
        self.until_s = math.inf
        self.lapsed = False
        self._beats: deque[tuple[int, float]] = deque()

    def update(self, channel: Channel | None, now_s: float) -> None:
        """Check which beats have been confirmed, and whether in time."""
        self.lapsed = self.lapsed or now_s > self.until_s
        confirmed = channel.confirmed if channel is not None else 0
        while self._beats and self._beats[0][0] <= confirmed:
            self.extend(self._beats.popleft()[1], now_s)

    def extend(self, sent_s: float, now_s: float) -> None:
        """The coordinator's host gave a sign of life to something that was sent at ``sent_s``."""
        self.lapsed = self.lapsed or now_s > self.until_s
        until_s = sent_s + LEASE_S
        self.until_s = until_s if math.isinf(self.until_s) else max(self.until_s, until_s)

    def connected(self, sent_s: float, now_s: float) -> None:
        """The connection requested at ``sent_s`` is established."""
        self._beats.clear()
        self.extend(sent_s, now_s)

    def beat(self, channel: Channel, sent_s: float) -> None:
        """A beat was sent."""
        if channel.greeted:
            self._beats.append((channel.position, sent_s))

    def restore(self, sent_s: float, now_s: float) -> bool:
        """The coordinator itself answered a message sent at ``sent_s``; True if recent enough to continue."""
        if now_s > sent_s + LEASE_S:
            return False
        self.lapsed, self.until_s = False, sent_s + LEASE_S
        return True
