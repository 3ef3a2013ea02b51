"""JobSpec (the user's request) and LaunchPlan (what a backend starts). Frozen, validated on construction."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from typing import Any

from .errors import SpecError
from .rules import LogRule
from .units import parse_duration

MAX_NODES = 100_000
MAX_SIZES = 1_000
MAX_REPLICA = 64
HANG_TIMEOUT_S = 1.0  # without progress inside a step, while others wait
# parts of checkpointless recovery; a part that is switched off is replaced by the conventional way
COMPONENTS = ("init", "data", "inprocess", "peers")
MAX_CELL_BYTES = 16 * 2**20
TASKS = ("completions", "predict")
BACKENDS = ("local", "slurm", "kubernetes")
STARTUP_DEADLINE = "startup-deadline"
# first sbatch's own options, passed on unchanged; then ours: where elastic nodes come from, where the coordinator
# # listens, how long a started node may take to join
SLURM_OPTIONS = (
    "account", "constraint", "cpus-per-task", "exclude", "gpus-per-node", "gres", "mem", "nodelist", "partition", "qos",
    "reservation", "time", "elastic-partition", "bind", STARTUP_DEADLINE,
)  # fmt: skip
DRIVERS = ("directory", "nfs", "lustre", "juicefs", "seaweedfs", "rclone", "s3")
ACCESS = ("private", "group", "everyone")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}-[a-z2-7]{8}")
_NUMBER = re.compile(r"[0-9]{1,9}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPTION = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
# replaces the value of an environment variable wherever a specification is written or shown
HIDDEN = "***"
_URL_PASSWORD = re.compile(r"://[^/@]*:[^/@]+@")


@dataclass(frozen=True, slots=True)
class ElasticRange:
    """The fewest and the most nodes that the job may run on, and the allowed numbers between where some are not.

    ``sizes`` rise from ``minimum`` to ``maximum``; empty means every number. Raises SpecError.
    """

    minimum: int
    maximum: int
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.maximum <= MAX_NODES:
            raise SpecError(
                f"elastic range {self.minimum}:{self.maximum} is impossible; "
                f"expected 1 <= MIN <= MAX <= {MAX_NODES}, for example --elastic 2:8"
            )
        if not self.sizes:
            return
        if len(self.sizes) > MAX_SIZES:
            raise SpecError(f"{len(self.sizes)} elastic sizes are too many; expected at most {MAX_SIZES}")
        rising = all(low < high for low, high in pairwise(self.sizes))
        if not rising or (self.sizes[0], self.sizes[-1]) != (self.minimum, self.maximum):
            raise SpecError(
                f"elastic sizes {self.sizes} do not rise from {self.minimum} to {self.maximum}; "
                "expected for example --elastic 1,2,4,8"
            )

    @classmethod
    def parse(cls, text: str) -> ElasticRange:
        """Parse ``"MIN:MAX"``, ``"MIN:MAX:STEP"`` or ``"A,B,C"`` in any order; raises SpecError."""
        parts = text.split("," if "," in text else ":")
        if not all(_NUMBER.fullmatch(part.strip()) for part in parts) or len(parts) < 2:
            raise SpecError(_malformed(text))
        numbers = [int(part) for part in parts]
        if "," in text:
            sizes = tuple(sorted(set(numbers)))
            return cls(sizes[0], sizes[-1], sizes)
        if len(numbers) > 3:
            raise SpecError(_malformed(text))
        low, high, step = (*numbers, 1)[:3]
        if step < 1 or (high >= low and (high - low) % step):
            raise SpecError(
                f"elastic range {text!r} is impossible: steps of {step} do not lead from {low} to {high}; "
                "expected for example --elastic 2:8:2"
            )
        every = cls(low, high)
        return cls(low, high, tuple(range(low, high + 1, step))) if step > 1 and high > low else every

    def __str__(self) -> str:
        if not self.sizes:
            return f"{self.minimum}:{self.maximum}"
        steps = {high - low for low, high in pairwise(self.sizes)}
        if len(self.sizes) > 2 and len(steps) == 1:
            return f"{self.minimum}:{self.maximum}:{steps.pop()}"
        return ",".join(map(str, self.sizes))

    def allows(self, nodes: int) -> bool:
        """Whether the job may run on this number of nodes."""
        return nodes in self.sizes if self.sizes else self.minimum <= nodes <= self.maximum

    def fit(self, nodes: int) -> int:
        """The largest allowed number up to `nodes`; 0 where there is none."""
        if nodes < self.minimum:
            return 0
        return self.sizes[bisect_right(self.sizes, nodes) - 1] if self.sizes else min(nodes, self.maximum)

    def clamp(self, wish: int) -> int:
        """The largest allowed number up to `wish`; the smallest allowed number where there is none."""
        return self.fit(wish) or self.minimum


@dataclass(frozen=True, slots=True)
class MountSpec:
    """A shared area: its source, its path in the notebook and its path on a node.

    ``driver`` is one of `DRIVERS` and ``source`` is an export, a bucket or a URL; ``options`` are the
    driver's own. ``credentials`` is the path of a private file of NAME=VALUE lines; empty means the environment. It
    never holds a secret: the table, journals and jobs' environments contain it. ``repository`` is the URL of an object
    store behind the files. ``access``: who may use the shared part. Raises SpecError.
    """

    name: str
    notebook_path: str
    node_path: str
    read_only: bool = False
    driver: str = "directory"
    source: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    credentials: str = ""
    repository: str = ""
    access: str = "private"
    quota_bytes: int | None = None

    def __post_init__(self) -> None:
        validate_name(self.name, "mount name")
        if self.driver not in DRIVERS:
            raise SpecError(f"driver {self.driver!r} is unknown; expected one of {', '.join(DRIVERS)}")
        if self.access not in ACCESS:
            raise SpecError(f"access {self.access!r} is unknown; expected one of {', '.join(ACCESS)}")
        if self.driver != "s3":
            for what, path in (("notebook path", self.notebook_path), ("node path", self.node_path)):
                _check_mount_path(f"{what} of mount {self.name!r}", path)
        if self.credentials:
            _check_mount_path(f"credentials file of mount {self.name!r}", self.credentials)
        if self.quota_bytes is not None and self.quota_bytes < 1:
            raise SpecError(f"quota of mount {self.name!r} is {self.quota_bytes} bytes; expected at least 1, or none")
        for what, text in (("source", self.source), ("repository", self.repository)):
            if "\0" in text or "\n" in text or text.startswith("-"):
                raise SpecError(f"{what} of mount {self.name!r} is {text[:80]!r}; expected an address")
            if _URL_PASSWORD.search(text):
                raise SpecError(
                    f"{what} of mount {self.name!r} holds a password; secrets never go into the mount table: "
                    "put it into the environment, or into a file of mode 0600 named by --credentials"
                )
        for key, value in self.options.items():
            if not _OPTION.fullmatch(key) or not isinstance(value, str) or set("\0\n") & set(value):
                raise SpecError(f"option {key[:40]!r} of mount {self.name!r} is not of the form NAME=VALUE")

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> MountSpec:
        """Build from `asdict`; unknown keys of a newer version are ignored. Raises SpecError."""
        if not isinstance(record, Mapping):
            raise SpecError(f"a mount is a {type(record).__name__}, expected an object")
        known = {f.name for f in fields(cls)}
        try:
            return cls(**{key: value for key, value in record.items() if key in known})
        except (TypeError, AttributeError) as error:
            raise SpecError(f"mount cannot be read: {error}") from error


def _check_mount_path(what: str, path: str) -> None:
    parts = path.split("/")
    if not path.startswith("/") or "\0" in path or "\n" in path or ".." in parts or not path.strip("/"):
        raise SpecError(f"{what} is {path[:80]!r}; expected an absolute path without '..', below '/'")


@dataclass(frozen=True, slots=True)
class ServeSpec:
    """A deployment: the model that it serves, and the limits within which it follows the load.

    ``model``: path or URL of the weights. ``task``: "completions" for the project's decoder, whose shape is in the
    ``config.json`` beside the weights or in ``recipe``; "predict" for a handler, the cell, with ``load(model)`` and
    ``predict(model, inputs)``. ``minimum`` replicas may be 0: then the gateway holds requests until one is ready.
    ``outstanding``: the wanted number of requests per replica; ``slots``: the most that a replica gets. ``queue``: how
    many more requests may wait. ``port`` 0: any free port. Raises SpecError.
    """

    model: str
    task: str = "completions"
    recipe: str = ""
    minimum: int = 1
    port: int = 0
    outstanding: float = 2.0
    slots: int = 8
    queue: int = 256
    request_timeout_s: float = 60.0
    scale_down_delay_s: float = 30.0

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise SpecError(f"task {self.task!r} is unknown; expected one of {', '.join(TASKS)}")
        if not self.model.strip():
            raise SpecError("a deployment needs a model: the path or the URL of its weights")
        if not 0 <= self.minimum <= MAX_NODES or not 0 <= self.port <= 65535:
            raise SpecError(f"minimum is {self.minimum} and port {self.port}; expected 0 or more, at most 65535")
        if not 0 < self.outstanding <= self.slots or self.queue < 0:
            raise SpecError(
                f"{self.outstanding:g} outstanding requests a replica, {self.slots} slots and a queue of {self.queue}; "
                "expected more than 0 requests and at most the slots, and a queue of 0 or more"
            )
        for name, seconds in (("timeout", self.request_timeout_s), ("scale-down delay", self.scale_down_delay_s)):
            if not 0 < seconds < math.inf:
                raise SpecError(f"the {name} is {seconds} s; expected more than 0 seconds")


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The user's request. ``cell_digest`` is the SHA-256 (hex) of the source in the store.

    ``scale_up_delay_s``: how long nodes have to be free before a running job grows onto them. ``grace_s``: how long a
    preempted member may take to leave. ``script_restarts``: how often all ranks are started again after a loss outside
    hp.Session; three, as in torch.distributed's own launcher. ``queue``: whose guaranteed nodes the job may use.
    ``replica``: the number of ranks per node; together they hold one replica of the model. ``serve``: the job is a
    deployment, whose head process is a gateway, with one replica per node. ``script``: the source is the Python file
    ``filename``, not a cell; ``arguments`` are its ``sys.argv[1:]``. ``slurm``: some of `SLURM_OPTIONS`. Values in
    ``env`` may be secrets: only the job's private file (`JobStore.environment`) has them, everywhere else they are
    `HIDDEN`.
    """

    name: str
    cell_digest: str
    nodes: int = 1
    elastic: ElasticRange | None = None
    backend: str = "local"
    priority: int = 0
    spares: int = 1
    seed: int = 0
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    filename: str = "<cell>"
    script: bool = False
    arguments: tuple[str, ...] = ()
    working_directory: str = ""
    python: str = ""
    threads: int = 1
    replica: int = 1
    components: tuple[str, ...] = COMPONENTS
    max_restarts: int = 100
    hang_timeout_s: float = HANG_TIMEOUT_S
    scale_up_delay_s: float = 0.0
    grace_s: float = 30.0
    script_restarts: int = 3
    queue: str = ""
    mounts: tuple[MountSpec, ...] = ()
    origin: Mapping[str, str] = field(default_factory=dict)
    serve: ServeSpec | None = None
    slurm: Mapping[str, str] = field(default_factory=dict)
    log_rules: tuple[LogRule, ...] = ()

    def __post_init__(self) -> None:
        validate_name(self.name, "job name")
        for option, value in self.slurm.items():
            if option not in SLURM_OPTIONS:
                raise SpecError(f"SLURM option {option!r} is unknown; expected one of {', '.join(SLURM_OPTIONS)}")
            if not value or set("\0\n") & set(value):
                raise SpecError(f"SLURM option {option} is {value[:80]!r}; expected a value on one line")
        if STARTUP_DEADLINE in self.slurm and not parse_duration(self.slurm[STARTUP_DEADLINE]) > 0:
            raise SpecError(f"SLURM option {STARTUP_DEADLINE} is 0; expected a time such as 5min")
        if self.slurm and self.backend != "slurm":
            raise SpecError(f"SLURM options belong to --backend slurm; the backend is {self.backend}")
        if not 1 <= self.nodes <= MAX_NODES:
            raise SpecError(f"nodes is {self.nodes}; expected a whole number from 1 to {MAX_NODES}")
        if self.elastic and not self.elastic.allows(self.nodes):
            raise SpecError(
                f"nodes is {self.nodes}, outside the elastic range {self.elastic}; "
                "choose --nodes within MIN:MAX or widen --elastic"
            )
        if not all(isinstance(word, str) and "\0" not in word for word in self.arguments):
            raise SpecError("an argument of the file is not text, or has a NUL character in it")
        if self.queue:
            validate_name(self.queue, "queue name")
        if self.backend not in BACKENDS:
            raise SpecError(f"backend {self.backend!r} is unknown; expected one of {', '.join(BACKENDS)}")
        if not -1000 <= self.priority <= 1000:
            raise SpecError(f"priority is {self.priority}; expected -1000 (lowest) to 1000 (highest)")
        if self.spares < 0 or self.threads < 1 or self.max_restarts < 0 or self.script_restarts < 0:
            raise SpecError("spares and restarts cannot be negative, threads must be at least 1")
        if unknown := [name for name in self.components if name not in COMPONENTS]:
            raise SpecError(f"component {unknown[0]!r} is unknown; expected some of {','.join(COMPONENTS)}, or none")
        if not 1 <= self.replica <= MAX_REPLICA:
            raise SpecError(f"replica is {self.replica}; expected 1 to {MAX_REPLICA} ranks a node")
        if not self.hang_timeout_s > 0:
            raise SpecError(f"hang_timeout_s is {self.hang_timeout_s}; expected more than 0 seconds")
        for name, seconds in (("scale_up_delay_s", self.scale_up_delay_s), ("grace_s", self.grace_s)):
            if not 0 <= seconds < math.inf:
                raise SpecError(f"{name} is {seconds}; expected a number of seconds, 0 or more")
        for number, (name, value) in enumerate(self.env.items(), 1):
            if not is_env_name(name):  # not shown: it may be a secret value in the wrong place
                raise SpecError(
                    f"environment variable number {number} has a name that is not allowed; expected NAME=VALUE with "
                    "letters, digits and '_' in NAME, not beginning with a digit"
                )
            if not isinstance(value, str) or "\0" in value:
                raise SpecError(f"the value of environment variable {name} is not text, or has a NUL character in it")

    @property
    def range(self) -> ElasticRange:
        """The elastic range; a fixed job may only run on exactly its nodes or, after a loss, on fewer."""
        return self.elastic or ElasticRange(1, self.nodes)

    @property
    def start_minimum(self) -> int:
        """Nodes that must be free before the job starts."""
        return self.elastic.minimum if self.elastic else self.nodes

    def clamp(self, wish: int) -> int:
        """The allowed number of nodes nearest to `wish`; only a deployment may have 0."""
        if self.serve is not None and self.serve.minimum == 0 and wish <= 0:
            return 0
        return self.range.clamp(wish)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary; inverse of `from_json`, except that the values of ``env`` are `HIDDEN`."""
        return asdict(self) | {"env": dict.fromkeys(self.env, HIDDEN)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> JobSpec:
        """Build from `to_json`; unknown keys of a newer version are ignored. Raises SpecError."""
        if not isinstance(record, Mapping):
            raise SpecError(f"job specification is a {type(record).__name__}, expected an object")
        known = {f.name for f in fields(cls)}
        values = {key: value for key, value in record.items() if key in known}
        try:
            if values.get("elastic") is not None:
                elastic = dict(values["elastic"])
                values["elastic"] = ElasticRange(**elastic | {"sizes": tuple(elastic.get("sizes", ()))})
            values["components"] = tuple(values.get("components", COMPONENTS))
            values["arguments"] = tuple(values.get("arguments", ()))
            values["log_rules"] = tuple(LogRule(**record) for record in values.get("log_rules", ()))
            values["mounts"] = tuple(map(MountSpec.from_json, values.get("mounts", ())))
            if values.get("serve") is not None:
                known = {f.name for f in fields(ServeSpec)}
                values["serve"] = ServeSpec(**{key: value for key, value in values["serve"].items() if key in known})
            return cls(**values)
        except (TypeError, ValueError, AttributeError) as error:
            raise SpecError(f"job specification cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What a backend starts: one head process, and one process per node. It says nothing about training.

    ``warm_key`` names the preloaded interpreter that may be forked to call ``main()`` of `module`; where none
    matches, the backend starts ``python -m module`` with the same environment. Both get the node's name in
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


def _malformed(text: str) -> str:
    return f"elastic range {text!r} is not of the form MIN:MAX, MIN:MAX:STEP or A,B,C, for example --elastic 2:8"


def validate_name(name: str, what: str) -> str:
    """Return `name` if it is safe as a file name and a label; raises SpecError."""
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"{what} {name[:80]!r} is not allowed; "
            "use 1 to 40 letters, digits, '-' or '_', starting with a letter or digit"
        )
    return name


def is_env_name(text: str) -> bool:
    """Return whether `text` can be the name of an environment variable."""
    return _ENV_NAME.fullmatch(text) is not None


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
