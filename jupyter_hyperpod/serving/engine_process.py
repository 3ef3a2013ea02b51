"""An engine as a child of its replica: started, asked whether it is ready, watched, ended with all its processes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from tornado.httpclient import AsyncHTTPClient, HTTPClientError

from ..core.errors import HyperpodError
from ..core.spec import EngineSpec
from ..policy.serving import engine_patience_s
from ..system.addresses import is_exposed
from ..system.processes import Activity, Identity, activity, adopt_orphans, descendants, identify, signal_group
from .context import HOST

KEEPER = "jupyter_hyperpod.serving.engine_keeper"
POLL_S, WATCH_S = 0.1, 1.0
ASK_S = 5.0
ORPHANS_S = 10.0  # for the end of processes that were sent SIGKILL
TAIL_BYTES, TAIL_LINES = 8192, 6
UNKNOWN = (404, 405, 501)  # an engine without this path


class EngineFailed(HyperpodError):
    """The engine did not become ready, or it has ended."""


class EngineProcess:
    """``environment``: variables of the engine. Its output goes where this process's own goes."""

    def __init__(self, spec: EngineSpec, command: Sequence[str], port: int, environment: Mapping[str, str]) -> None:
        self.port = port
        self.load: dict[str, float] = {}
        self._spec, self._command, self._environment = spec, command, environment
        self._keeper: asyncio.subprocess.Process | None = None
        self._leader: Identity | None = None
        self._client = AsyncHTTPClient(force_instance=True)
        self._said_from = _output_bytes()

    async def start(self) -> None:
        """Start it and wait until it is ready. Raises EngineFailed."""
        adopt_orphans()  # what a keeper leaves that is killed
        self._keeper = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", KEEPER, *self._command),
            stdin=asyncio.subprocess.PIPE,
            env=self._environment,
            process_group=0,
        )
        self._leader = identify(self._keeper.pid)
        deadline_s = time.monotonic() + self._spec.start_timeout_s
        while not await self.answers():
            if self._keeper.returncode is not None:
                raise EngineFailed(f"the engine {self._spec.name} {self.ended()} before it was ready; {self._tail()}")
            if time.monotonic() > deadline_s:
                paths = " or ".join(self._spec.ready)
                raise EngineFailed(
                    f"the engine {self._spec.name} was not ready at {paths} after {self._spec.start_timeout_s:g} s; "
                    f"give it longer with --start-timeout; {self._tail()}"
                )
            await self._pause(POLL_S)
        if is_exposed(self.port):
            raise EngineFailed(
                f"the engine {self._spec.name} listens for other machines, too, and asks nobody for the token; have it "
                f"listen at {HOST}, for example with --host {{host}}"
            )

    async def answers(self) -> bool:
        """Whether it says that it is ready."""
        for path in self._spec.ready:
            status, _ = await self._get(path)
            if status not in UNKNOWN:
                return 200 <= status < 300
        return False

    async def watch(self) -> str:
        """Wait until it has ended, or neither answers nor computes; return which, in words."""
        assert self._keeper is not None
        heard_s, before = time.monotonic(), self._activity()
        while self._keeper.returncode is None:
            if await self.answers():
                heard_s, before = time.monotonic(), self._activity()
                await self._read_metrics()
            else:
                now, silent_s = self._activity(), time.monotonic() - heard_s
                if silent_s > engine_patience_s(stopped=now.stopped, computes=now.ticks > before.ticks):
                    return f"has not answered for {silent_s:.0f} s"
            await self._pause(WATCH_S)
        return self.ended()

    def ended(self) -> str:
        """How it has ended, in words."""
        status = self._keeper.returncode if self._keeper is not None else None
        if status is None:
            return "runs"
        return f"ended with status {status}" if status <= 128 else f"was ended by {_signal_name(status - 128)}"

    async def end(self, at_once: bool = False) -> None:
        """End all its processes, ``at_once`` without time to tidy up, and wait for that."""
        keeper = self._keeper
        if keeper is not None and self._leader is not None:
            if at_once:
                for pid in descendants(keeper.pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            assert keeper.stdin is not None
            keeper.stdin.close()
            await keeper.wait()
            signal_group(self._leader, signal.SIGKILL)  # where the keeper itself was killed
            await self._end_orphans()
        self._client.close()

    async def _end_orphans(self) -> None:
        """End what has left the engine's session, where the keeper was killed: its parent is this process then."""
        deadline_s = time.monotonic() + ORPHANS_S
        while (left := descendants(os.getpid())) and time.monotonic() < deadline_s:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(POLL_S)
        _reap()

    async def _pause(self, seconds: float) -> None:
        """Wait, but not longer than the process runs."""
        assert self._keeper is not None
        with suppress(TimeoutError):
            await asyncio.wait_for(self._keeper.wait(), seconds)

    async def _get(self, path: str) -> tuple[int, bytes]:
        """Status and body; 0 where it does not answer."""
        try:
            url = f"http://{HOST}:{self.port}{path}"
            found = await self._client.fetch(url, raise_error=False, request_timeout=ASK_S, follow_redirects=False)
        except (OSError, HTTPClientError):
            return 0, b""
        return (0 if found.code == 599 else found.code), found.body or b""

    async def _read_metrics(self) -> None:
        if not self._spec.metrics:
            return
        status, body = await self._get(self._spec.metrics)
        found = sums(body.decode(errors="replace")) if status == 200 else {}
        wanted = (("running", self._spec.running), ("waiting", self._spec.waiting))
        self.load = {what: found[name] for what, names in wanted for name in [n for n in names if n in found][:1]}

    def _activity(self) -> Activity:
        """Whether the engine is stopped, and what all its processes compute."""
        found = [activity(pid) for pid in (descendants(self._keeper.pid) if self._keeper is not None else [])]
        known = [one for one in found if one is not None]
        return Activity(bool(known) and known[0].stopped, sum(one.ticks for one in known))

    def _tail(self) -> str:
        """The last lines of the output since its start, for an error message."""
        try:
            with open("/proc/self/fd/2", "rb") as file:
                file.seek(max(self._said_from, _output_bytes() - TAIL_BYTES))
                lines = [line for line in file.read(TAIL_BYTES).decode(errors="replace").splitlines() if line.strip()]
        except OSError:
            lines = []
        return f"its last lines: {' | '.join(lines[-TAIL_LINES:])}" if lines else "it has written nothing"


def _reap() -> None:
    """Collect what has ended of adopted processes; nobody waits for a child of this process any more."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def free_port() -> int:
    """A port of loopback at which nobody listens now."""
    with socket.create_server((HOST, 0)) as found:
        return int(found.getsockname()[1])


def sums(text: str) -> dict[str, float]:
    """The samples of metrics in Prometheus' format, name -> sum over all labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name = line.partition("{")[0].split(" ")[0].strip()
        values = line.rpartition("}")[2].split() if "{" in line else line.split()[1:]
        with suppress(ValueError, IndexError):
            found[name] = found.get(name, 0.0) + float(values[0])
    return found


def _output_bytes() -> int:
    """How long the file is to which this process writes its errors; 0 where it is no file."""
    try:
        return os.fstat(2).st_size
    except OSError:
        return 0


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
