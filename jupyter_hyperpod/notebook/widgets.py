"""``hp.widgets``: a job, the cluster and a load as objects with traits, for code of this kernel.

They follow what is written down, and nothing depends on them. What they display is static, or drawn by JupyterLab from
the server: it stays when the kernel is gone.
"""

from __future__ import annotations

import copy
import html
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

from IPython.core.getipython import get_ipython
from IPython.display import display
from traitlets import Bool, Dict, Float, HasTraits, Int, List, Unicode

from ..control import cluster, lookup, report
from ..control.clusters.node_table import nodes_table
from ..control.watch import SILENCE_NOTICE_S, TICK_S, SupervisorSilence
from ..core.errors import HyperpodError
from ..core.events import TERMINAL_STATES, Event
from ..core.views import View, apply, new_cluster_view
from ..loader.read.progress import LoadProgress as Load
from ..loader.reporting import sentence
from ..storage.folded import FoldedJournal
from ..storage.journal import follow_events
from ..storage.store import Store
from .output import JobDisplay
from .shell import is_kernel
from .stream import UPDATE_S

LOOK_S = 2.0  # between two looks at a cluster of which nothing is heard
LOAD_SHOWN_S = 0.25


class Live(HasTraits):
    """Values that a thread keeps current until `close`. They cannot be set; observers are called in that thread."""

    problem = Unicode(read_only=True, help="Why the values may be old; empty where they are current.")

    def __init__(self) -> None:
        super().__init__()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"hyperpod-{type(self).__name__}", daemon=True)

    def close(self) -> None:
        """Follow no longer; the values stay as they are."""
        self._closing.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            self._follow()
        except (HyperpodError, OSError) as error:
            self._set({"problem": f"not followed any more: {error}"})

    def _follow(self) -> None:
        raise NotImplementedError

    def _set(self, values: Mapping[str, Any]) -> None:
        """Set all values, then call the observers of those that changed."""
        with self.hold_trait_notifications():
            for name, value in values.items():
                self.set_trait(name, value)

    def notify_change(self, change: Any) -> None:
        """Call the observers of one value; one that fails keeps no other value from its own."""
        try:
            super().notify_change(change)
        except Exception:  # of an observer, which belongs to the caller
            traceback.print_exc()


class Job(Live):
    """A job by its id or name (then the newest one). Its values follow the job until it has ended."""

    id = Unicode(read_only=True)
    name = Unicode(read_only=True)
    state = Unicode(read_only=True, help="pending, running, recovering, succeeded, failed or stopped.")
    reason = Unicode(read_only=True)
    ended = Bool(read_only=True)
    step = Int(read_only=True, help="The last step that was committed.")
    steps = Int(None, allow_none=True, read_only=True, help="Steps of this loop in all; None where not known.")
    loss = Float(None, allow_none=True, read_only=True)
    step_time_s = Float(None, allow_none=True, read_only=True)
    world_size = Int(read_only=True, help="Members that train.")
    metrics = Dict(read_only=True, help="The last value of each name that was logged.")
    incidents: List[Any] = List(read_only=True, help="Each fault, with its stages.")

    def __init__(self, job: str, store: str | None = None) -> None:
        """Raises NotFound where there is no such job."""
        super().__init__()
        self._store = Store(store)
        self._job = self._store.job(lookup.job_id(self._store, job))
        self._journal = FoldedJournal(self._job)
        self._reading = threading.Lock()  # of the view, which is folded in place
        self._displays: list[JobDisplay] = []
        self._journal.catch_up()
        self._take()
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> Job:
        """Wait until the job has ended. Raises TimeoutError; an interrupt leaves the job running."""
        self._thread.join(timeout_s)
        if not self.ended:
            raise TimeoutError(
                f"{self.id} is {self.state} at step {self.step}{f'; {self.problem}' if self.problem else ''}"
            )
        return self

    def _follow(self) -> None:
        silence = SupervisorSilence(self._store, lambda: [self._job])
        shown_s = time.monotonic()
        while not self.ended and not self._closing.is_set():
            with self._reading:
                news = self._journal.poll()
            if news:
                silence.heard()
                self._take()
            elif (down_s := silence.down_s()) >= SILENCE_NOTICE_S:
                self._set({"problem": f"the cluster's supervisor has not answered for {down_s:.0f} s"})
                self._store.job(self.id)
            elif self.problem:
                self._set({"problem": ""})
            if self.ended or time.monotonic() - shown_s >= UPDATE_S:
                self._show()
                shown_s = time.monotonic()
            self._closing.wait(0 if self.ended else TICK_S)

    def _take(self) -> None:
        view = self._journal.view
        session = view["session"] or {}
        self._set(
            {
                **{name: view[name] for name in ("id", "name", "state", "reason", "step", "loss", "step_time_s")},
                "world_size": view["world_size"],
                "steps": session.get("total_steps"),
                "metrics": dict(view["metrics"]),
                "incidents": copy.deepcopy(view["incidents"]),
                "ended": view["state"] in TERMINAL_STATES,
                "problem": "",
            }
        )

    def _show(self) -> None:
        with self._reading:
            for shown in self._displays:
                shown.show(self._journal.view)

    def _ipython_display_(self) -> None:
        """The card that a cell has: live in JupyterLab, elsewhere as of the last update of this kernel."""
        with self._reading:
            if not is_kernel(get_ipython()):
                print(report.progress_line(self._journal.view))
                return
            card = JobDisplay(str(self._store.root), self._job.spec().cell_digest, streams=False)
            card.show(self._journal.view)
            self._displays.append(card)

    def __repr__(self) -> str:
        with self._reading:
            return report.progress_line(self._journal.view)


class Cluster(Live):
    """The cluster of the store. Its values follow it until `close`, also while none is running."""

    state = Unicode(read_only=True, help="stopped, starting, running, stopping or lost.")
    reason = Unicode(read_only=True)
    nodes: List[Any] = List(read_only=True, help="Each node, with its state and its jobs.")
    ready = Int(read_only=True, help="Nodes that are up.")
    busy = Int(read_only=True, help="Those of them that have a job.")

    def __init__(self, store: str | None = None) -> None:
        super().__init__()
        self._store = Store(store)
        self._store.refuse_private()
        self._journal = follow_events(self._store.cluster_events)
        self._folded = new_cluster_view()
        self._view: View = {}
        self._take(self._journal.poll())
        self._thread.start()

    def _follow(self) -> None:
        while not self._closing.is_set():
            self._take(self._journal.wait(LOOK_S, self._closing.is_set))
            self._closing.wait(TICK_S)

    def _take(self, events: Iterable[Event]) -> None:
        for event in events:
            apply(self._folded, event)
        now = self._folded | cluster.standing(self._store, self._folded["state"])
        self._view = view = now | {"nodes": [dict(node) for node in now["nodes"]]}  # the fold goes on in its own list
        states = [node["state"] for node in view["nodes"]]
        busy = states.count("busy")
        self._set(
            {
                "state": view["state"],
                "reason": view["reason"],
                "nodes": view["nodes"],
                "busy": busy,
                "ready": busy + states.count("idle"),
            }
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """The table of the nodes, as it is now."""
        line, table = report.cluster_line(self._view), nodes_table(self._view)
        return {"text/plain": f"{line}\n{table.render()}", "text/html": f"<div>{html.escape(line)}</div>{table.html()}"}

    def __repr__(self) -> str:
        return report.cluster_line(self._view)


class LoadProgress(HasTraits):
    """The progress of a load: ``hp.load_model(url, progress=hp.widgets.LoadProgress())``.

    Its values change, and its observers are called, in the thread that loads.
    """

    bytes_done = Int(read_only=True)
    bytes_total = Int(read_only=True)
    bytes_per_s = Float(read_only=True)
    elapsed_s = Float(read_only=True)
    remaining_s = Float(None, allow_none=True, read_only=True)
    first_layer_s = Float(None, allow_none=True, read_only=True, help="When the first block was there; None before.")
    done = Bool(read_only=True)

    def __init__(self, name: str = "load") -> None:
        """``name``: what the display calls it."""
        super().__init__()
        self._name = name
        self._now: Load | None = None
        self._shown: list[str] = []
        self._shown_s = 0.0

    def __call__(self, now: Load) -> None:
        """What `hp.load_model` calls."""
        self._now = now
        with self.hold_trait_notifications():
            for name in self.trait_names():
                self.set_trait(name, getattr(now, name))
        if now.done or time.monotonic() - self._shown_s >= LOAD_SHOWN_S:
            self._shown_s = time.monotonic()
            for identity in self._shown:
                display(self._repr_mimebundle_(), raw=True, display_id=identity, update=True)

    def _ipython_display_(self) -> None:
        identity = uuid4().hex
        display(self._repr_mimebundle_(), raw=True, display_id=identity)
        self._shown.append(identity)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        bar = f'<progress max="{max(self.bytes_total, 1)}" value="{self.bytes_done}"></progress>'
        return {"text/plain": repr(self), "text/html": f"<div>{bar} {html.escape(repr(self))}</div>"}

    def __repr__(self) -> str:
        return f"{self._name}: nothing loaded yet" if self._now is None else sentence(self._name, self._now)
