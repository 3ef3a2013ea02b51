"""What differs between two environments, and what each difference may change, in words for people. Pure.

What one of the two does not know is compared with nothing. An environment is a fingerprint, as a job keeps it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..core.units import few, plural

ABSENT = "not installed"
NONE = "none"
SHOWN = 8
Record = Mapping[str, Any]

# packages by what depends on them
_PACKAGES = (
    (r"torch|triton|jax|jaxlib|tensorflow", "losses and gradients may differ in their last bits, or more"),
    (r"numpy|scipy", "rounding, random numbers and the kinds of numbers may differ"),
    (r"nvidia-.*|cuda-.*|cupy.*", "GPUs may run other kernels: the last bits of results, and speed"),
    (r"transformers|tokenizers|sentencepiece|peft|diffusers", "tokens, and what a model does unless told, may differ"),
    (r"datasets|pyarrow|pandas|polars|webdataset|torchdata", "the order and the content of the data may differ"),
    (r"lightning|pytorch-lightning|accelerate|deepspeed", "the loop of the training may take other steps"),
    (r"jupyter-hyperpod", "members of a job may work together in another way"),
)
_VARIABLES = (
    (r"CUDA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|NEURON_RT_VISIBLE.*", "which devices are used"),
    (r"CUBLAS_.*|CUDNN_.*|CUDA_.*|NVIDIA_.*|NEURON_.*|XLA_.*", "how devices compute: the last bits of results, speed"),
    (r"NCCL_.*|GLOO_.*|FI_.*|UCX_.*", "how gradients are exchanged: speed, and the order of sums"),
    (r"OMP_.*|MKL_.*|OPENBLAS_.*|KMP_.*|GOMP_.*|NUMEXPR_.*", "threads, and so speed and the order of sums"),
    (r"PYTHON(PATH|HOME|USERBASE)|LD_(LIBRARY_PATH|PRELOAD)", "which modules and libraries are loaded"),
    (r"PYTHONHASHSEED", "the order of sets, and what depends on it"),
    (r"(PY)?TORCH_.*|JAX_.*|TF_.*", "how the framework computes"),
    (r"HF_.*|HUGGINGFACE_.*|TRANSFORMERS_.*", "where models and data come from"),
    (r"TZ|LANG|LC_.*", "how dates, numbers and words are read and sorted"),
    (r".*(TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY.*)", "whether a service lets the program in"),
)
# a host, a terminal, a front end or a session has these; no program computes with them
_IDLE = re.compile(
    r"_|PWD|OLDPWD|SHLVL|TERM.*|COLORTERM|LS_COLORS|COLUMNS|LINES|PAGER|GIT_PAGER|CLICOLOR.*|FORCE_COLOR|DISPLAY|"
    r"HOSTNAME|HOME|USER|LOGNAME|SHELL|MAIL|EDITOR|PS1|SSH_.*|XDG_.*|DBUS_.*|WINDOWID|JPY_.*|JUPYTER.*|PYDEVD_.*|"
    r"KERNEL_.*|VSCODE_.*|ELECTRON_.*|HYPERPOD_.*|TMUX.*|STY|TEST_.*|PYTEST_.*|MPLBACKEND|GPG_.*|SUDO_.*|INVOCATION_ID"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference. ``kind``: python, package, files, origin, git, variable, device or machine. The smaller ``rank``,
    the graver; ``change`` says what it may change."""

    kind: str
    name: str
    there: str
    here: str
    change: str
    rank: int

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return asdict(self)


def differences(there: Record, here: Record) -> list[Difference]:
    """All that differs, the gravest first."""
    parts = (_python, _packages, _git, _devices, _machine, _variables)
    found = [one for part in parts for one in part(there, here)]
    return sorted(found, key=lambda one: one.rank)


def of_members(there: Record, here: Record) -> list[Difference]:
    """What should not differ between the submission and a node, or two nodes: Python and packages."""
    return sorted([*_python(there, here), *_packages(there, here)], key=lambda one: one.rank)


def sentence(found: Sequence[Difference], there: str = "there", here: str = "here") -> str:
    """The differences in a row, such as ``numpy 1.26 there, 2.0 here``; the first `SHOWN` of them."""
    told = [f"{one.name} {one.there} {there}, {one.here} {here}" for one in found[:SHOWN]]
    return "; ".join([*told, *([f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else [])])


def _python(there: Record, here: Record) -> Iterator[Difference]:
    one, other = there.get("python") or {}, here.get("python") or {}
    if not (one and other):
        return
    if one.get("implementation") != other.get("implementation"):
        said = "how the language works inside: speed, and which compiled packages can be imported"
        yield Difference("python", "Python's kind", *_both(one, other, "implementation"), said, 0)
    if one.get("version") != other.get("version"):
        versions = _both(one, other, "version")
        minor = [version.split(".")[:2] for version in versions]
        said = "code may fail or do something else, and compiled packages have to fit" if minor[0] != minor[1] else ""
        said = said or "corrections of Python itself; results rarely change"
        yield Difference("python", "Python", *versions, said, 0 if minor[0] != minor[1] else 3)
    if one.get("kind") != other.get("kind"):
        said = "where packages and libraries come from"
        yield Difference("python", "Python's environment", *_both(one, other, "kind"), said, 6)


def _each(show: Callable[[Any], str], one: Any, other: Any) -> tuple[str, str]:
    return show(one), show(other)


def _both(one: Record, other: Record, name: str) -> tuple[str, str]:
    return str(one.get(name) or NONE), str(other.get(name) or NONE)


def _packages(there: Record, here: Record) -> Iterator[Difference]:
    one, other = there.get("packages") or {}, here.get("packages") or {}
    if not (one and other):
        return
    for name in sorted(one.keys() | other.keys()):
        before, after = one.get(name), other.get(name)
        if before is None or after is None:
            said = f"an import of it fails {'here' if after is None else 'there'}; or it is never imported"
            shown = _each(lambda record: str((record or [ABSENT])[0]), before, after)
            yield Difference("package", name, *shown, said, 1 if _known(name) else 4)
        elif before[0] != after[0]:
            yield Difference("package", name, str(before[0]), str(after[0]), _version_change(name, before, after), 1)
        elif before[1] != after[1] and before[1] and after[1] and before[2] != after[2]:
            said = f"the same version from another place; {_known(name) or 'its code may differ'}"
            shown = _each(lambda record: str(record[2] or "a package index"), before, after)
            yield Difference("origin", name, *shown, said, 2)
        elif before[1] != after[1] and before[1] and after[1]:
            said = f"the same version with other files, built anew or edited; {_known(name) or 'its code may differ'}"
            shown = (f"{before[0]} (files {before[1][:8]})", f"{after[0]} (files {after[1][:8]})")
            yield Difference("files", name, *shown, said, 2)


def _known(name: str) -> str:
    return _said(name, _PACKAGES)


def _said(name: str, table: Iterable[tuple[str, str]]) -> str:
    return next((said for pattern, said in table if re.fullmatch(pattern, name)), "")


def _version_change(name: str, before: Sequence[Any], after: Sequence[Any]) -> str:
    parts = [re.split(r"[.+]", str(record[0])) for record in (before, after)]
    grave = parts[0][0] != parts[1][0] or (parts[0][0] == "0" and parts[0][1:2] != parts[1][1:2])
    general = (
        "names and behaviour may have changed" if grave else "corrections and additions; behaviour may differ a little"
    )
    return _known(name) or general


def _git(there: Record, here: Record) -> Iterator[Difference]:
    one, other = there.get("git"), here.get("git")
    if one is None or other is None or False in (one.get("known"), other.get("known")):
        return
    if not one or not other:
        if one or other:
            said = "whether the project's code is the same is not known"
            yield Difference(
                "git", "git", *_each(lambda record: "a repository" if record else NONE, one, other), said, 5
            )
        return
    if one.get("commit") != other.get("commit"):
        said = "your own modules are of another commit"
        yield Difference(
            "git", "git commit", *_each(lambda record: str(record.get("commit", ""))[:12], one, other), said, 1
        )
    if one.get("branch") != other.get("branch"):
        said = "only the name, if the commit is the same"
        yield Difference("git", "git branch", *_both(one, other, "branch"), said, 7)
    files, others = one.get("files") or {}, other.get("files") or {}
    for name in sorted(files.keys() | others.keys()):
        if files.get(name) != others.get(name):
            shown = _each(_file, files.get(name), others.get(name))
            yield Difference(
                "git", f"file {name}", *shown, "what was not committed is in no history: it may be lost", 2
            )
    if one.get("more", 0) != other.get("more", 0):
        shown = _each(lambda record: f"{record.get('more', 0)} more files", one, other)
        yield Difference("git", "files that differ from git", *shown, "more files differ than are compared", 5)


def _file(digest: str | None) -> str:
    if digest is None:
        return "as committed"
    return digest if " " in digest or not re.fullmatch(r"[0-9a-f]{16}", digest) else f"changed ({digest[:8]})"


_DEVICES = {
    "cuda": ("CUDA of torch", "GPUs run other kernels: losses may differ in their last bits", 1),
    "driver": ("GPU driver", "speed, and which versions of CUDA run; rarely results", 3),
    "nccl": ("NCCL", "how gradients are summed: the last bits of results, speed, and whether GPUs find each other", 1),
    "cudnn": ("cuDNN", "which kernels convolutions take: the last bits of results, and speed", 2),
    "gpus": ("GPUs", "memory, speed, and the last bits of results", 2),
    "toolkit": ("CUDA toolkit", "extensions that are compiled on the spot", 5),
}
_MACHINE = {
    "architecture": ("architecture", "which packages can be installed, and the last bits of results", 0),
    "vectors": ("vector instructions", "the order of sums, and so the last bits of results", 2),
    "processor": ("processor", "speed; with other vector instructions the last bits of results", 6),
    "libc": ("C library", "which compiled packages run; mathematical functions in their last bits", 4),
}


def _devices(there: Record, here: Record) -> Iterator[Difference]:
    yield from _fields("device", "devices", _DEVICES, there, here)


def _machine(there: Record, here: Record) -> Iterator[Difference]:
    yield from _fields("machine", "machine", _MACHINE, there, here)


def _fields(
    kind: str, part: str, table: Mapping[str, tuple[str, str, int]], there: Record, here: Record
) -> Iterator[Difference]:
    one, other = there.get(part), here.get(part)
    if one is None or other is None:
        return
    for field, (name, said, rank) in table.items():
        if (one.get(field) or "") != (other.get(field) or ""):
            yield Difference(kind, name, *_both(one, other, field), said, rank)


def _variables(there: Record, here: Record) -> Iterator[Difference]:
    one, other = there.get("variables"), here.get("variables")
    if one is None or other is None:
        return
    for name in sorted(set(one) ^ set(other)):
        if not _IDLE.fullmatch(name):
            shown = ("set", "not set") if name in one else ("not set", "set")
            said = variable_change(name)
            yield Difference("variable", name, *shown, said or "whatever reads it", 3 if said else 7)


def variable_change(name: str) -> str:
    """What a variable is known to change; "" where nothing is known."""
    return _said(name, _VARIABLES)


def digest(found: Record) -> str:
    """What two environments have in common if and only if `differences` finds none, in 16 characters.

    "" where a part of it is not known: to have another digest would not mean that anything differs.
    """
    python, packages, git = found.get("python"), found.get("packages"), found.get("git")
    parts = [found.get(name) for name in ("machine", "devices", "variables")]
    if not python or not packages or git is None or git.get("known") is False or None in parts:
        return ""
    if not all(one[1] for one in packages.values()):
        return ""
    state = [git.get("commit"), git.get("branch"), git.get("files") or {}, git.get("more", 0)] if git else []
    about = [
        [python.get(name) or NONE for name in ("implementation", "version", "kind")],
        {name: one[:2] for name, one in packages.items()},
        state,
        [found["devices"].get(name) or "" for name in _DEVICES],
        [found["machine"].get(name) or "" for name in _MACHINE],
        sorted({name for name in found["variables"] if not _IDLE.fullmatch(name)}),
    ]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def unknown(there: Record, here: Record) -> list[str]:
    """What could not be compared, in words. ``given``, in a record: names of variables set with --env."""
    found = []

    def missing(part: str) -> bool:
        return there.get(part) is None or here.get(part) is None

    names = {"python": "Python", "devices": "devices", "machine": "processors", "variables": "names of variables"}
    found += [name for part, name in names.items() if missing(part)]
    if missing("git") or False in ((there.get("git") or {}).get("known"), (here.get("git") or {}).get("known")):
        found.append("the state of git")
    one, other = there.get("packages") or {}, here.get("packages") or {}
    both = [name for name in one.keys() & other.keys() if one[name][0] == other[name][0]]
    if blind := [name for name in both if not (one[name][1] and other[name][1])]:
        found.append(f"the files of {len(blind)} of {len(both)} packages")
    names_of = [set(record.get("variables") or ()) | set(record.get("given") or ()) for record in (there, here)]
    given = {*(there.get("given") or ()), *(here.get("given") or ())}
    if unseen := sorted(given & names_of[0] & names_of[1]):
        found.append(f"the values of {plural(len(unseen), 'variable')} set with --env ({few(unseen, SHOWN)})")
    return found
