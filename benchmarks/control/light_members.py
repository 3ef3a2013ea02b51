"""Many light members in one process: the protocol of agents and workers, without workers and without training.

    python -m benchmarks.control.light_members --job DIR --first 0 --count 500 --micro-batches 1000 --socket FD

Each has a connection of its own to the job's coordinator, proves the secret, registers, beats, reports its state when a
generation forms, and takes the plan. It reads the frame and the tag of every message, and of a large one only the type,
the generation, the rank and the step: in a real cluster each member reads its own plan on its own machine.

Commands are lines of JSON on the socket: ``{"lose": [index, ...]}`` closes connections. The answers are lines of JSON:
``{"planned": generation, "members": n, "at_s": ...}`` when all members here have the plan of a generation (monotonic
clock of the machine).
"""

from __future__ import annotations

import argparse
import json
import re
import selectors
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

from jupyter_hyperpod.core.errors import ProtocolError
from jupyter_hyperpod.policy.membership import beat_interval_s
from jupyter_hyperpod.policy.recovery import MemberState
from jupyter_hyperpod.runtime.connection import FRAME_LIMIT_BYTES, Channel, prepare
from jupyter_hyperpod.runtime.payload_by_rank import HEAD, HELD, PackedReader, is_packed
from jupyter_hyperpod.runtime.protocol import facts
from jupyter_hyperpod.runtime.protocol.codec import Message, encode
from jupyter_hyperpod.storage.store import JobStore
from jupyter_hyperpod.system.json_lines import JsonLineChannel
from jupyter_hyperpod.system.processes import raise_descriptor_limit

PARSED_BYTES = 4096
AT_ONCE = 32  # connections that are opened between two looks at the others
CALLING = 256  # of them that may wait for the coordinator
STEP_S = 0.05
PATIENCE_S = 0.005
STEPS = 1_000_000
FENCED = ("signal", "restart", "release")
_TYPE = re.compile(rb'"type":"(\w+)"\}$')
_BEAT = b"""{"counter":%(beats)d,"step":%(step)d,"phase":"compute","calls":0,"stopped":false,"held_s":null,\
"pace":[%(step)d,0.05],"lease_s":1.5,"type":"beat","member":"%(member)b"}"""
_NUMBER = {name: re.compile(rb'"%b":(\d+)' % name.encode()) for name in ("generation", "rank", "step")}


class LightChannel(Channel):
    """Reads of a large message only what a light member needs, and unpacks it once for all members here."""

    _found: dict[bytes, dict[str, Any]] = {}  # compressed messages of all without their rank -> what was found
    _reader = PackedReader(16 * HELD)

    def _parse(self, payload: bytes) -> dict[str, Any]:
        if is_packed(payload):
            return self._read_once(payload) | {"rank": HEAD.unpack_from(payload)[1]}
        return super()._parse(payload) if len(payload) <= PARSED_BYTES else _looked_through(payload)

    @classmethod
    def _read_once(cls, payload: bytes) -> dict[str, Any]:
        """All members here get the same messages; a patch follows what the first one of them has read."""
        body = payload[:1] + payload[HEAD.size :]
        if body not in cls._found:
            while len(cls._found) > 2 * HELD:
                del cls._found[next(iter(cls._found))]
            cls._found[body] = _looked_through(cls._reader.read(payload, FRAME_LIMIT_BYTES))
        return cls._found[body]


def _looked_through(text: bytes) -> dict[str, Any]:
    kind = _TYPE.search(text)
    if kind is None:
        raise ProtocolError("the type of a message is not at its end")
    numbers = {name: int(value[1]) for name, number in _NUMBER.items() if (value := number.search(text))}
    return {"type": kind[1].decode(), **numbers}


class LightMember:
    """One member. ``planned``: the generation whose plan it has; ``step``: the steps that it has applied."""

    def __init__(self, index: int, micro_batches: int) -> None:
        self.index = index
        self.name = f"light-{index}.0.{index + 1}"
        self.channel: LightChannel | None = None
        self.planned = 0
        self._micro_batches = micro_batches
        self._step: int | None = None
        self._rank: int | None = None
        self._beats = 0

    def connect(self, place: tuple[str, int], secret: bytes) -> LightChannel:
        """Call the coordinator and register."""
        sock = socket.socket()
        sock.setblocking(False)  # who waits for one connection must not keep the others from beating
        sock.connect_ex(place)
        prepare(sock)
        self.channel = LightChannel(sock, secret, initiator=True)
        node = f"light-{self.index}"
        self._say(
            facts.Register(
                node, self.index + 1, "127.0.0.1", 1, self._rank, False, facts.WorkerStatus(), (), True, True
            )
        )
        return self.channel

    def beat(self) -> None:
        """Say that it lives, and has made progress."""
        if self.channel is not None and self.channel.greeted:
            self._beats += 1
            step, name = self._step or 0, self.name.encode()
            self.channel.send_encoded(_BEAT % {b"beats": self._beats, b"step": step, b"member": name})

    def commit(self) -> None:
        """Rank 0 says that a step was applied."""
        if self._rank == 0 and self._step is not None:
            self._say(facts.StepCommitted(self._step, self.planned, STEP_S, ""))

    def hear(self) -> None:
        """Do what the coordinator wants."""
        assert self.channel is not None
        for order in self.channel.receive():
            kind = order["type"]
            if kind == "run":
                v = self._micro_batches
                self._say(facts.SessionOpened(STEPS, v, 1, v, 1, 8, None, 1))
            elif kind == "form":
                self._rank = order["rank"]
                self._say(facts.StateReported(order["generation"], MemberState(self._step, history=1)))
            elif kind == "go":
                plan = order.get("plan", order)
                self._step, self.planned = plan["step"] + 1, order["generation"]
                self.commit()
            elif kind in FENCED:
                raise ProtocolError(f"{self.name} was fenced: this machine is too busy for so many members")

    def _say(self, fact: Message) -> None:
        assert self.channel is not None
        self.channel.send(encode(fact) | {"member": self.name})


class LightMembers:
    """The members of this process and their connections."""

    def __init__(self, job: JobStore, first: int, count: int, micro_batches: int, owner: JsonLineChannel) -> None:
        place = json.loads((job.path / "coordinator.json").read_text())
        self._place, self._secret, self._owner = (place["host"], place["port"]), job.secret(), owner
        self._selector = selectors.DefaultSelector()
        self._members = {index: LightMember(index, micro_batches) for index in range(first, first + count)}
        self._order = list(self._members.values())
        self._interval_s = beat_interval_s(micro_batches)
        self._callers = list(self._order)  # that have no connection
        self._calling: set[LightMember] = set()  # that have not heard of the coordinator yet
        self._beaten, self._began_s = 0, time.monotonic()
        self._planned: Counter[int] = Counter()  # living members by the generation whose plan they have
        self._living = count

    def run(self) -> None:
        """Serve until the owner hangs up."""
        self._selector.register(self._owner, selectors.EVENT_READ)
        while not self._owner.closed:
            self._call()
            for key, _ in self._selector.select(PATIENCE_S):
                if key.data is None:
                    self._obey(self._owner.receive())
                else:
                    self._hear(key.data)
            self._beat()

    def _call(self) -> None:
        for member in self._callers[: min(AT_ONCE, CALLING - len(self._calling))]:
            self._callers.remove(member)
            self._calling.add(member)
            self._selector.register(member.connect(self._place, self._secret), selectors.EVENT_READ, member)

    def _hear(self, member: LightMember) -> None:
        channel = member.channel
        assert channel is not None
        before = member.planned
        member.hear()
        if channel.closed or channel.greeted:
            self._calling.discard(member)
        if channel.closed:
            self._selector.unregister(channel)
            if channel.authenticated:
                raise ProtocolError(f"the coordinator hung up on {member.name}")
            self._callers.append(member)  # too many called at once: again, as an agent does
        if member.planned != before:
            self._planned[before] -= 1
            self._planned[member.planned] += 1
            self._tell(member.planned)

    def _beat(self) -> None:
        """Beats are spread evenly over their period."""
        due = int((time.monotonic() - self._began_s) / self._interval_s * len(self._order))
        for turn in range(max(self._beaten, due - len(self._order)), due):
            self._order[turn % len(self._order)].beat()
        self._beaten = due

    def _tell(self, generation: int) -> None:
        if self._planned[generation] == self._living:
            self._owner.send({"planned": generation, "members": self._living, "at_s": time.monotonic()})

    def _obey(self, commands: list[dict[str, Any]]) -> None:
        for command in commands:
            for index in command["lose"]:
                member = self._members[index]
                assert member.channel is not None
                self._selector.unregister(member.channel)
                member.channel.close()
                member.channel = None
                self._living -= 1
                self._planned[member.planned] -= 1


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--micro-batches", type=int, required=True)
    parser.add_argument("--socket", type=int, required=True)
    options = parser.parse_args()
    raise_descriptor_limit()
    owner = JsonLineChannel(socket.socket(fileno=options.socket))
    LightMembers(JobStore(options.job), options.first, options.count, options.micro_batches, owner).run()


if __name__ == "__main__":
    main()
