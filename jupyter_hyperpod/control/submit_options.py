"""Declares the options of a submission once, for `jupyter hyperpod` and the magics."""

from __future__ import annotations

import argparse
import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..core import rules
from ..core.backends import BACKENDS
from ..core.elastic import ElasticRange
from ..core.errors import SpecError
from ..core.rules import LogRule
from ..core.spec import HANG_TIMEOUT_S, HIDDEN, JobSpec
from .option_parser import add_env_option, duration, env_pair

_SPEC_FIELDS = frozenset(field.name for field in fields(JobSpec))


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def _elastic(text: str) -> ElasticRange:
    try:
        return ElasticRange.parse(text)
    except SpecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _log_rules(path: str) -> tuple[LogRule, ...]:
    """Rules from a JSON or TOML file."""
    try:
        with open(path, "rb") as file:
            content = file.read()
        return rules.parse(tomllib.loads(content.decode()) if path.endswith(".toml") else json.loads(content))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{path} is not JSON or TOML: {error}") from None
    except SpecError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error}") from None


def _components(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(text.split(","))


@dataclass(frozen=True)
class Option:
    """One option of a submission; `field` is the JobSpec field that it sets, else its own name."""

    flag: str
    field: str
    help: str
    metavar: str | None = None
    parse: Callable[[str], Any] = str
    switch: bool = False
    repeat: bool = False
    choices: tuple[str, ...] | None = None


SUBMIT_OPTIONS = (
    Option(
        "--nodes",
        "nodes",
        "nodes to start on; after a loss it goes on with fewer (default: 1, or MAX of --elastic)",
        "N",
        int,
    ),
    Option(
        "--elastic",
        "elastic",
        "fewest and most nodes, as in 2:8, 2:8:2 (in steps) or 1,2,4,8; the job follows capacity without a restart",
        "RANGE",
        _elastic,
    ),
    Option(
        "--scale-up-delay",
        "scale_up_delay_s",
        "grow only onto nodes that have been free for this time, for example 30s; shrinking never waits (default: 0)",
        "T",
        duration,
    ),
    Option("--name", "name", "name of the job (default: that of the notebook or file)", "NAME"),
    Option(
        "--env",
        "env",
        "environment variable of every rank; NAME alone takes your own value and keeps it out of `ps`; may be repeated",
        "NAME[=VALUE]",
        env_pair,
        repeat=True,
    ),
    Option("--backend", "backend", "where it runs (default: local)", choices=tuple(BACKENDS)),
    Option(
        "--slurm",
        "slurm",
        "with --backend slurm: partition, elastic-partition, account, qos, time, gres, …; may be repeated",
        "OPTION=VALUE",
        _pair,
        repeat=True,
    ),
    Option(
        "--priority",
        "priority",
        "-1000 (lowest) to 1000 (highest); a higher job shrinks lower ones (default: 0)",
        "P",
        int,
    ),
    Option("--queue", "queue", "use the nodes that the cluster guarantees to this queue; borrow others", "NAME"),
    Option("--spares", "spares", "warm nodes kept ready to replace a lost one (default: 1)", "K", int),
    Option("--seed", "seed", "seed of every generator before the code runs (default: 0)", "S", int),
    Option(
        "--components",
        "components",
        "what recovers without a checkpoint: some of init,data,inprocess,peers, or none (default: all)",
        "A,B",
        _components,
    ),
    Option("--replica", "replica", "ranks per node, which share one replica of the model (default: 1)", "R", int),
    Option("--threads", "threads", "CPU threads of every rank (default: 1)", "T", int),
    Option(
        "--hang-timeout",
        "hang_timeout_s",
        f"seconds without progress until a rank counts as hung (default: {HANG_TIMEOUT_S:g})",
        "S",
        float,
    ),
    Option("--grace", "grace_s", "time that a preempted node may take to leave (default: 30s)", "T", duration),
    Option(
        "--script-restarts",
        "script_restarts",
        "how often all ranks of a script without hp.Session are started again after a loss (default: 3)",
        "N",
        int,
    ),
    Option(
        "--log-rule",
        "log_rules",
        "watch what all ranks print by the rules in a JSON or TOML file (logMonitoringConfiguration); may be repeated",
        "FILE",
        _log_rules,
        repeat=True,
    ),
    Option("--dry-run", "dry_run", "check everything, show what would be submitted, submit nothing", switch=True),
)


def add_submit_options(parser: argparse.ArgumentParser) -> None:
    """Add every option of a submission to `parser`; an option not given is None (or False, or empty)."""
    for option in SUBMIT_OPTIONS:
        if option.switch:
            parser.add_argument(option.flag, dest=option.field, action="store_true", help=option.help)
            continue
        parser.add_argument(
            option.flag,
            dest=option.field,
            metavar=option.metavar,
            type=option.parse,
            action="append" if option.repeat else "store",
            choices=option.choices,
            help=option.help,
        )


def add_rerun_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that may differ when a job runs again."""
    parser.add_argument("--name", metavar="NAME", help="name of the new job (default: the same)")
    add_env_option(parser, "set an environment variable; has to be given for each that the job had, once it has ended")


def job_name(text: str) -> str:
    """Return a job name made from a notebook's or file's path: ``/a/My run.ipynb`` -> ``My-run``."""
    stem = os.path.splitext(os.path.basename(text))[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:40].strip("-_") or "cell"


def spec_fields(options: argparse.Namespace, name: str, defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the JobSpec fields of `options`, validated; `defaults` fill the others.

    `name` is the default name. With --elastic alone, the job asks for its maximum. Raises SpecError.
    """
    chosen: dict[str, Any] = {"name": name, **(defaults or {})}
    for option in SUBMIT_OPTIONS:
        value = getattr(options, option.field)
        if option.field in _SPEC_FIELDS and value is not None:
            chosen[option.field] = _joined(option, value)
    if options.elastic is not None and options.nodes is None:
        chosen["nodes"] = options.elastic.maximum
    JobSpec(cell_digest="0" * 64, **chosen)
    return chosen


def _joined(option: Option, value: Any) -> Any:
    """The value of a repeated option."""
    if option.field == "log_rules":
        return tuple(rule for several in value for rule in several)
    return dict(value) if option.repeat else value


def shown_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return `fields` for a dry run: JSON-ready, the values of environment variables (maybe secrets) left out."""
    shown = {name: str(value) if isinstance(value, ElasticRange) else value for name, value in fields.items()}
    if fields.get("log_rules"):
        shown["log_rules"] = [asdict(rule) for rule in fields["log_rules"]]
    return shown | ({"env": dict.fromkeys(fields["env"], HIDDEN)} if fields.get("env") else {})
