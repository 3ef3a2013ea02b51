"""What the user asked (JobSpec) and what a backend is told (LaunchPlan). Frozen, validated on construction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from .errors import SpecError

MAX_NODES = 100_000
MAX_CELL_BYTES = 16 * 2**20
BACKENDS = ("local", "slurm", "kubernetes")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}-[a-z2-7]{8}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ElasticRange:
    """The fewest and the most nodes the job may run on."""

    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.maximum <= MAX_NODES:
            raise SpecError(
                f"elastic range {self.minimum}:{self.maximum} is impossible; "
                f"expected 1 <= MIN <= MAX <= {MAX_NODES}, for example --elastic 2:8"
            )

    @classmethod
    def parse(cls, text: str) -> ElasticRange:
        """Parse ``"MIN:MAX"``; raises SpecError."""
        low, colon, high = text.partition(":")
        if not (colon and low.strip().isdecimal() and high.strip().isdecimal()):
            raise SpecError(f"elastic range {text!r} is not of the form MIN:MAX, for example --elastic 2:8")
        return cls(int(low), int(high))

    def __str__(self) -> str:
        return f"{self.minimum}:{self.maximum}"


@dataclass(frozen=True, slots=True)
class MountSpec:
    """A shared area: where the notebook sees it and where a node sees it."""

    name: str
    notebook_path: str
    node_path: str
    read_only: bool = False

    def __post_init__(self) -> None:
        validate_name(self.name, "mount name")


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What the user asked. ``cell_digest`` is the SHA-256 (hex) of the source in the store."""

    name: str
    cell_digest: str
    nodes: int = 1
    elastic: ElasticRange | None = None
    backend: str = "local"
    priority: int = 0
    spares: int = 1
    seed: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    filename: str = "<cell>"
    working_directory: str = ""
    python: str = ""
    threads: int = 1
    max_restarts: int = 100
    hang_timeout_s: float = 1.0
    mounts: tuple[MountSpec, ...] = ()
    origin: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        validate_name(self.name, "job name")
        if not 1 <= self.nodes <= MAX_NODES:
            raise SpecError(f"nodes is {self.nodes}; expected a whole number from 1 to {MAX_NODES}")
        if self.elastic and not self.elastic.minimum <= self.nodes <= self.elastic.maximum:
            raise SpecError(
                f"nodes is {self.nodes}, outside the elastic range {self.elastic}; "
                "choose --nodes within MIN:MAX or widen --elastic"
            )
        if self.backend not in BACKENDS:
            raise SpecError(f"backend {self.backend!r} is unknown; expected one of {', '.join(BACKENDS)}")
        if not -1000 <= self.priority <= 1000:
            raise SpecError(f"priority is {self.priority}; expected -1000 (lowest) to 1000 (highest)")
        if self.spares < 0 or self.threads < 1 or self.max_restarts < 0:
            raise SpecError("spares and max_restarts cannot be negative, threads must be at least 1")
        if not self.hang_timeout_s > 0:
            raise SpecError(f"hang_timeout_s is {self.hang_timeout_s}; expected more than 0 seconds")
        for name, value in self.env.items():
            if not _ENV_NAME.fullmatch(name) or "\0" in value:
                raise SpecError(f"environment variable {name!r} is not of the form NAME=VALUE")

    @property
    def range(self) -> ElasticRange:
        """The elastic range; a fixed job may only run on exactly its nodes or, after a loss, on fewer."""
        return self.elastic or ElasticRange(1, self.nodes)

    @property
    def start_minimum(self) -> int:
        """Nodes that must be free before the job starts."""
        return self.elastic.minimum if self.elastic else self.nodes

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary; inverse of `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> JobSpec:
        """Build from `to_json`; unknown keys of a newer version are ignored. Raises SpecError."""
        if not isinstance(record, Mapping):
            raise SpecError(f"job specification is a {type(record).__name__}, expected an object")
        known = {f.name for f in fields(cls)}
        values = {key: value for key, value in record.items() if key in known}
        try:
            if values.get("elastic") is not None:
                values["elastic"] = ElasticRange(**values["elastic"])
            values["mounts"] = tuple(MountSpec(**mount) for mount in values.get("mounts", ()))
            return cls(**values)
        except (TypeError, AttributeError) as error:
            raise SpecError(f"job specification cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What a backend starts: one head process, and one process a node. Not one word about training.

    ``warm_key`` names the preloaded interpreter that may be forked to call ``main()`` of `module`; where none
    matches, the backend runs ``python -m module`` afresh with the same environment. Both get the node's name in
    $HYPERPOD_NODE and write their own diagnostics to ``log_directory/<node>.log``.
    """

    job_id: str
    module: str
    head_module: str
    arguments: tuple[str, ...]
    env: Mapping[str, str]
    python: str
    working_directory: str
    log_directory: str
    warm_key: str


@dataclass(frozen=True, slots=True)
class Handle:
    """A backend's reference to one process it started."""

    job_id: str
    node: str
    pid: int


def validate_name(name: str, what: str) -> str:
    """Return `name` if it is safe as a file name and a label; raises SpecError."""
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"{what} {name[:80]!r} is not allowed; "
            "use 1 to 40 letters, digits, '-' or '_', starting with a letter or digit"
        )
    return name


def is_job_id(text: str) -> bool:
    """Return whether `text` has the form of a job id."""
    return _JOB_ID.fullmatch(text) is not None


def validate_job_id(job_id: str) -> str:
    """Return `job_id` if it has the form NAME-xxxxxxxx; raises SpecError. Keeps paths inside the store."""
    if not is_job_id(job_id):
        raise SpecError(
            f"job id {job_id[:80]!r} is not of the form NAME-xxxxxxxx; `jupyter hyperpod list` shows the ids"
        )
    return job_id
