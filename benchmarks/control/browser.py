"""What a person at a browser waits for: a real Jupyter server, a real Chromium, ten thousand nodes and jobs.

The store's journals are written by the product's writers; nothing trains (`written_jobs`, `shown_events`). The browser
is driven by `ui-tests/tools/measure.mjs`, which times what is drawn, not what is computed. All share one machine. The
Jupyter server of the many nodes and jobs, and what writes their events, stand for other machines: they run at nice 10,
so that the browser does not wait for them. JupyterLab's starts are measured without that. A trace takes time itself:
the longest task is timed without one, and processor time is taken with one, afterwards.
"""

from __future__ import annotations

import gzip
import json
import os
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from jupyter_hyperpod.bench.laboratory import progress
from jupyter_hyperpod.bench.report import bar, report, row
from jupyter_hyperpod.control.runs.run_table import RunTable
from jupyter_hyperpod.core.errors import HyperpodError
from jupyter_hyperpod.storage.store import ENVIRONMENT_VARIABLE, Store
from jupyter_hyperpod.system.processes import raise_descriptor_limit

from . import shown_events, written_jobs
from .scale import _cpu_s

OURS, PLAIN = "jupyter_hyperpod", "JupyterLab without it"
TREE = Path(__file__).resolve().parents[2]
SCRIPT, STATIC = Path("tools") / "measure.mjs", TREE / "labextension" / "dist" / "static"
NODES, JOBS, STARTS, SECONDS, BURST_S, BURST = 10_000, 10_000, 7, 20.0, 60.0, 1000
TRACED = 1 / 3  # of the time of the burst, with a trace
ELSEWHERE = ("nice", "-n", "10")  # before the command of a process that stands for another machine
LINES, FRAME_S = 1_000_000, 1 / 60  # lines of a log that is scrolled, and the time of a frame of the screen
CALM = 100  # events per second, of which ten are lines and ten are changes of nodes
START_S = 300.0
DISABLED = {"disabledExtensions": {"jupyter_hyperpod": True}}


def run(
    nodes: int = NODES,
    jobs: int = JOBS,
    starts: int = STARTS,
    seconds: float = SECONDS,
    burst: float = BURST_S,
    lines: int = LINES,
) -> dict[str, Any]:
    """Measure with so many ``nodes`` and ``jobs``; JupyterLab begins ``starts`` times with the extension and without.

    ``seconds``: how long updates are watched, at 100 events per second; ``burst``: how long 1,000 per second come,
    and then for a third of it once more, with a trace.
    ``lines``: how long a log is that is scrolled back.
    """
    raise_descriptor_limit()
    with tempfile.TemporaryDirectory(prefix="hyperpod-browser-") as folder, ExitStack() as stack:
        scene = _Scene(Path(folder), stack.enter_context(_chromium()))
        found = _starts(scene, starts) | _large(scene, nodes, jobs, seconds, burst, lines)
    return _told(found, f"{nodes:,} nodes, {jobs:,} jobs")


@dataclass
class _Scene:
    folder: Path
    browser: _Browser
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    @contextmanager
    def server(self, store: Store, extended: bool, before: tuple[str, ...] = ()) -> Iterator[tuple[str, float, float]]:
        """JupyterLab on the store, with the extension or without: its URL, the seconds until it answered, and its
        processor time until then. ``before``: words before its command."""
        home = self.folder / ("with" if extended else "without")
        config = home / "config"
        (config / "labconfig").mkdir(parents=True, exist_ok=True)
        (config / "labconfig" / "page_config.json").write_text(json.dumps({} if extended else DISABLED))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = {"ip": "127.0.0.1", "port": port, "port_retries": 0, "open_browser": False, "root_dir": str(home)}
        extensions = {"jupyterlab": True, "jupyter_hyperpod": extended}
        content: dict[str, Any] = {"ServerApp": options | {"jpserver_extensions": extensions, "allow_root": True}}
        content |= {"IdentityProvider": {"token": self.token}, "LabApp": {"expose_app_in_browser": True}}
        content |= {"HyperpodExtension": {"store": str(store.root)}}
        settings = home / "settings.json"
        settings.touch(0o600)
        settings.write_text(json.dumps(content))
        places = {"HOME": home, "JUPYTER_CONFIG_DIR": config, "JUPYTER_RUNTIME_DIR": home / "runtime"}
        surroundings = {**os.environ, ENVIRONMENT_VARIABLE: str(store.root)} | {k: str(v) for k, v in places.items()}
        command = [*before, sys.executable, "-m", "jupyterlab", f"--config={settings}", "--no-browser"]
        with open(home / "server.log", "wb") as log:
            began_s = time.monotonic()
            process = subprocess.Popen(command, env=surroundings, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            try:
                _answers(process, f"http://127.0.0.1:{port}/api?token={self.token}", home / "server.log")
                took_s, cpu_s = time.monotonic() - began_s, _cpu_s(process.pid)
                yield f"http://127.0.0.1:{port}/lab?token={self.token}&reset", took_s, cpu_s
            finally:
                process.terminate()
                process.wait()


def _answers(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            urlopen(url, timeout=5).close()
            return
        except (URLError, OSError) as error:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise HyperpodError(f"no Jupyter server: {error}; its log ends: {log.read_text()[-1000:]}") from error
        time.sleep(0.01)


class _Browser:
    """The process that drives Chromium: one order, one answer."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, order: str, **given: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"order": order, **given}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "it has ended"}')
        if "error" in answer:
            raise HyperpodError(f"the browser could not do {order!r}: {answer['error']}")
        found: dict[str, Any] = answer
        return found


@contextmanager
def _chromium() -> Iterator[_Browser]:
    node = shutil.which("node") or ""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), "")
    if not (node and path and (TREE / "ui-tests" / "node_modules" / "@playwright").exists()):
        raise HyperpodError("bench browser needs node, Chromium and the packages of ui-tests: run `make test-browser`")
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([node, str(SCRIPT)], cwd=TREE / "ui-tests", text=True, **pipes) as process:
        browser = _Browser(process)
        try:
            browser.ask("start", chromium=path)
            yield browser
            browser.ask("end")
        finally:
            process.kill()


def _starts(scene: _Scene, starts: int) -> dict[str, Any]:
    """The starts of server and page, with the extension and without, in turn, on an empty store."""
    store = Store(scene.folder / "empty").prepare()
    names = [f"{name}{suffix}" for name in ("server", "server_cpu", "page") for suffix in ("", "_plain")]
    found: dict[str, list[float]] = {name: [] for name in names}
    loaded: list[str] = []
    for turn in range(starts):
        for extended in (True, False) if turn % 2 else (False, True):
            suffix = "" if extended else "_plain"
            with scene.server(store, extended) as (url, took_s, cpu_s):
                scene.browser.ask("open", url=url)  # the first page of a server pays for the server's caches
                opened = scene.browser.ask("open", url=url)
            found[f"server{suffix}"].append(took_s)
            found[f"server_cpu{suffix}"].append(cpu_s)
            found[f"page{suffix}"].append(opened["took"] / 1000)
            loaded = opened["loaded"] if extended else loaded
        progress(f"start {turn + 1} of {starts}: {', '.join(f'{k} {v[-1]:.2f} s' for k, v in found.items())}")
    return {**found, "eager_bytes": _packed(loaded), "all_bytes": _packed([p.name for p in STATIC.glob("*.js")])}


def _packed(names: list[str]) -> int:
    """Bytes of these files of the extension, as a server sends them."""
    return sum(len(gzip.compress((STATIC / name).read_bytes())) for name in set(names))


def _large(scene: _Scene, nodes: int, jobs: int, seconds: float, burst: float, lines: int) -> dict[str, Any]:
    store = Store(scene.folder / "store").prepare()
    written_jobs.write_ended(store, jobs - 1)
    printed = written_jobs.write_printed(store, lines)
    _read_once(store)
    shown_events.begin(store, nodes)
    job = written_jobs.submitted(store, "training").id
    progress(f"{jobs:,} jobs and {nodes:,} nodes are written")
    with scene.server(store, True, ELSEWHERE) as (url, _, _), _events(store, job, nodes) as pace:
        ask = scene.browser.ask
        ask("open", url=url)
        found: dict[str, Any] = {"sidebar": ask("sidebar", nodes=nodes)}
        progress(f"the left panel is drawn after {found['sidebar']['first'] / 1000:.2f} s")
        pace(CALM)
        found["updates"] = ask("updates", seconds=seconds)
        progress(f"the left panel has changed {len(found['updates']['found'])} times")
        found["delays"] = ask("lines", job=job, seconds=seconds)["delays"]
        progress(f"{len(found['delays'])} lines were seen")
        found |= _burst(ask, pace, burst)
        found["scroll"] = ask("scroll", seconds=seconds / 4)
        found["elements"] = max(found["elements"], found["scroll"]["elements"])
        long = ", ".join(f"{task:.0f} ms" for task in found["burst"]["tasks"]) or "none"
        progress(f"{BURST} events per second: step {found['last']:,} was written; tasks of more than 50 ms: {long}")
        pace(CALM)
        found |= {"table": ask("table", jobs=jobs + 1)} | ask("sort", times=10)
        pace(0)
        found["back"] = ask("back", job=printed, seconds=seconds)
        progress(f"of {lines:,} lines, {found['back']['passed']:,} were scrolled")
    return found


def _burst(ask: Callable[..., dict[str, Any]], pace: Callable[[float], int], burst: float) -> dict[str, Any]:
    """What the page does while many events come: its tasks, its memory; and then, with a trace, its processor time."""

    def come(seconds: float) -> int:
        pace(BURST)
        time.sleep(seconds)  # what is measured is this time
        return pace(0)

    before = ask("calm")
    last = come(burst)
    found: dict[str, Any] = {"burst": ask("tasks"), "last": last}
    time.sleep(3)
    found["shown"] = ask("tasks")["shown"]
    after = ask("calm")
    found |= {"memory": after["memory"], "grown": after["memory"] - before["memory"], "elements": after["elements"]}
    ask("trace", on=True)
    come(burst * TRACED)
    return found | {"trace": ask("trace", on=False) | {"seconds": burst * TRACED}}


def _read_once(store: Store) -> None:
    """Read the journals of all jobs, as the first server of such a store has done."""
    table = RunTable(store)
    found = table.changes()
    while found["unread"] or found["unfinished"]:
        found = table.changes(found["version"], found["instance"])
    table.changes()


@contextmanager
def _events(store: Store, job: str, nodes: int) -> Iterator[Any]:
    """A process that writes events; give it their number per second, and get the newest step."""
    command = [*ELSEWHERE, sys.executable, "-m", "benchmarks.control.shown_events", str(store.root), job, str(nodes)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=TREE, text=True, **pipes) as process:

        def pace(per_s: float) -> int:
            process.stdin.write(f"{per_s}\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            return int(process.stdout.readline())  # type: ignore[union-attr]

        try:
            yield pace
        finally:
            process.kill()


def _told(found: dict[str, Any], case: str) -> dict[str, Any]:
    seconds = {
        "from a message until the left panel's next change is drawn": [t / 1000 for t in found["updates"]["found"]],
        "a line of a worker, from its writing until it is drawn": [t / 1000 for t in found["delays"]],
        "the left panel opens, until its first node is drawn": [found["sidebar"]["first"] / 1000],
        "its list is scrolled to the last node, until that is drawn": [found["sidebar"]["last"] / 1000],
        "the table of runs opens, until the first rows": [found["table"]["first"] / 1000],
        "the table of runs opens, until every job is known": [found["table"]["all"] / 1000],
        "the table is sorted": [t / 1000 for t in found["sorts"]],
        "the table is filtered": [t / 1000 for t in found["filters"]],
        "a frame while the log is scrolled": [t / 1000 for t in found["scroll"]["frames"]],
        "a frame while a long log is scrolled back": [t / 1000 for t in found["back"]["frames"]],
        "start of the server": found["server"],
        "start of the server, processor time": found["server_cpu"],
        "start of the page": found["page"],
    }
    rows = [row(OURS, case, what, "s", samples) for what, samples in seconds.items()]
    rows += [row(PLAIN, case, f"start of the {what}", "s", found[f"{what}_plain"]) for what in ("server", "page")]
    rows.append(row(PLAIN, case, "start of the server, processor time", "s", found["server_cpu_plain"]))
    longest = max(found["burst"]["tasks"], default=0.0)  # the browser tells only of those above 50 ms
    frame = max(found["updates"]["frames"], default=0.0)
    rows.append(row(OURS, case, f"longest task while {BURST} events per second arrive", "s", [longest / 1000]))
    over = [task for task in found["burst"]["tasks"] if task > 50.0]
    rows.append(row(OURS, case, "tasks of more than 0.05 s then", "", [len(over)]))
    trace = found["trace"]
    traced = {"longest task then, processor time": trace["longest"], "of it for layout": trace["parts"]["layout"]}
    traced |= {"of it for styles": trace["parts"]["styles"], "of it for garbage": trace["parts"]["garbage"]}
    rows += [row(OURS, case, what, "s", [ms / 1000]) for what, ms in traced.items()]
    per_second = {"processor time of all tasks": trace["processor"] / 1000, "layouts": trace["layouts"]}
    rows += [row(OURS, case, f"{k} then, per second", "", [v / trace["seconds"]]) for k, v in per_second.items()]
    rows.append(row(OURS, case, "memory after collection, when they have come", "bytes", [found["memory"]]))
    rows.append(row(OURS, case, "memory gained meanwhile", "bytes", [found["grown"]]))
    rows.append(row(OURS, case, "lines that were scrolled back", "", [found["back"]["passed"]]))
    rows.append(row(OURS, case, "all scripts, compressed", "bytes", [found["all_bytes"]]))
    delays = sorted(found["delays"])
    missing = 0 if f"{found['last']:,}".replace(",", " ") in _spaced(found["shown"]) else 1
    ratios = [a / b for a, b in zip(found["page"], found["page_plain"], strict=True)]
    bars = [
        bar("event_to_screen_p50_s", statistics.median(delays) / 1000, 0.15),
        bar("event_to_screen_p99_s", delays[int(0.99 * (len(delays) - 1))] / 1000, 0.5),
        bar("longest_task_s", longest / 1000, 0.05),
        bar("longest_task_cpu_s", trace["longest"] / 1000, 0.05),
        bar("newest_step_missing", missing, 0),
        bar("open_10000_nodes_s", found["sidebar"]["first"] / 1000, 0.3),
        bar("update_paint_s", frame / 1000, 0.05),
        bar("sort_s", statistics.median(found["sorts"]) / 1000, 0.1),
        bar("filter_s", statistics.median(found["filters"]) / 1000, 0.1),
        bar("log_elements", max(found["elements"], found["back"]["elements"]), 2000),
        bar("log_frame_s", statistics.mean(found["back"]["frames"]) / 1000, 1.05 * FRAME_S),
        bar("bundle_gzip_kb", found["eager_bytes"] / 1000, 90),
        bar("all_gzip_kb", found["all_bytes"] / 1000, 300),
        bar("labstart_ratio", statistics.median(ratios), 1.03),
        bar("server_start_s", statistics.median(found["server"]) - statistics.median(found["server_plain"]), 0.3),
        bar("server_start_cpu_s", min(found["server_cpu"]) - min(found["server_cpu_plain"]), 0.3),
    ]
    return report("browser", rows, bars)


def _spaced(text: str | None) -> str:
    """Text with plain spaces, in which a large number stands as 12 345."""
    return "".join(" " if c.isspace() else c for c in text or "")
