"""A rank's place in its replica: its links to the other ranks, and the environment of its cell.

A replica is the ranks of one node. Shard 0 leads: it alone gets the coordinator's messages, and passes them on between
its own orders, so that all ranks get everything in one order. Messages of all ranks to the coordinator go through the
agent.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...core.errors import Fenced, TrainingError
from ..connection import Channel
from ..protocol import orders, replica
from ..protocol.codec import Message, decode, encode

SEND_PATIENCE_S = 5.0


class ReplicaRank:
    """One rank of a replica; ``links`` lead from the leader to every other rank, or from that one to the leader."""

    def __init__(self, shard: int = 0, links: Sequence[Channel] = (), size: int = 1) -> None:
        self.shard = shard
        self.size = size
        self.links = list(links)
        self._heard: list[deque[Message]] = [deque() for _ in self.links]
        self._store: Any = None

    def send(self, message: Message) -> None:
        """Send to every linked rank."""
        encoded = encode(message) if self.links else {}
        for link in self.links:
            link.send(encoded)
        for link in self.links:
            link.flush(SEND_PATIENCE_S)

    def receive(self) -> list[deque[Message]]:
        """The unread messages of each linked rank."""
        for link, heard in zip(self.links, self._heard, strict=True):
            if not link.closed:
                heard.extend(said for found in link.receive() if (said := decode(found)) is not None)
        return self._heard

    def wait(self, other: Channel) -> None:
        """Wait until a linked rank, or `other`, has a message."""
        select.select([other, *(link for link in self.links if not link.closed)], [], [])

    def assemble(self, port: int) -> tuple[int, ...] | None:
        """Collect the addresses of all ranks of the replica on the leader; None on the others."""
        if self.shard:
            self.send(replica.FollowerReady(port))
            return None
        if not self.links:
            return ()
        while not all(heard := self.receive()):
            if any(link.closed for link in self.links):
                raise Fenced("a rank of this replica has ended before it could begin")
            select.select(self.links, [], [])
        first = [said.popleft() for said in heard]
        return (port, *(said.port for said in first if isinstance(said, replica.FollowerReady)))

    def environment(self, run: orders.RunCell) -> dict[str, str]:
        """The cell's environment, as torchrun gives it: of the job, or of this replica where it has several ranks."""
        if self.size == 1:
            rank = run.rank if run.rank is not None else -1
            return _variables(rank, 0, run.world_size, 1, run.master_host, run.master_port)
        if self.shard == 0:
            from ..comm import rendezvous  # it imports torch.distributed

            self._store, port = rendezvous.host("127.0.0.1")  # for the replica's process group
            run = replace(run, replica_port=port)
            self.send(run)
        own = _variables(self.shard, self.shard, self.size, self.size, "127.0.0.1", run.replica_port or 0)
        # init_process_group finds the leader's store, as a rank under torchrun finds its agent's; ranks of one host
        # talk on loopback
        return own | {
            "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0", "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip


def refuse_stragglers(message: Message, shard: int) -> None:
    """Raise TrainingError where a rank has ended its cell while the others train."""
    if isinstance(message, replica.RankEnded):
        raise TrainingError(
            f"shard {shard} of this replica ended its cell while the others are in hp.Session: open it on every rank"
        )


def _variables(rank: int, local: int, world: int, local_world: int, host: str, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(local_world),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }
