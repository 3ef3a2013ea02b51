"""The worker: the process in which a person's cell runs. Waits for its turn, runs the cell, says how it went."""

from __future__ import annotations

import importlib
import linecache
import os
import random
import select
import socket
import sys
import time
import traceback
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import Fenced, Stopped
from .context import BIND_VARIABLE, MEMBER_VARIABLE, Context
from .progress import Progress
from .replica import Place
from .report import Reporter
from .wire import Channel, Message

TRACEBACK_FRAMES = 50


@dataclass
class Worker:
    """What the Session needs to know of its process."""

    context: Context
    channel: Channel  # where orders come from: the agent, or of a follower its leader
    agent: Channel
    progress: Progress
    listener: socket.socket
    member: str
    rank: int | None = None
    world_size: int = 0
    sessions: int = 0
    place: Place = field(default_factory=Place)
    inbox: list[Message] = field(default_factory=list)
    reporter: Reporter | None = None

    def receive(self, timeout_s: float | None) -> Message | None:
        """The next message from the coordinator, waiting at most ``timeout_s`` (None: for ever)."""
        if not self.inbox:
            select.select([self.channel], [], [], timeout_s)
            self.inbox.extend(self.channel.receive())
            if self.channel.closed and not self.inbox:
                raise Fenced("who gives orders to this process is gone")
        return self.inbox.pop(0) if self.inbox else None

    def say(self, message: Message) -> None:
        """Send to the coordinator, through the agent."""
        self.agent.send(message)
        self.agent.flush(5.0)

    def journal(self, kind: str, data: Message) -> None:
        """Write an event as this worker, which has to be sure that it is not fenced: it waits where it is not."""
        self.progress.wait_until_allowed()
        if self.reporter is None:
            self.reporter = Reporter(self.context.job.events, f"worker-{self.member}")
        self.reporter.append(kind, data)


_current: Worker | None = None


def current() -> Worker | None:
    """The worker this process is, or None outside a job."""
    return _current


def switched_on(component: str) -> bool:
    """Whether one of `core.spec.COMPONENTS` is used; outside a job all are."""
    return _current is None or component in _current.context.spec.components


def main(context: Context, channel: Channel, progress: Progress, *links: Channel, shard: int = 0) -> int:
    """The worker's life after the fork; returns its exit status (0: the cell ended well).

    ``links`` lead to the other ranks of its replica: from its leader (``shard`` 0) to each, from each to the leader.
    """
    global _current
    address = context.bind_address()
    if BIND_VARIABLE in os.environ:
        os.environ[BIND_VARIABLE] = address  # for what listens on behalf of the cell
    listener = socket.create_server((address, 0), backlog=256)
    host, port = listener.getsockname()[:2]
    place = Place(shard, links, context.spec.replica)
    orders = channel if shard == 0 else links[0]
    me = Worker(context, orders, channel, progress, listener, context.member(os.getpid()), place=place)
    os.environ[MEMBER_VARIABLE] = me.member
    _current = me
    if (ports := place.assemble(port)) is not None:
        me.say({"type": "hello", "pid": os.getpid(), "host": host, "port": port} | ports)
    try:
        while (message := me.receive(None)) is None or message["type"] != "run":
            pass
    except Fenced:
        return 0
    me.rank, me.world_size = message["rank"], message["world_size"]
    environment = place.environment(message)
    _prepare(context, environment | (_launched(context, message, environment) if place.size == 1 else {}))
    progress.touch("user", 0)
    outcome = _run_cell(context)
    progress.touch("done", 0)
    if shard == 0 or outcome["type"] != "done":
        me.say(outcome | {"elastic": progress.detected})
    if outcome["type"] == "done":
        place.order({"type": "ended"})
    return 0 if outcome["type"] == "done" else 1


def _launched(context: Context, run: Message, environment: Mapping[str, str]) -> dict[str, str]:
    """What torchrun adds for the one rank of a node."""
    return {
        "GROUP_RANK": environment["RANK"],
        "GROUP_WORLD_SIZE": environment["WORLD_SIZE"],
        "ROLE_RANK": environment["RANK"],
        "ROLE_WORLD_SIZE": environment["WORLD_SIZE"],
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": context.job.id,
        "TORCHELASTIC_RESTART_COUNT": str(run["restarts"]),
        "TORCHELASTIC_MAX_RESTARTS": str(context.spec.script_restarts),
    }


def _prepare(context: Context, environment: Mapping[str, str]) -> None:
    """Environment as torchrun gives it, seeds and threads: before the first line of the cell."""
    os.environ.update(environment)
    if context.spec.working_directory and os.path.isdir(context.spec.working_directory):
        os.chdir(context.spec.working_directory)
    seed_everything(context.spec.seed, context.spec.threads)


def seed_everything(seed: int, threads: int | None = None) -> None:
    """Seed the generators of every library that is already imported; torch when it is there."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    if "torch" in sys.modules:
        torch = importlib.import_module("torch")
        torch.manual_seed(seed)
        if threads is not None:
            torch.set_num_threads(threads)


def _run_cell(context: Context) -> Message:
    source = Path(context.cell).read_text()
    filename = context.spec.filename
    module = types.ModuleType("__main__")
    module.__dict__.update({"__file__": filename, "__builtins__": __builtins__})
    sys.modules["__main__"] = module
    sys.argv = [filename]
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    try:
        exec(compile(source, filename, "exec", dont_inherit=True), module.__dict__)
    except (Stopped, Fenced):
        return {"type": "stopped"}
    except SystemExit as leaving:
        if leaving.code in (None, 0):
            return {"type": "done"}
        return {"type": "error", "at_s": time.monotonic(), "error": _describe(leaving, filename)}
    except BaseException as error:
        return {"type": "error", "at_s": time.monotonic(), "error": _describe(error, filename)}
    return {"type": "done"}


def _describe(error: BaseException, filename: str) -> dict[str, Any]:
    """The error as the person should see it: frames of their cell and what it called, none of ours above it."""
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename != filename:
        tb = tb.tb_next
    lines = traceback.format_exception(type(error), error, tb or error.__traceback__, limit=-TRACEBACK_FRAMES)
    cell_line = None
    walker = tb
    while walker is not None:
        if walker.tb_frame.f_code.co_filename == filename:
            cell_line = walker.tb_lineno
        walker = walker.tb_next
    if isinstance(error, SyntaxError) and error.filename == filename:
        cell_line = error.lineno
    return {
        "type": type(error).__name__,
        "message": str(error)[:10_000],
        "traceback": "".join(lines).splitlines(),
        "line": cell_line,
        "communication": _is_communication(error),
    }


def _is_communication(error: BaseException) -> bool:
    """Whether torch.distributed says that peers could not be reached, which no program is to blame for."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"DistError", "DistBackendError"}) or (isinstance(error, RuntimeError) and "gloo" in str(error))
