"""RunRecord: what is known of a job, read once from its journal and its directory, in bounded memory.

It is for pages and comparisons, of jobs that run as well as of those that ended, by this version or an earlier one. Of
environment variables it has the names, never the values.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from ...core.errors import HyperpodError
from ...core.events import TERMINAL_STATES, Event
from ...core.incidents import Incident, fold_stage
from ...core.kept import rate
from ...core.spec import JobSpec
from ...core.views import UNFOLDABLE, View, is_fenced
from ...storage.fingerprint import record as fingerprints
from ...storage.folded import FoldedJournal
from ...storage.journal import replay_events
from ...storage.output.output_choice import OutputChoice
from ...storage.output.output_range import last_output
from ...storage.resources.node_uses import NodeUses
from ...storage.resources.node_uses import read as read_uses
from ...storage.source_record import FOLDER as SOURCES
from ...storage.store import JobStore, Store
from ...system.users import user_name
from .. import watch
from ..sentences import event_sentence
from ..sweeps.metric import Metric
from .losses import ExactLosses
from .lost_time import LostTime
from .node_lanes import NodeLanes
from .series import Series

LOSS, RATE = "loss", "samples/s"
OUTPUT_LINES, OUTPUT_CHARACTERS = 200, 48_000
LINE_CHARACTERS = 2000
METRICS_KEPT = 1000
SESSIONS_KEPT = 100
NOTES_KEPT = 200
DECISIONS_KEPT = 1000
SOURCES_KEPT = 500
SOURCE_BYTES = 4 << 20
_NOTES = ("fault.injected", "command.done", "checkpoint.loaded", "checkpoint.refused", "session.closed")
KINDS = (
    *("step.committed", "metric.logged", "generation.formed", "member.lost", "incident.stage", "decision.made"),
    *("session.opened", "checkpoint.saved", *_NOTES),
)
# fields of a specification that are shown elsewhere, or that say nothing of the run
_NO_PARAMETERS = frozenset(
    {"env", "env_from", "cell_digest", "origin", "name", "python", "working_directory", "trial", "pull"}
)


@dataclass
class RunRecord:
    """``curves``: (session, name) -> values by step, of losses, throughput and all that was logged.

    ``decisions``: (time, policy, sentence) of those made while an incident was open. ``notes``: (time, sentence).
    """

    job_id: str
    view: View
    now_s: float
    owner: str = ""
    spec: JobSpec | None = None
    hides_environment: bool = False
    metric: tuple[str, str] | None = None  # of a trial: what the sweep judges by, and its value
    source: str | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    output: list[tuple[str, str]] = field(default_factory=list)
    curves: dict[tuple[int, str], Series] = field(default_factory=dict)
    losses: dict[int, ExactLosses] = field(default_factory=dict)
    sizes: dict[int, dict[str, Any]] = field(default_factory=dict)
    incidents: list[Incident] = field(default_factory=list)
    incident_count: int = 0
    decisions: deque[tuple[float, str, str]] = field(default_factory=lambda: deque(maxlen=DECISIONS_KEPT))
    notes: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=NOTES_KEPT))
    lanes: NodeLanes = field(default_factory=NodeLanes)
    used: NodeUses = field(default_factory=NodeUses)
    time: LostTime = field(default_factory=LostTime)
    left_out: int = 0  # logged values whose names came after METRICS_KEPT others
    problems: list[str] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.view["state"] in TERMINAL_STATES

    @property
    def end_s(self) -> float:
        """When it ended, or the present."""
        return float(self.view["ended_s"] or self.now_s)

    @property
    def newest_session(self) -> int:
        """The number of the session that began last."""
        return max(self.losses, default=1)

    def metric_names(self) -> list[str]:
        """The names of all values that the program logged, in the order in which they came."""
        return list(dict.fromkeys(name for _, name in self.curves if name not in (LOSS, RATE)))

    def parameters(self) -> dict[str, str]:
        """The fields of the specification that differ from their defaults, and the sizes of the newest session."""
        found = chosen(self.spec) if self.spec else {}
        sizes = self.sizes.get(self.newest_session) or self.sizes.get(1, {})
        names = ("total_steps", "global_batch", "micro_batch", "parameters", "state_bytes")
        return found | {f"session.{name}": str(sizes[name]) for name in names if sizes.get(name)}

    def hide_environment(self) -> None:
        """For readers who may not see environments: none is known any more."""
        self.fingerprint, self.hides_environment = {}, True

    def environment(self) -> dict[str, str]:
        """Interpreter, machine, project, folder and variables: of the job's variables the names, and the references of
        those that are fetched; nothing where the environment is not to be seen."""
        if self.hides_environment:
            return {}
        found: dict[str, Any] = {}
        if self.spec is not None:
            found = {"interpreter": self.spec.python, "working directory": self.spec.working_directory}
        python, git = self.fingerprint.get("python") or {}, self.fingerprint.get("git") or {}
        found["Python"] = python.get("version", "")
        found |= {**(self.fingerprint.get("machine") or {}), **(self.fingerprint.get("devices") or {})}
        found |= {"commit": git.get("commit", ""), "branch": git.get("branch", "")}
        found |= {f"not committed: {name}": digest for name, digest in (git.get("files") or {}).items()}
        if self.spec is not None:
            found |= dict.fromkeys((f"${name}" for name in self.spec.env), "set, its value is not kept")
            found |= {f"${name}": reference for name, reference in self.spec.env_from.items()}
        return {name: str(value) for name, value in found.items() if value}

    def packages(self, by_version: Collection[str] = ()) -> dict[str, str]:
        """Name -> version, a few characters of the digest of the files where it is known, and the origin.

        ``by_version``: packages of which only the version is told.
        """
        found = fingerprints.packages_of(self.fingerprint)
        more = {
            name: [f"({one.content[:8]})" if one.content else "", one.origin]
            for name, one in found.items()
            if name not in by_version
        }
        return {name: " ".join(filter(None, [one.version, *more.get(name, [])])) for name, one in found.items()}


def read(store: Store, job_id: str, *, output: bool = True) -> RunRecord:
    """Read a job. Raises NotFound and SpecError for a wrong id; what else cannot be read is among its problems."""
    job = store.job(job_id)
    record = read_journal(job)
    _read_directory(store, job, record)
    if output:
        record.used = read_uses(job)
        with suppress(HyperpodError, OSError):
            choice = OutputChoice(tail=OUTPUT_LINES)
            shown = watch.OutputLines(record.view, choice)
            lines = list(last_output(job, choice, lambda events: shown.feed_all(events, ends=True)))
            record.output = _bounded(lines or _held(record.view))
    return record


def read_journal(job: JobStore) -> RunRecord:
    """What the journal of a job tells, without what lies beside it."""
    journal = FoldedJournal(job)
    record = RunRecord(job.id, journal.catch_up(), time.time())
    record.problems += journal.problems
    reader = _Reader(record)
    folded = dict(record.view["seen"])  # what has come since is in neither
    for event in replay_events(job.events, {}, KINDS):
        try:
            if event.seq <= folded.get(event.writer, 0):
                reader.take(event)
        except UNFOLDABLE as error:
            if len(record.problems) < NOTES_KEPT:
                record.problems.append(f"{event.kind} number {event.seq} of {event.writer} is left out: {error!r}")
    record.time.end(record.end_s, over=record.over)
    record.lanes.end(record.end_s)
    return record


class _Reader:
    """Takes up the events of one job in the order of time."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._fenced: dict[str, float] = {}
        self._session = 1
        self._last: tuple[int, int, float] = (0, 0, 0.0)  # the session, the step and the time of the last commit
        self._open: set[Any] = set()  # incidents that are not over
        self._seen: set[Any] = set()
        self._names: set[str] = set()

    def take(self, event: Event) -> None:
        record, kind = self._record, event.kind
        if kind == "step.committed":
            if not is_fenced(self._fenced, event):
                self._commit(event)
            return
        if kind == "metric.logged":
            self._logged(event)
            return
        record.time.add(event)
        record.lanes.add(event)
        if kind == "member.lost":
            self._fenced[event.data["member"]] = event.time_s
        elif kind == "incident.stage":
            self._incident(event)
        elif kind == "decision.made" and self._open:
            record.decisions.append((event.time_s, str(event.data["policy"]), str(event.data["reason"])))
        elif kind == "session.opened":
            self._session = max(self._session, event.data.get("number", 1))
            record.sizes[self._session] = dict(event.data)
        elif kind == "session.closed":
            closed = self._losses(self._session)
            closed.closed_step, closed.digest = event.data["step"], str(event.data["digest"])
        if kind in _NOTES:
            record.notes.append((event.time_s, event_sentence(event)))

    def _incident(self, event: Event) -> None:
        data = event.data
        fold_stage(self._record.incidents, event)
        self._seen.add(data["incident"])
        self._record.incident_count = len(self._seen)
        if data["stage"] == "resumed":
            self._open.discard(data["incident"])
        else:
            self._open.add(data["incident"])

    def _losses(self, session: int) -> ExactLosses:
        return self._record.losses.setdefault(session, ExactLosses(session))

    def _commit(self, event: Event) -> None:
        data = event.data
        session, step = data.get("session", 1), data["step"]
        self._session = max(self._session, session)
        count = data.get("steps", 1)
        self._losses(session).add(step, data["loss_hex"], count)
        before_session, before_step, before_s = self._last
        fresh = (session, step) > (before_session, before_step)
        self._record.time.add(event, counts=fresh)
        if not fresh:
            return
        self._last = session, step, event.time_s
        self._add(session, LOSS, event, data["loss"])
        if session == before_session and before_step:
            self._add(session, RATE, event, rate([before_step, before_s, 0], [step, event.time_s, data["samples"]]))

    def _logged(self, event: Event) -> None:
        for name, value in event.data["values"].items():
            if name not in self._names and len(self._names) >= METRICS_KEPT:
                self._record.left_out += 1
                continue
            self._names.add(name)
            shown = f"{name} (logged)" if name in (LOSS, RATE) else name
            number = isinstance(value, int | float)
            self._add(self._session, shown, event, float(value) if number else None)

    def _add(self, session: int, name: str, event: Event, value: float | None) -> None:
        curves = self._record.curves
        if (session, name) not in curves and len(curves) >= METRICS_KEPT + 2 * SESSIONS_KEPT:
            return
        curves.setdefault((session, name), Series()).add(event.data["step"], value, event.time_s)


def _read_directory(store: Store, job: JobStore, record: RunRecord) -> None:
    """What is in the job's directory beside its journal: an old job, or one of another user, may lack any of it."""
    with suppress(OSError):
        record.owner = user_name(job.path.stat().st_uid)
    with suppress(HyperpodError, OSError):
        record.spec = job.spec()
        if record.spec.trial is not None:
            metric = Metric(str(record.spec.trial.plan.get("metric", LOSS)), job.path)
            record.metric = metric.name, metric.text(record.view)
        record.source = store.cell(record.spec.cell_digest)
    with suppress(HyperpodError, OSError):
        record.fingerprint = fingerprints.of_job(job.path)
    with suppress(OSError):
        for path in sorted((job.path / SOURCES).iterdir())[:SOURCES_KEPT]:
            if path.is_file() and path.stat().st_size <= SOURCE_BYTES:
                record.sources[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()


def chosen(spec: JobSpec) -> dict[str, str]:
    """The fields that differ from their defaults, as text."""
    found = {}
    for one in fields(spec):
        default = one.default if one.default_factory is MISSING else one.default_factory()
        value = getattr(spec, one.name)
        if one.name not in _NO_PARAMETERS and value != default:
            found[one.name] = _text(value)
    trial = {f"sweep.{name}": str(value) for name, value in spec.trial.values.items()} if spec.trial else {}
    return {"nodes": str(spec.nodes), "seed": str(spec.seed)} | found | trial


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={one}" for name, one in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value)


def _held(view: View) -> list[tuple[str, str]]:
    """The output that the view holds, of a journal whose files do not say which of them hold output."""
    return [(str(one["stream"]), line) for one in view["output"] for line in str(one["text"]).splitlines()]


def _bounded(lines: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The last lines, as far as all together are not too long."""
    kept: list[tuple[str, str]] = []
    size = 0
    for stream, line in reversed(lines):
        line = line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]}…"
        size += len(line) + 1
        if size > OUTPUT_CHARACTERS:
            break
        kept.append((stream, line))
    return kept[::-1]
