"""Lets the ranks of one job share a load, so that the object store is read once.

Ranks of one host load a model into one memory file (`shared_buffer`) and claim its chunks there. Hosts claim chunks on
a `board` in the job's directory and pass them on over sockets (`peers`). There is no leader, and no rank waits for
ranks that have not started yet. The claims of a dead rank are free at once, and other ranks wait for a slow one only a
few times as long as a chunk usually takes; then they read its chunks from the store. A rank serves its chunks as long
as it keeps its tensors. Tensor-parallel ranks of a host read rows for each other, too (`exchange`).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from pathlib import Path

import torch

from ...core.errors import HyperpodError, SpecError
from ...storage.store import ENDPOINT_FILE, JobStore
from ...system.addresses import BIND_VARIABLE, LOOPBACK, own_address
from ..read import pace
from ..read import tensors as made
from ..read.http import HttpSource
from ..read.http_connection import Cancel
from ..read.landing import Landing
from ..read.local import Mapping
from ..read.model_files import Files
from ..read.plan import Chunk, LoadPlan, Placed
from ..read.stream import Outcome
from ..read.verify import Verifier
from .board import Board
from .discovery import HERE, STEM, Notice, attach_or_create, name_of
from .exchange import exchange_of
from .peers import Answer, ChunkServer, Client

JOB_VARIABLE, NODE_VARIABLE = "HYPERPOD_JOB_DIR", "HYPERPOD_NODE"
APART_VARIABLE = "HYPERPOD_SOCKETS_ONLY"
SETTINGS = ("auto", "off")
UNITS = 64  # units per model that hosts claim
UNKNOWN_S = 5.0  # how long a peer may take for a chunk until the usual time is known


def sharing_job(setting: str, files: Files) -> JobStore | None:
    """Return the job whose ranks share the load of `files`, None where none do. Raises SpecError."""
    if setting not in SETTINGS:
        raise SpecError(f"fanout is {setting!r}; expected one of {', '.join(SETTINGS)}")
    if setting == "off" or JOB_VARIABLE not in os.environ:
        return None
    for source in files.sources:  # only objects with a strong ETag are known to be the same for every rank
        if not isinstance(source, HttpSource) or not source.etag or source.etag.startswith("W/"):
            return None
    job = JobStore(Path(os.environ[JOB_VARIABLE]))
    try:
        spec = job.spec()
    except HyperpodError:
        return None
    return job if spec.range.maximum * spec.replica > 1 else None


class FanOut(Landing):
    """Memory that this rank shares with others of its job."""

    def __init__(
        self, job: JobStore, files: Files, load_plan: LoadPlan, checks: Verifier | None, device: torch.device
    ) -> None:
        """Raises MemoryError, StoreError, and OSError where ranks cannot reach each other."""
        self._files, self._checks, self._device = files, checks, device
        self._chunks = sorted(load_plan.chunks, key=_position)
        self._numbers = {_position(chunk): number for number, chunk in enumerate(self._chunks)}
        self._busy_since: dict[int, float] = {}
        subject = _subject(files, self._chunks, checks is not None)
        board = Board(job.path / "fanout" / subject)
        node, apart = os.environ.get(NODE_VARIABLE, ""), bool(os.environ.get(APART_VARIABLE))
        only = node if apart else None
        with board.locked():
            self._buffer = attach_or_create(board, len(self._chunks), load_plan.landings, only)
            server = None
            if apart or os.environ.get(BIND_VARIABLE):
                host = own_address(os.environ.get(BIND_VARIABLE, LOOPBACK), job.path / ENDPOINT_FILE)
                server = self._serve(host, job.secret(), subject)
            notice = Notice(self._buffer.place, node, *(server.address if server else ()))
            weakref.finalize(self._buffer.private, _leave, os.getpid(), board, notice.name, server)
            board.put(notice.name, notice.encode())
            self.sharers = sum(other.startswith(notice.name[:STEM]) for other in board.names(HERE))
        self._hosts = _Hosts(board, self._buffer.token, job.secret(), subject, len(self._chunks)) if server else None
        self._mapping = Mapping(files.names[0], self._buffer.private)
        together = server is None or job.spec().replica >= load_plan.tp[1]
        self._exchange = exchange_of(job.path / "fanout", files, load_plan, only) if together else None

    def fetch(self, chunk: Chunk, cancel: Cancel) -> Outcome:
        number = self._numbers[_position(chunk)]
        outcome = self._obtain(number, chunk, cancel)
        if outcome != "busy":
            if self._exchange is not None and chunk.across is not None:
                self._exchange.settle(chunk)
            self._mapping.touch(self._buffer.starts[chunk.file] + chunk.place, chunk.bytes)
        return outcome

    def reverify(self, chunk: Chunk) -> None:
        if self._checks is not None:
            self._checks.check(chunk, self._buffer.view(chunk.file, chunk.place, chunk.bytes), Cancel())

    def tensor(self, tensor: Placed) -> torch.Tensor:
        landed = self._mapping.bytes[self._buffer.starts[tensor.file] :]
        return made.view(landed, tensor, self._files.sources[tensor.file].name).to(self._device)

    def close(self) -> None:
        if self._hosts is not None:
            self._hosts.close()
        if self._exchange is not None:
            self._exchange.close()

    def _obtain(self, number: int, chunk: Chunk, cancel: Cancel) -> Outcome:
        buffer = self._buffer
        if buffer.seconds[number]:
            return "found"
        late = self._late(number)
        if not buffer.claim(number) and not (late and (buffer.claim(number, again=True) or self._late(number, 2))):
            return self._busy(number)
        try:
            if buffer.seconds[number]:
                return "found"
            began_s = time.monotonic()
            buffer.reserve(chunk.file, chunk.place, chunk.bytes)
            if not self._bring(number, chunk, late, cancel):
                return self._busy(number)
            buffer.arrived(number, began_s)
            buffer.written(chunk.file, chunk.place, chunk.bytes)
        finally:
            buffer.release(number)
            buffer.release(number, again=True)
        return "read"

    def _bring(self, number: int, chunk: Chunk, late: bool, cancel: Cancel) -> bool:
        """Get a claimed chunk, from another host or from the store; False where another rank is reading it."""
        view = self._buffer.view(chunk.file, chunk.place, chunk.bytes)
        answer = self._hosts.ask(number, view) if self._hosts is not None else "gone"
        if answer == "later" and not late:
            return False
        if answer != "got":
            if self._exchange is not None and chunk.across is not None:
                return self._exchange.take(chunk, view, late, cancel)
            self._files.read(chunk, view, cancel)
        if self._checks is not None:
            self._checks.check(chunk, view, cancel)
        return True

    def _busy(self, number: int) -> Outcome:
        self._busy_since.setdefault(number, time.monotonic())
        return "busy"

    def _late(self, number: int, times: float = 1) -> bool:
        """Whether a peer has taken too long for a chunk."""
        waited_s = (time.monotonic() - self._busy_since.get(number, time.monotonic())) / times
        if waited_s <= pace.HEDGE_FLOOR_S:
            return False
        usual_s = self._buffer.usual_s()
        return waited_s > UNKNOWN_S if usual_s is None else pace.should_hedge(waited_s, usual_s)

    def _serve(self, host: str, secret: bytes, subject: str) -> ChunkServer:
        seconds, starts, chunks = self._buffer.seconds, self._buffer.starts, self._chunks

        def find(number: int) -> tuple[int, int] | None:
            if number >= len(chunks) or not seconds[number]:
                return None
            return starts[chunks[number].file] + chunks[number].place, chunks[number].bytes

        return ChunkServer(host, secret, subject.encode(), self._buffer.descriptor, find)


class _Hosts:
    """The other hosts that load the same model: which host reads which chunks, and the connections to them."""

    def __init__(self, board: Board, token: str, secret: bytes, subject: str, count: int) -> None:
        self._board, self._token = board, token
        self._secret, self._subject = secret, subject.encode()
        self._chunks_a_unit = -(-count // UNITS)
        self._gone: set[tuple[str, int]] = set()
        self._thread = threading.local()
        self._clients: list[Client] = []

    def ask(self, number: int, view: memoryview) -> Answer:
        """Receive a chunk from the host that has claimed it; "gone": this host has to read it."""
        unit = f"unit-{number // self._chunks_a_unit}"
        owner = self._board.put(unit, self._token)
        if owner == self._token:
            return "gone"
        notices = self._notices()
        for notice in sorted(notices, key=lambda notice: notice.place.token != owner):
            answer = self._get((notice.host, notice.port), number, view)
            if answer == "got" or (answer == "later" and notice.place.token == owner):
                return answer
        self._board.remove(unit)
        return "gone" if self._board.put(unit, self._token) == self._token else "later"

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def _notices(self) -> list[Notice]:
        found = [Notice.decode(self._board.get(name) or "") for name in self._board.names(HERE)]
        others = [notice for notice in found if notice is not None and notice.place.token != self._token]
        return [notice for notice in others if notice.port and (notice.host, notice.port) not in self._gone]

    def _get(self, address: tuple[str, int], number: int, view: memoryview) -> Answer:
        mine = self._mine()
        if address in mine and mine[address].worn:
            mine.pop(address).close()
        if address not in mine:
            try:
                mine[address] = Client(address, self._secret, self._subject)
            except OSError:
                self._gone.add(address)
                return "gone"
            self._clients.append(mine[address])
        answer = mine[address].get(number, view)
        if answer == "gone":
            self._gone.add(address)
            mine.pop(address).close()
        return answer

    def _mine(self) -> dict[tuple[str, int], Client]:
        if not hasattr(self._thread, "clients"):
            self._thread.clients = {}
        clients: dict[tuple[str, int], Client] = self._thread.clients
        return clients


def _leave(pid: int, board: Board, name: str, server: ChunkServer | None) -> None:
    if os.getpid() != pid:  # a forked child's copy
        return
    board.leave(name, HERE)
    if server is not None:
        server.close()


def _position(chunk: Chunk) -> tuple[int, int]:
    return chunk.file, chunk.place


def _subject(files: Files, chunks: list[Chunk], checked: bool) -> str:
    """Name the load: equal for two ranks if, and only if, the same bytes of the same objects land alike."""
    pieces = [(chunk.file, chunk.offset, chunk.length, chunk.place, chunk.rows, chunk.stride) for chunk in chunks]
    return name_of(files, pieces, checked)
