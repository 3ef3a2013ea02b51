"""The options that a job may have for its backend, as in `--slurm OPTION=VALUE`: one table per backend, and its checks.

A specification keeps them in a field with the backend's name (`JobSpec.slurm`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .errors import SpecError
from .options import near_matches
from .units import parse_duration

BIND, STARTUP_DEADLINE = "bind", "startup-deadline"


@dataclass(frozen=True, slots=True)
class OptionTable:
    """A backend's options: name -> its check, which raises SpecError.

    ``title``: what people call the backend. ``examples``: some of them, for the help. ``needed``: of each group a job
    has to have one, with the reason.
    """

    title: str
    checks: Mapping[str, Callable[[str], object]]
    examples: str
    needed: tuple[tuple[tuple[str, ...], str], ...] = ()


def _any(value: str) -> None:
    """Whatever is on one line."""


def _deadline(value: str) -> None:
    if not parse_duration(value) > 0:
        raise SpecError("it is 0; expected a time such as 5min")


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
)
TABLES: Mapping[str, OptionTable] = {"slurm": SLURM}


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
    for group, why in table.needed if backend == chosen else ():
        if not any(option in options for option in group):
            wanted = " or ".join(f"--{backend} {option}=…" for option in group)
            raise SpecError(f"a job on {table.title} needs {wanted}: {why}")
