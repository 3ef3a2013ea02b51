"""Declares the options of a submission once, for `jupyter hyperpod` and the magics."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..core import env_references, rules
from ..core.backend_options import KEEP_WARM, keeps_warm
from ..core.backends import BACKENDS, DEFAULT_BACKEND
from ..core.elastic import ElasticRange
from ..core.errors import SpecError
from ..core.options import argument
from ..core.rules import LogRule
from ..core.spec import COLLECTIVES, HANG_TIMEOUT_S, HIDDEN, OUTPUT_CAP, JobSpec
from ..core.units import format_bytes, parse_bytes
from ..storage.included import survey
from .option_parser import add_backend_options, add_env_option, chosen_backend_options, duration
from .text_tables import Paint, unpainted

# the fields of JobSpec that have an option, in the order of a dry run
_CHOSEN = (
    *(
        "nodes",
        "elastic",
        "scale_up_delay_s",
        "name",
        "env",
        "include",
        "python",
        "backend",
        "priority",
        "queue",
        "spares",
        "seed",
    ),
    *(
        "components",
        "collectives",
        "replica",
        "threads",
        "hang_timeout_s",
        "grace_s",
        "script_restarts",
        "log_rules",
        "output_cap",
    ),
)

_WAITS = (
    f"seconds without progress until a rank counts as hung (default: {HANG_TIMEOUT_S:g}); the first micro-batch of "
    "a process, which may compile, may take 20 times that"
)


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


def _interpreter(text: str) -> str:
    if "/" not in text or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not the path of an interpreter, as /opt/env/bin/python is")
    return os.path.abspath(os.path.expanduser(text))


def _add_brought(parser: argparse.ArgumentParser) -> None:
    """What a job brings along: variables, folders and its Python."""
    add_env_option(
        parser,
        "environment variable of every rank; NAME alone takes your own value and keeps it out of `ps`; with "
        "NAME=@file:PATH or NAME=@env:OTHER each node fetches the value itself; may be repeated",
    )
    parser.add_argument(
        "--include",
        action="append",
        metavar="DIR",
        help="folder with your own modules and packages, copied into the job: its members import them as they are now; "
        "may be repeated",
    )
    parser.add_argument(
        "--python",
        type=_interpreter,
        metavar="PATH",
        help="Python of every rank, such as that of an environment from `env replay` (default: this one)",
    )


def _add_printed(parser: argparse.ArgumentParser) -> None:
    """What is done with what ranks print."""
    add = parser.add_argument
    add(
        "--log-rule",
        dest="log_rules",
        action="extend",
        type=_log_rules,
        metavar="FILE",
        help="watch what all ranks print by the rules in a JSON or TOML file (logMonitoringConfiguration); may be "
        "repeated",
    )
    add(
        "--output-cap",
        type=argument(parse_bytes),
        metavar="SIZE",
        help="what the output of each node may take on the disk, for example 1GB; the oldest is dropped first, and a "
        "line says so where you read it. Plots and other displays have half of it, and 64 MB at most: of those that do "
        f"not fit then, the text is kept, and a line says so (default: {format_bytes(OUTPUT_CAP)})",
    )


def add_submit_options(parser: argparse.ArgumentParser) -> None:
    """Add every option of a submission to `parser`; an option not given is None (or False)."""
    add = parser.add_argument
    add(
        "--nodes",
        type=int,
        metavar="N",
        help="nodes to start on; after a loss it goes on with fewer (default: 1, or MAX of --elastic)",
    )
    add(
        "--elastic",
        type=argument(ElasticRange.parse),
        metavar="RANGE",
        help="fewest and most nodes, as in 2:8, 2:8:2 (in steps) or 1,2,4,8; the job follows capacity without a "
        "restart",
    )
    add(
        "--scale-up-delay",
        dest="scale_up_delay_s",
        type=duration,
        metavar="T",
        help="grow only onto nodes that have been free for this time, for example 30s; shrinking never waits "
        "(default: 0)",
    )
    add("--name", metavar="NAME", help="name of the job (default: that of the notebook or file)")
    _add_brought(parser)
    add("--backend", choices=tuple(BACKENDS), help="where it runs (default: local)")
    add_backend_options(parser)
    add(
        "--keep-warm",
        type=duration,
        metavar="T",
        help="with --backend kubernetes: keep the pods for this time when the job has ended, for example 10min; the "
        "next job that fits begins in them at once",
    )
    add(
        "--priority",
        type=int,
        metavar="P",
        help="-1000 (lowest) to 1000 (highest); a higher job shrinks lower ones (default: 0)",
    )
    add("--queue", metavar="NAME", help="use the nodes that the cluster guarantees to this queue; borrow others")
    add("--spares", type=int, metavar="K", help="warm nodes kept ready to replace a lost one (default: 1)")
    add("--seed", type=int, metavar="S", help="seed of every generator before the code runs (default: 0)")
    add(
        "--components",
        type=_components,
        metavar="A,B",
        help="what recovers without a checkpoint: some of init,data,inprocess,peers, or none (default: all)",
    )
    add(
        "--collectives",
        choices=COLLECTIVES,
        help="how members exchange gradients: host (the job's own connections, shared memory), gloo, nccl, or auto: "
        "nccl for CUDA devices, else host (default: auto)",
    )
    add("--replica", type=int, metavar="R", help="ranks per node, which share one replica of the model (default: 1)")
    add("--threads", type=int, metavar="T", help="CPU threads of every rank (default: 1)")
    add("--hang-timeout", dest="hang_timeout_s", type=float, metavar="S", help=_WAITS)
    leaving = "time that a preempted node may take to leave (default: 30s)"
    add("--grace", dest="grace_s", type=duration, metavar="T", help=leaving)
    add(
        "--script-restarts",
        type=int,
        metavar="N",
        help="how often all ranks of a script without hp.Session are started again after a loss (default: 3)",
    )
    _add_printed(parser)
    add("--dry-run", action="store_true", help="check everything, show what would be submitted, submit nothing")


def add_rerun_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that may differ when a job runs again."""
    parser.add_argument(
        "--name", metavar="NAME", help="name of the new job (default: the same; of a trial, NAME-again)"
    )
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
    chosen |= {field: value for field in _CHOSEN if (value := getattr(options, field)) is not None}
    if options.env is not None:
        chosen["env"], references = env_references.split(options.env)
        chosen |= {"env_from": references} if references else {}
    chosen |= chosen_backend_options(options)
    if options.keep_warm is not None:
        backend = keeps_warm()
        chosen[backend] = {**chosen.get(backend, {}), KEEP_WARM: f"{options.keep_warm:g}s"}
    for field in ("log_rules", "include"):
        if field in chosen:
            chosen[field] = tuple(chosen[field])
    for folder in chosen.get("include", ()):
        survey(folder)
    here = chosen.get("backend", DEFAULT_BACKEND) == DEFAULT_BACKEND
    if "python" in chosen and here and not os.access(chosen["python"], os.X_OK):
        raise SpecError(f"--python: {chosen['python']} is not a program on this machine, where the job is to run")
    if options.elastic is not None and options.nodes is None:
        chosen["nodes"] = options.elastic.maximum
    JobSpec(cell_digest="0" * 64, **chosen)
    return chosen


def field_lines(shown: Mapping[str, Any], paint: Paint = unpainted) -> list[str]:
    """What `shown_fields` gives, a line each, without what is empty; that a file is one its name says."""
    told = {name: _in_words(value) for name, value in shown.items() if name != "script"}
    return [f"  {paint(f'{name:<14}', 'quiet')}{words}" for name, words in told.items() if words]


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_in_words(one)}" for name, one in value.items())
    if isinstance(value, tuple):  # of a command
        return shlex.join(map(str, value))
    if isinstance(value, list):
        return "; ".join(map(_in_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def shown_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return `fields` for a dry run: JSON-ready, the values of environment variables (maybe secrets) left out."""
    shown = {name: str(value) if isinstance(value, ElasticRange) else value for name, value in fields.items()}
    if fields.get("log_rules"):
        shown["log_rules"] = [asdict(rule) for rule in fields["log_rules"]]
    if fields.get("include"):
        shown["include"] = [survey(folder).sentence for folder in fields["include"]]
    return shown | ({"env": dict.fromkeys(fields["env"], HIDDEN)} if fields.get("env") else {})
