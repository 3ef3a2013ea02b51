"""The options of a submission and of a fault, declared once: `jupyter hyperpod` and the magics read the same table."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NoReturn

from ..core import rules
from ..core.errors import SpecError
from ..core.events import FAULTS, TARGETS
from ..core.rules import LogRule
from ..core.spec import BACKENDS, HANG_TIMEOUT_S, HIDDEN, ElasticRange, JobSpec, is_env_name
from ..core.units import parse_duration


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def _env_pair(text: str) -> tuple[str, str]:
    """A variable with its value, or with that of this process; no message shows what may be a value."""
    name, separator, value = text.partition("=")
    if not is_env_name(name):
        raise argparse.ArgumentTypeError(
            "expected NAME=VALUE, or NAME alone for the value in your own environment, with letters, digits and '_' "
            "in NAME; what was given is not shown, since it may be secret"
        )
    if separator:
        return name, value
    if name not in os.environ:
        raise argparse.ArgumentTypeError(f"{name} is not set in your environment; export it, or use {name}=VALUE")
    return name, os.environ[name]


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


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except SpecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _components(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(text.split(","))


@dataclass(frozen=True)
class Option:
    """One option of a submission; `field` is the JobSpec field it sets, or its own name where it sets none."""

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
        "grow only onto nodes that have been free for so long, for example 30s; shrinking never waits (default: 0)",
        "T",
        _duration,
    ),
    Option("--name", "name", "name of the job (default: that of the notebook or file)", "NAME"),
    Option(
        "--env",
        "env",
        "environment variable of every rank; NAME alone takes your own value and keeps it out of `ps`; may be repeated",
        "NAME[=VALUE]",
        _env_pair,
        repeat=True,
    ),
    Option("--backend", "backend", "where it runs (default: local)", choices=BACKENDS),
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
    Option("--replica", "replica", "ranks a node, which share one replica of the model (default: 1)", "R", int),
    Option("--threads", "threads", "CPU threads of every rank (default: 1)", "T", int),
    Option(
        "--hang-timeout",
        "hang_timeout_s",
        f"seconds without progress until a rank counts as hung (default: {HANG_TIMEOUT_S:g})",
        "S",
        float,
    ),
    Option("--grace", "grace_s", "time that a preempted node may take to leave (default: 30s)", "T", _duration),
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
_INVALID_CHOICE = re.compile(r"invalid choice: .(.*?). \(choose from (.*)\)")
_UNRECOGNIZED = "unrecognized arguments: "
_ASSIGNMENT = re.compile(r"(\b[A-Za-z_][A-Za-z0-9_]*=)(?:'[^']*'|\"[^\"]*\"|[^\s'\"]+)+")
_SPEC_FIELDS = frozenset(field.name for field in fields(JobSpec))


class HelpShown(Exception):
    """The parser has printed its help; there is nothing left to do."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises SpecError for bad use and never leaves the interpreter."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        super().__init__(*args, **options)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Raise instead of leaving: HelpShown after help, SpecError after anything else."""
        if status == 0:
            raise HelpShown
        raise SpecError((message or f"{self.prog}: exit status {status}").strip())

    def error(self, message: str) -> NoReturn:
        """Raise SpecError with the nearest option that exists."""
        near = suggestion(message, list(self._option_string_actions))
        raise SpecError(f"{self.prog}: {shown_problem(message)}{near}; --help shows the options")


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


def add_env_option(parser: argparse.ArgumentParser, text: str) -> None:
    """Add ``--env NAME[=VALUE]``, which may be repeated."""
    parser.add_argument("--env", type=_env_pair, action="append", metavar="NAME[=VALUE]", help=text)


def add_rerun_options(parser: argparse.ArgumentParser) -> None:
    """Add what may be different when a job runs again."""
    parser.add_argument("--name", metavar="NAME", help="name of the new job (default: the same)")
    add_env_option(parser, "set an environment variable; has to be given for each that the job had, once it has ended")


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Add what may stand behind ``cluster``; an option that is not given is None (or False)."""
    actions = ("start", "status", "stop", "heal")
    parser.add_argument("action", choices=actions, metavar="ACTION", help="start, status, stop or heal")
    parser.add_argument("--nodes", type=int, metavar="N", help="start: nodes of the cluster (default: 4)")
    parser.add_argument("--spares", type=int, metavar="K", help="start: warm nodes kept ready beside them (default: 1)")
    parser.add_argument(
        "--queue",
        dest="queues",
        action="append",
        type=_queue,
        metavar="NAME=N",
        help="start: guarantee N nodes to the jobs of a queue, which others may borrow; may be repeated",
    )
    parser.add_argument(
        "--isolate-network",
        action="store_true",
        help="start: give every node a network of its own, which the fault partition can cut off; nodes then reach "
        "each other and nothing else (needs root and iproute2)",
    )
    parser.add_argument("--node", metavar="NODE", help="heal: only this node (default: all that are cut off)")


def cluster_shape(options: argparse.Namespace) -> dict[str, Any]:
    """The keywords of `cluster.ensure_started`; raises SpecError for an option that belongs to another action."""
    queues = None if options.queues is None else dict(options.queues)
    shape = {"nodes": options.nodes, "spares": options.spares, "queues": queues}
    shape["isolated"] = options.isolate_network or None
    if options.action != "start" and any(value is not None for value in shape.values()):
        flags = "--nodes, --spares, --queue and --isolate-network"
        raise SpecError(f"{flags} belong to `cluster start`, not to `cluster {options.action}`")
    if options.action != "heal" and options.node is not None:
        raise SpecError(f"--node belongs to `cluster heal`, not to `cluster {options.action}`")
    return shape


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Add what a deployment may be told; an option that is not given is None (or False, or empty)."""
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="path or URL of the weights; without it, all deployments are listed")
    add("--replicas", metavar="MIN:MAX", help="replicas to keep, and the most that load may bring (default: 1)")
    add("--handler", metavar="FILE", help="a .py file with load(model) and predict(model, inputs), asked at /predict")
    add("--recipe", metavar="NAME", help="shape of the decoder (default: config.json beside the weights)")
    add("--name", metavar="NAME", help="name of the deployment (default: that of the model)")
    add("--port", type=int, metavar="P", help="port on loopback (default: any that is free)")
    add("--outstanding", type=float, metavar="N", help="requests a replica should have at a time (default: 2)")
    add("--slots", type=int, metavar="N", help="the most it is given at a time (default: 8)")
    add(
        "--queue",
        type=int,
        metavar="N",
        help="requests that may wait beside those; further ones get 429 (default: 256)",
    )
    add("--timeout", dest="request_timeout_s", type=_duration, metavar="T", help="limit for one request (default: 60s)")
    add(
        "--scale-down-delay",
        dest="scale_down_delay_s",
        type=_duration,
        metavar="T",
        help="take replicas away that were not needed for so long (default: 30s)",
    )
    add("--threads", type=int, metavar="T", help="CPU threads of every replica (default: 1)")
    add_env_option(parser, "environment variable of every replica; NAME alone takes your own value")


def serve_fields(options: argparse.Namespace) -> dict[str, Any]:
    """The keywords of `deploy.serve` that were given beside the model. Raises SpecError for options without one."""
    limits = ("outstanding", "slots", "queue", "request_timeout_s", "scale_down_delay_s")
    names = ("replicas", "handler", "recipe", "name", "port", "threads", "env", *limits)
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if given and options.model is None:
        raise SpecError(f"--{next(iter(given)).replace('_', '-')} needs a MODEL to be served")
    return given | ({"env": dict(given["env"])} if "env" in given else {})


def _queue(text: str) -> tuple[str, int]:
    name, _, nodes = text.partition("=")
    if not nodes.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=NODES, for example research=2")
    return name, int(nodes)


def add_fault_options(parser: argparse.ArgumentParser) -> None:
    """Add what a fault is and whom it is aimed at; the table of kinds is `core.events.FAULTS`."""
    parser.add_argument("kind", choices=FAULTS, metavar="KIND", help="what breaks; the list below")
    aim = parser.add_mutually_exclusive_group(required=True)
    aim.add_argument("--rank", type=int, metavar="R", help="the process of this rank")
    aim.add_argument("--node", metavar="NODE", help="every process of this node, for example node-2")
    aim.add_argument("--target", choices=TARGETS, metavar="WHO", help=f"one of: {', '.join(TARGETS)}")
    parser.add_argument("--factor", type=float, metavar="F", help="throttle: how many times slower (default: 4)")
    parser.add_argument(
        "--seconds", type=float, metavar="S", dest="duration_s", help="throttle: for how long (default: 10)"
    )
    parser.add_argument("--after-step", type=int, metavar="S", help="wait until the job has committed step S")
    width = max(map(len, FAULTS)) + 2
    lines = [f"  {kind:<{width}}{fault.sentence} ({', '.join(fault.aims)})" for kind, fault in FAULTS.items()]
    parser.formatter_class = _verbatim
    parser.epilog = "\n".join(["kinds, and whom each may be aimed at:", *lines])


def _verbatim(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=28, width=100)


def fault_aim(options: argparse.Namespace) -> dict[str, Any]:
    """The keywords of `jobs.fault` that were given."""
    names = ("rank", "node", "target", "factor", "duration_s")
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def aimed_at(options: argparse.Namespace) -> str:
    """Whom the fault is aimed at, for people."""
    return str(options.node or options.target or f"rank {options.rank}")


def job_name(text: str) -> str:
    """Return a job name made from a notebook's or file's path: ``/a/My run.ipynb`` -> ``My-run``."""
    stem = os.path.splitext(os.path.basename(text))[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:40].strip("-_") or "cell"


def spec_fields(options: argparse.Namespace, name: str, defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the JobSpec fields that `options` ask for, validated; `defaults` fill what was not given.

    `name` is the name of a job that got none. With --elastic alone, the job asks for its maximum. Raises SpecError.
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
    """What a repeated option comes to."""
    if option.field == "log_rules":
        return tuple(rule for several in value for rule in several)
    return dict(value) if option.repeat else value


def shown_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return `fields` for a dry run: JSON-ready, the values of environment variables (maybe secrets) left out."""
    shown = {name: str(value) if isinstance(value, ElasticRange) else value for name, value in fields.items()}
    if fields.get("log_rules"):
        shown["log_rules"] = [asdict(rule) for rule in fields["log_rules"]]
    return shown | ({"env": dict.fromkeys(fields["env"], HIDDEN)} if fields.get("env") else {})


def without_values(text: str) -> str:
    """Return `text` without what stands behind NAME=, which may be a secret of ``--env``."""
    return _ASSIGNMENT.sub(rf"\1{HIDDEN}", text)


def shown_problem(message: str) -> str:
    """Return argparse's complaint without the values of variables that stand in a wrong place."""
    return without_values(message) if message.startswith(_UNRECOGNIZED) else message


def suggestion(message: str, options: Sequence[str]) -> str:
    """Return what may have been meant where argparse complains of an option or a choice that it does not know."""
    if message.startswith(_UNRECOGNIZED):
        return near_matches(message.removeprefix(_UNRECOGNIZED).split()[0].partition("=")[0], options)
    if choice := _INVALID_CHOICE.search(message):
        return near_matches(choice[1], re.findall(r"[\w.-]+", choice[2]))
    return ""


def near_matches(word: str, known: Sequence[str]) -> str:
    """Return ``" (did you mean X?)"`` where something near `word` is known, else nothing."""
    near = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {near[0]}?)" if near else ""
