"""The options that a job may have for its backend, as in `--slurm OPTION=VALUE`: one table per backend, and its checks.

A specification keeps them in a field with the backend's name (`JobSpec.slurm`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .errors import SpecError
from .options import near_matches
from .units import parse_duration

BIND, STARTUP_DEADLINE = "bind", "startup-deadline"
HEAD, POD = "head", "pod"  # where the head of a job runs: beside its submitter, or in a pod of its own
WITHIN = "within"  # what its own nodes read of a job whose head is in a pod and shares no directory with them
HEAD_STORE, HEAD_CLAIM, ACCOUNT = "head-store", "head-claim", "account"
OWN_STORE = "/hyperpod"  # where each pod has a store of its own
POD_ADDRESS = "HYPERPOD_POD_ADDRESS"  # the address of the head's pod, in its environment
USER, FS_GROUP = "user", "fs-group"
KEEP_WARM = "keep-warm"
OPERATOR, HYPERPOD = "operator", "hyperpod"  # what makes the pods of a job's nodes, instead of plain Jobs
OF_SUBMITTER = (HEAD, HEAD_STORE, HEAD_CLAIM, ACCOUNT, "context", BIND)  # what a head in a pod need not know


@dataclass(frozen=True, slots=True)
class OptionTable:
    """A backend's options: name -> its check, which raises SpecError.

    ``title``: what people call the backend. ``examples``: some of them, for the help. ``placing``: those that tell
    which nodes the job may get, and how much of each. ``needed``: of each group a job has to have one, with the reason.
    """

    title: str
    checks: Mapping[str, Callable[[str], object]]
    examples: str
    placing: tuple[str, ...]
    needed: tuple[tuple[tuple[str, ...], str], ...] = ()


def _any(value: str) -> None:
    """Whatever is on one line."""


def _deadline(value: str) -> None:
    if not parse_duration(value) > 0:
        raise SpecError("it is 0; expected a time such as 5min")


@dataclass(frozen=True, slots=True)
class SharedDirectory:
    """A directory that all pods of a job have at the same path as this machine: of a claim, or of the node itself.

    ``within``: the directory of the claim's volume that is meant; "" is all of it.
    """

    path: str
    claim: str = ""
    read_only: bool = False
    within: str = ""


def shared_directories(options: Mapping[str, str]) -> list[SharedDirectory]:
    """What ``claim=NAME[/DIRECTORY]:/PATH[:ro],…`` and ``host-path=/PATH[:ro],…`` mean. Raises SpecError."""
    found = [_shared(word, claimed=True) for word in _words(options.get("claim", ""))]
    found += [_shared(word, claimed=False) for word in _words(options.get("host-path", ""))]
    for shared in found:
        if sum(other.path == shared.path for other in found) > 1:
            raise SpecError(f"{shared.path} is given twice; expected one claim or directory for each path")
    return found


def pairs(value: str) -> dict[str, str]:
    """What ``KEY=VALUE,KEY=VALUE`` means. Raises SpecError."""
    found: dict[str, str] = {}
    for word in _words(value):
        name, separator, what = word.partition("=")
        if not separator or not name or not what or name in found:
            raise SpecError(f"{word[:80]!r} is not of the form KEY=VALUE, or a second one of its kind")
        found[name] = what
    return found


def _words(value: str) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()]


def _shared(word: str, claimed: bool) -> SharedDirectory:
    name, _, rest = word.partition(":") if claimed else ("", "", word)
    claim, inside, within = name.partition("/")
    path, _, mode = rest.partition(":")
    form = f"{'NAME:' if claimed else ''}/PATH or {'NAME:' if claimed else ''}/PATH:ro"
    if not path.startswith("/") or mode not in ("", "ro") or (claimed and not _SUBDOMAIN.fullmatch(claim)):
        raise SpecError(f"{word[:80]!r} is not of the form {form}")
    if {"", ".", ".."} & set(path[1:].split("/")):
        raise SpecError(f"{path[:80]!r} is not a plain path; expected one such as /fsx/team")
    if inside and {"", ".", ".."} & set(within.split("/")):
        raise SpecError(f"{within[:80]!r} is no directory of the claim {claim}; expected for example {claim}/models")
    return SharedDirectory(path, claim, mode == "ro", within)


@dataclass(frozen=True, slots=True)
class LabelRule:
    """What the labels of a node have to be: ``operator`` is a word of Kubernetes, In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels is meant. As in Kubernetes, NotIn holds where there is no such label."""
        if self.operator in ("Exists", "DoesNotExist"):
            return (self.key in labels) == (self.operator == "Exists")
        return (labels.get(self.key) in self.values) == (self.operator == "In")


def label_rules(value: str) -> list[LabelRule]:
    """What ``KEY=VALUE|VALUE,KEY!=VALUE,KEY,!KEY`` means; all of them have to hold. Raises SpecError."""
    return [_label_rule(word) for word in _words(value)]


def _label_rule(word: str) -> LabelRule:
    name, separator, told = word.partition("=")
    differs = bool(separator) and name.endswith("!")
    key = name.removesuffix("!") if separator else word.removeprefix("!")
    values = tuple(told.split("|")) if separator else ()
    if not _KEY.fullmatch(key) or not all(_VALUE.fullmatch(one) for one in values):
        raise SpecError(f"{word[:80]!r} is not of the form KEY=VALUE|VALUE, KEY!=VALUE|VALUE, KEY or !KEY")
    if separator:
        return LabelRule(key, "NotIn" if differs else "In", values)
    return LabelRule(key, "DoesNotExist" if word.startswith("!") else "Exists")


@dataclass(frozen=True, slots=True)
class Toleration:
    """A taint that a job accepts; ``value`` None is any value, ``effect`` "" every effect."""

    key: str
    value: str | None = None
    effect: str = ""


def tolerations(value: str) -> list[Toleration]:
    """What ``KEY[=VALUE][:EFFECT],…`` means. Raises SpecError."""
    return [_toleration(word) for word in _words(value)]


def _toleration(word: str) -> Toleration:
    taint, separator, effect = word.partition(":")
    key, equals, wanted = taint.partition("=")
    if not _KEY.fullmatch(key) or (wanted and not _VALUE.fullmatch(wanted)) or (separator and effect not in _EFFECTS):
        raise SpecError(
            f"{word[:80]!r} is not of the form KEY, KEY=VALUE or KEY=VALUE:EFFECT; effects are {', '.join(_EFFECTS)}"
        )
    return Toleration(key, wanted if equals else None, effect)


def pod_user(options: Mapping[str, str]) -> tuple[int, int] | None:
    """The numbers of the user and the group as whom pods run, by ``user=UID[:GID]``; None where none is given."""
    if USER not in options:
        return None
    user, separator, group = options[USER].partition(":")
    uid = _number(user)
    return uid, _number(group) if separator else uid


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > _LAST_ID:
        raise SpecError(f"{text[:80]!r} is no number of a user or group; expected for example 1000")
    return int(text)


_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_LAST_ID = 2**31 - 1  # Kubernetes takes no larger one
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([kMGTPE]i?|m)?")
_IMAGE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._:/@]{0,499}")


def _like(pattern: re.Pattern[str], what: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if not pattern.fullmatch(value):
            raise SpecError(f"{value[:80]!r} is not {what}")

    return check


def _where(value: str) -> None:
    if value not in ("here", POD, WITHIN):
        raise SpecError(f"{value[:80]!r} is no place; expected here or {POD}")


def _operator(value: str) -> None:
    if value != HYPERPOD:
        raise SpecError(f"{value[:80]!r} is no operator; expected {HYPERPOD}; without the option nodes are plain Jobs")


def _plain_path(value: str) -> None:
    if not value.startswith("/") or {"", ".", ".."} & set(value[1:].split("/")):
        raise SpecError(f"{value[:80]!r} is not a plain path; expected one such as /fsx/team/heads")


def head_store(options: Mapping[str, str]) -> str:
    """The directory of the pods in which heads in pods keep their stores."""
    if HEAD_STORE in options:
        return options[HEAD_STORE]
    written = _written(options)
    return OWN_STORE if is_apart(options) or not written else f"{written[0]}/hyperpod-heads"


def has_remote_head(options: Mapping[str, str]) -> bool:
    """Whether the head of a job with these options runs in a pod of its own."""
    return options.get(HEAD) == POD


def is_apart(options: Mapping[str, str]) -> bool:
    """Whether each pod of a job with these options has a store of its own, because they share no directory for one."""
    if options.get(HEAD) != POD:
        return options.get(HEAD) == WITHIN
    return HEAD_CLAIM in options or not (HEAD_STORE in options or _written(options))


def _written(options: Mapping[str, str]) -> list[str]:
    return [shared.path for shared in shared_directories(options) if not shared.read_only]


def has_operator(options: Mapping[str, str]) -> bool:
    """Whether HyperPod's training operator makes the pods of a job with these options."""
    return options.get(OPERATOR) == HYPERPOD


def kept_pods(options: Mapping[str, str], deployed: bool) -> None:
    """Raise SpecError where pods are to be kept of a job that cannot leave them to another one."""
    if KEEP_WARM in options and (deployed or has_remote_head(options) or has_operator(options)):
        job = f"a job with {'head=pod' if has_remote_head(options) else f'{OPERATOR}={HYPERPOD}'}"
        whose = "a deployment" if deployed else job
        raise SpecError(f"the pods of {whose} cannot be kept for the next job; expected no keep-warm")


def _selector(value: str) -> None:
    for name, wanted in pairs(value).items():
        if not _KEY.fullmatch(name) or not _VALUE.fullmatch(wanted):
            raise SpecError(f"{name[:80]}={wanted[:80]} cannot be a label of a node; expected for example zone=a")


def names(value: str) -> list[str]:
    """What ``NAME,NAME`` means."""
    return _words(value)


def _pull_secrets(value: str) -> None:
    for name in names(value):
        if not _SUBDOMAIN.fullmatch(name):
            raise SpecError(f"{name[:80]!r} is not the name of a secret")


_STANDARD = ("cpu", "memory", "ephemeral-storage")


def _resources(value: str) -> None:
    for name, amount in pairs(value).items():
        if not _KEY.fullmatch(name) or not _QUANTITY.fullmatch(amount):
            raise SpecError(f"{name[:80]}={amount[:80]} is no amount; expected for example cpu=8,memory=64Gi")
        if "/" not in name and name not in _STANDARD and not name.startswith("hugepages-"):
            raise SpecError(
                f"Kubernetes has no resource {name[:80]}; expected {', '.join(_STANDARD)}, or that of a device, whose "
                "name has a slash, such as nvidia.com/gpu=1"
            )


# first sbatch's own options, passed on unchanged; then ours: where elastic nodes come from, where the coordinator
# listens, how long a started node may take to join
SLURM = OptionTable(
    "SLURM",
    {
        **dict.fromkeys(
            "account constraint cpus-per-task exclude gpus-per-node gres mem nodelist partition qos reservation time "
            "elastic-partition bind".split(),
            _any,
        ),
        STARTUP_DEADLINE: _deadline,
    },
    "partition, elastic-partition, account, qos, time, gres, …",
    tuple("constraint cpus-per-task exclude gpus-per-node gres mem nodelist partition qos reservation".split()),
)
# what they mean is in `backends/kubernetes/manifests.py`
KUBERNETES = OptionTable(
    "Kubernetes",
    {
        "image": _like(_IMAGE, "the name of an image, such as registry.example/team/train:3"),
        "claim": lambda value: shared_directories({"claim": value}),
        "host-path": lambda value: shared_directories({"host-path": value}),
        "namespace": _like(_LABEL, "the name of a namespace"),
        "context": _any,
        "queue": _like(_VALUE, "the name of a queue"),
        "queue-priority": _like(_VALUE, "the name of a workload priority class"),
        "elastic-queue-priority": _like(_VALUE, "the name of a workload priority class"),
        OPERATOR: _operator,
        "priority-class": _like(_SUBDOMAIN, "the name of a priority class"),
        "elastic-priority-class": _like(_SUBDOMAIN, "the name of a priority class"),
        "resources": _resources,
        "selector": _selector,
        "affinity": label_rules,
        "prefer": label_rules,
        "tolerations": tolerations,
        "pull-secrets": _pull_secrets,
        USER: lambda value: pod_user({USER: value}),
        FS_GROUP: _number,
        BIND: _any,
        STARTUP_DEADLINE: _deadline,
        KEEP_WARM: _deadline,
        HEAD: _where,
        HEAD_STORE: _plain_path,
        HEAD_CLAIM: _like(_SUBDOMAIN, "the name of a volume claim"),
        ACCOUNT: _like(_SUBDOMAIN, "the name of a service account"),
    },
    "image, claim, host-path, namespace, context, resources, selector, head, …",
    ("namespace", "queue", "resources", "selector", "affinity", "tolerations"),
    (
        (("image",), "the image of its pods, with the libraries that it uses"),
        (
            ("claim", "host-path"),
            "pods share the job store among each other, and with this machine unless --kubernetes head=pod is given",
        ),
    ),
)
TABLES: Mapping[str, OptionTable] = {"slurm": SLURM, "kubernetes": KUBERNETES}


def placing(backend: str, options: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """What tells which nodes a job with these options may get: the same for jobs that can use each other's nodes."""
    names = TABLES[backend].placing if backend in TABLES else ()
    return tuple(tuple(sorted(_words(options.get(name, "")))) for name in names)


def keeps_warm() -> str:
    """The backend that can keep what a job has left for the next one."""
    return next(backend for backend, table in TABLES.items() if KEEP_WARM in table.checks)


def check(backend: str, chosen: str, options: Mapping[str, str]) -> None:
    """Check a job's options for ``backend``, where the job runs on ``chosen``. Raises SpecError."""
    table = TABLES[backend]
    for option, value in options.items():
        if option not in table.checks:
            known = list(table.checks)
            raise SpecError(
                f"{table.title} option {option!r} is unknown{near_matches(option, known)}; expected one of "
                f"{', '.join(sorted(known))}"
            )
        if not isinstance(value, str) or not value or set("\0\n") & set(value):
            raise SpecError(f"{table.title} option {option} is {str(value)[:80]!r}; expected a value on one line")
        try:
            table.checks[option](value)
        except SpecError as error:
            raise SpecError(f"{table.title} option {option}: {error}") from None
    if options and backend != chosen:
        raise SpecError(f"{table.title} options belong to --backend {backend}; the backend is {chosen}")
    if HEAD_CLAIM in options and (options.get(HEAD) != POD or HEAD_STORE in options):
        raise SpecError(f"{table.title} option {HEAD_CLAIM} needs {HEAD}={POD}, and excludes {HEAD_STORE}")
    for group, why in table.needed if backend == chosen else ():
        if not (is_apart(options) and "claim" in group) and not any(option in options for option in group):
            wanted = " or ".join(f"--{backend} {option}=…" for option in group)
            raise SpecError(f"a job on {table.title} needs {wanted}: {why}")
