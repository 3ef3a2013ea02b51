"""The lease of a member: how long it may continue without a sign of life from its coordinator's host.

A coordinator that hears nothing from a member, and whose probes the member's host does not confirm, fences it. A member
that is cut off must have stopped by then, or its work would count twice. So every beat says how long the member will
continue if no later beat is confirmed, and every beat that the coordinator's host confirms (TCP) extends the lease by
that time, counted from when the beat was *sent*: the coordinator has heard it at that time or later, so its patience,
`STOP_S` longer, ends later than the lease. A later beat never takes back what an earlier one said.

The lease follows the longest gap between signs of life that the agent saw lately (`policy.membership.lease_s`), so that
neither a busy machine nor a slow network ends it.

A coordinator that is frozen or slow extends it, too: its host confirms beats that it has not read, and it cannot fence
a member before reading them. A refused or reset connection proves that no coordinator can fence this member: members
keep training while a coordinator is replaced. Only silence is dangerous.
"""

from __future__ import annotations

import math
from collections import deque

from ...policy.membership import LEASE_S, SHORT_LEASE_S, lease_s, longest_gap_s
from ..connection import Channel


class Lease:
    """Times on the monotonic clock, in seconds. ``lapsed``: it has run out once, for good."""

    def __init__(self) -> None:
        self.until_s = math.inf
        self.lapsed = False
        self._beats: deque[tuple[int, float, float]] = deque()  # position in the channel, sent, lease
        self._last_s = SHORT_LEASE_S  # what the last beat said
        self._said_s = -math.inf  # the latest end that a beat has said
        self._fresh_s: float | None = None  # when the newest sign of life had been asked for
        self._gap_s = 0.0

    def update(self, channel: Channel | None, now_s: float) -> None:
        """Check which beats have been confirmed, and whether in time."""
        self.lapsed = self.lapsed or now_s > self.until_s
        confirmed = channel.confirmed if channel is not None else 0
        found = []
        while self._beats and self._beats[0][0] <= confirmed:
            found.append(self._beats.popleft())
        if found:
            self._see(found[-1][1], now_s)
        for _, sent_s, length_s in found:
            self._extend(sent_s, length_s)

    def extend(self, sent_s: float, now_s: float) -> None:
        """The coordinator's host gave a sign of life to something other than a beat that was sent at ``sent_s``."""
        self.lapsed = self.lapsed or now_s > self.until_s
        self._see(sent_s, now_s)
        self._extend(sent_s, self._last_s)

    def connected(self, sent_s: float, now_s: float) -> None:
        """The connection requested at ``sent_s`` is established."""
        self._beats.clear()
        self.extend(sent_s, now_s)

    def next_s(self, interval_s: float, now_s: float) -> float:
        """The lease that a beat sent now asks for; ``interval_s``: between two beats."""
        ends_s = max(self._said_s, self.until_s if math.isfinite(self.until_s) else -math.inf)
        return min(LEASE_S, max(lease_s(interval_s, self._gap_s), ends_s - now_s))

    def beat(self, channel: Channel, sent_s: float, length_s: float) -> None:
        """A beat was sent that asks for a lease of ``length_s``."""
        self._last_s, self._said_s = length_s, max(self._said_s, sent_s + length_s)
        if channel.greeted:
            self._beats.append((channel.position, sent_s, length_s))

    def restore(self, sent_s: float, length_s: float, now_s: float) -> bool:
        """The coordinator itself answered a beat sent at ``sent_s``; True if recent enough to continue."""
        if now_s > sent_s + length_s:
            return False
        self._see(sent_s, now_s)
        self.lapsed, self.until_s = False, sent_s + length_s
        return True

    def _extend(self, sent_s: float, length_s: float) -> None:
        until_s = sent_s + length_s
        self.until_s = until_s if math.isinf(self.until_s) else max(self.until_s, until_s)

    def _see(self, sent_s: float, now_s: float) -> None:
        """Note how long there was no sign of life before this one."""
        if self._fresh_s is not None:
            self._gap_s = longest_gap_s(self._gap_s, now_s - self._fresh_s, max(0.0, sent_s - self._fresh_s))
        self._fresh_s = sent_s if self._fresh_s is None else max(self._fresh_s, sent_s)
