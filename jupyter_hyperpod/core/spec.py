"""JobSpec (the user's request) and LaunchPlan (what a backend starts). Frozen, validated on construction."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from . import backend_options, env_references
from .backends import BACKENDS, DEFAULT_BACKEND
from .elastic import MAX_NODES, ElasticRange
from .errors import SpecError
from .mount_spec import MountSpec
from .names import is_env_name, is_job_id, validate_name
from .rules import LogRule
from .units import format_bytes, plural

MAX_REPLICA = 64
OUTPUT_CAP, LEAST_OUTPUT_CAP = 128_000_000, 1_000_000  # bytes on the disk, of each node
HANG_TIMEOUT_S = 1.0  # without progress inside a step, while others wait
# parts of checkpointless recovery; a part that is switched off is replaced by the conventional way
COMPONENTS = ("init", "data", "inprocess", "peers")
# how members exchange gradients; "auto" decides by the device of the parameters
COLLECTIVES = ("auto", "host", "gloo", "nccl")
MAX_CELL_BYTES = 16 * 2**20
TASKS = ("completions", "predict", "engine")
# replaces the value of an environment variable wherever a specification is written or shown
TURN_VARIABLE = "HYPERPOD_TURN"  # in the environment of a job's head
HIDDEN = "***"
# the address of a deployment's model, where parts of it may be secret
MODEL_VARIABLE = "HYPERPOD_MODEL_URL"
# what a replica fills in where an engine's command has the word in braces
ENGINE_WORDS = {
    "model": "path of the model on the node",
    "port": "port at which the engine has to listen",
    "host": "address at which it has to listen",
    "name": "name of the deployment",
    "device": "cuda or cpu",
    "threads": "CPU threads of a replica",
}
_IN_BRACES = re.compile(r"\{([A-Za-z_]\w*)\}")


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Another HTTP server with OpenAI's API, which each replica runs as its child.

    ``command``: its arguments, in which words of `ENGINE_WORDS` stand in braces; no shell reads them. ``ready``: paths,
    of which the first that the engine knows says whether it is ready. ``metrics``: path of its metrics, "" for none;
    ``running`` and ``waiting``: names of the numbers of its requests, of which the first that is there counts.
    ``model_name``: what the engine calls the model, where clients may call it by the deployment's name all the same.
    ``start_timeout_s``: how long it may take until it is ready. Raises SpecError.
    """

    name: str
    command: tuple[str, ...]
    ready: tuple[str, ...] = ("/health", "/v1/models")
    metrics: str = ""
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    model_name: str = ""
    start_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        words = {word for part in (*self.command, self.model_name) for word in _IN_BRACES.findall(part)}
        known = ", ".join(f"{{{word}}} ({what})" for word, what in ENGINE_WORDS.items())
        if unknown := sorted(words - ENGINE_WORDS.keys()):
            raise SpecError(f"the engine's command has {{{unknown[0]}}}; expected some of {known}")
        if not self.command or "port" not in words:
            shown = " ".join(self.command)[:200]
            raise SpecError(
                f"the engine's command {shown!r} has no {{port}}, so it would not listen where the replica asks it; "
                f"it may have {known}"
            )
        if not 0 < self.start_timeout_s < math.inf:
            raise SpecError(f"the start timeout is {self.start_timeout_s} s; expected more than 0 seconds")

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> EngineSpec:
        """Build from a dictionary, also of a newer version. Raises SpecError, TypeError."""
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in record.items()}
        return cls(**{key: value for key, value in values.items() if key in known})


def filled_in(part: str, values: Mapping[str, str]) -> str:
    """A part of an engine's command with the values of the words in braces; all other braces stay."""
    return _IN_BRACES.sub(lambda found: values[found[1]], part)


@dataclass(frozen=True, slots=True)
class ServeSpec:
    """A deployment: the model that it serves, and the limits within which it follows the load.

    ``model``: path or URL of the weights; the whole URL is in `MODEL_VARIABLE` where parts of it may be secret.
    ``task``: "completions" for the project's decoder, whose shape is in the ``config.json`` beside the weights or in
    ``recipe``; "predict" for a handler, the cell, with ``load(model)`` and ``predict(model, inputs)``; "engine" for
    another server, ``engine``. ``minimum`` replicas may be 0: then the gateway holds requests until one is ready.
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
    engine: EngineSpec | None = None

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise SpecError(f"task {self.task!r} is unknown; expected one of {', '.join(TASKS)}")
        if (self.task == "engine") != (self.engine is not None):
            raise SpecError(f"the task is {self.task!r}; expected 'engine' exactly where there is an engine")
        if not self.model.strip():
            raise SpecError("a deployment needs a model: the path or the URL of its weights")
        if not 0 <= self.minimum <= MAX_NODES:
            raise SpecError(f"the fewest replicas are {self.minimum}; expected a whole number from 0 to {MAX_NODES}")
        if not 0 <= self.port <= 65535:
            raise SpecError(f"the port is {self.port}; expected a number from 1 to 65535, or 0 for any free one")
        if not 0 < self.outstanding <= self.slots or self.queue < 0:
            raise SpecError(
                f"{self.outstanding:g} outstanding requests a replica, {self.slots} slots and a queue of {self.queue}; "
                "expected more than 0 requests and at most the slots, and a queue of 0 or more"
            )
        for name, seconds in (("timeout", self.request_timeout_s), ("scale-down delay", self.scale_down_delay_s)):
            if not 0 < seconds < math.inf:
                raise SpecError(f"the {name} is {seconds} s; expected more than 0 seconds")

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ServeSpec:
        """Build from a dictionary, also of a newer version. Raises SpecError, TypeError."""
        values = {key: value for key, value in record.items() if key in {f.name for f in fields(cls)}}
        if values.get("engine") is not None:
            values["engine"] = EngineSpec.from_json(values["engine"])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """A job is one trial of a sweep; the jobs of a sweep are its only record.

    ``sweep``: the sweep's id. ``number``: 1 for its first trial. ``values``: what this trial gives to each name.

    ``plan``: what the whole sweep tries, the same in each of its trials (`control.sweeps.plan.SweepPlan`), so that one
    of them is enough to go on with the sweep. Raises SpecError.
    """

    sweep: str
    number: int
    values: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not is_job_id(self.sweep) or not self.number >= 1:
            raise SpecError(
                f"trial {self.number} of sweep {self.sweep[:80]!r}: expected an id NAME-xxxxxxxx and 1 or more"
            )

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> TrialSpec:
        """Build from a JSON object; unknown keys of a newer version are ignored."""
        known = {one.name for one in fields(cls)}
        return cls(**{key: value for key, value in record.items() if key in known})


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The user's request. ``cell_digest`` is the SHA-256 (hex) of the source in the store.

    ``scale_up_delay_s``: how long nodes have to be free before a running job grows onto them. ``grace_s``: how long a
    preempted member may take to leave. ``script_restarts``: how often all ranks are started again after a loss outside
    hp.Session; three, as in torch.distributed's own launcher. ``queue``: whose guaranteed nodes the job may use.
    ``collectives``: one of `COLLECTIVES`. ``output_cap``: bytes that the output of each node may take on the disk.
    ``replica``: the number of ranks per node; together they hold one replica of the model. ``serve``: the job is a
    deployment, whose head process is a gateway, with one replica per node. ``script``: the source is the Python file
    ``filename``, not a cell; ``arguments`` are its ``sys.argv[1:]``. ``include``: folders whose sources are copied into
    the job, and can be imported.
    ``pull``: names of the cell whose values the notebook gets. ``slurm``, ``kubernetes``: options of that backend, by
    the tables in `backend_options`. Values in ``env`` may be secrets: only the job's private file
    (`JobStore.environment`) has them, everywhere else they are `HIDDEN`. ``env_from``: variables whose values each node
    fetches itself, with references (`EnvReference`). ``trial``: the job is one trial of a sweep.
    """

    name: str
    cell_digest: str
    nodes: int = 1
    elastic: ElasticRange | None = None
    backend: str = DEFAULT_BACKEND
    priority: int = 0
    spares: int = 1
    seed: int = 0
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    env_from: Mapping[str, str] = field(default_factory=dict)
    filename: str = "<cell>"
    script: bool = False
    arguments: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    pull: tuple[str, ...] = ()
    working_directory: str = ""
    python: str = ""
    threads: int = 1
    replica: int = 1
    components: tuple[str, ...] = COMPONENTS
    collectives: str = "auto"
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
    kubernetes: Mapping[str, str] = field(default_factory=dict)
    log_rules: tuple[LogRule, ...] = ()
    output_cap: int = OUTPUT_CAP
    trial: TrialSpec | None = None

    def __post_init__(self) -> None:
        validate_name(self.name, "job name")
        for backend in backend_options.TABLES:
            backend_options.check(backend, self.backend, getattr(self, backend))
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
        if self.serve is not None and backend_options.has_remote_head(self.backend_options):
            raise SpecError(
                "a deployment cannot have its head in a pod: its gateway runs where clients reach it, beside its "
                "supervisor; expected head=here, or no head at all"
            )
        backend_options.kept_pods(self.backend_options, self.serve is not None)
        if not -1000 <= self.priority <= 1000:
            raise SpecError(f"priority is {self.priority}; expected -1000 (lowest) to 1000 (highest)")
        if self.spares < 0 or self.threads < 1 or self.max_restarts < 0 or self.script_restarts < 0:
            raise SpecError("spares and restarts cannot be negative, threads must be at least 1")
        if unknown := [name for name in self.components if name not in COMPONENTS]:
            raise SpecError(f"component {unknown[0]!r} is unknown; expected some of {','.join(COMPONENTS)}, or none")
        if self.collectives not in COLLECTIVES:
            raise SpecError(f"collectives is {self.collectives!r}; expected one of {', '.join(COLLECTIVES)}")
        if not 1 <= self.replica <= MAX_REPLICA:
            raise SpecError(f"replica is {self.replica}; expected 1 to {MAX_REPLICA} ranks a node")
        if not LEAST_OUTPUT_CAP <= self.output_cap:
            given, least = format_bytes(self.output_cap), format_bytes(LEAST_OUTPUT_CAP)
            raise SpecError(f"output_cap is {given}; expected {least} or more, so that the newest output is there")
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
        env_references.check(self.env_from, self.env)

    @property
    def backend_options(self) -> Mapping[str, str]:
        """The job's options for its backend."""
        return getattr(self, self.backend) if self.backend in backend_options.TABLES else {}

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

    def check_target(self, target: int, job_id: str) -> None:
        """Raise SpecError for a number of nodes that the job may not have."""
        if self.serve is not None:
            low, high = self.serve.minimum, self.range.maximum
            if not low <= target <= high:
                wrong = f"{plural(target, 'replica')} is outside the range {low}:{high} of {job_id}"
                raise SpecError(f"{wrong}; serve it with a wider --replicas MIN:MAX")
        elif not self.range.allows(target):
            what = "not one of the sizes" if self.range.sizes else "outside the range"
            wrong = f"{plural(target, 'node')} is {what} {self.range} of {job_id}"
            raise SpecError(f"{wrong}; submit with a wider --elastic MIN:MAX")

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
            values["include"] = tuple(values.get("include", ()))
            values["pull"] = tuple(values.get("pull", ()))
            values["log_rules"] = tuple(LogRule(**record) for record in values.get("log_rules", ()))
            values["mounts"] = tuple(map(MountSpec.from_json, values.get("mounts", ())))
            if values.get("trial") is not None:
                values["trial"] = TrialSpec.from_json(values["trial"])
            if values.get("serve") is not None:
                values["serve"] = ServeSpec.from_json(values["serve"])
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
