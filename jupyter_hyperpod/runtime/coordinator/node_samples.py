"""Gathers what the nodes of a job say of their use, and makes events of it, each of many nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ...storage.resources.samples import Use, as_event, joined
from ..protocol import facts
from ..protocol.dispatch import handles
from .roster import Member

GATHERED_S = 0.5  # the nodes sample at the same moments
NODES_AT_ONCE = 512


class NodeSamples:
    """What was said and is not journaled yet."""

    def __init__(self) -> None:
        self._since_s = 0.0
        self._said: list[tuple[str, facts.NodeSampled]] = []

    @handles(facts.NodeSampled)
    def _sampled(self, member: Member, sampled: facts.NodeSampled) -> None:
        if not self._said:
            self._since_s = time.monotonic()
        self._said.append((member.node, sampled))

    def take(self, now_s: float, *, all_of_them: bool = False) -> Iterator[dict[str, Any]]:
        """The data of events ``nodes.sampled``, where there are enough."""
        if not self._said or not (all_of_them or now_s - self._since_s >= GATHERED_S):
            return
        said, self._said = self._said, []
        for at in range(0, len(said), NODES_AT_ONCE):
            some = said[at : at + NODES_AT_ONCE]
            found: dict[str, Use] = {}
            for node, sampled in some:
                use = {name: value for name, value in asdict(sampled).items() if value is not None}
                found[node] = joined(found.get(node), use)
            yield as_event(found, max(sampled.every_s for _, sampled in some))
