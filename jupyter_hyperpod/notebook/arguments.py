"""The options and verbs of ``%%hyperpod`` and ``%hyperpod``. The options of a submission are those of the CLI."""

from __future__ import annotations

import argparse
import shlex
from functools import cache

from ..control import housekeeping, mounting, nodes, validate
from ..control.clusters import kept_pods
from ..control.option_parser import Parser, help_format, without_values
from ..control.parity import environment_verbs
from ..control.runs import promote
from ..control.runs import verbs as runs
from ..control.schedules import verbs as schedules
from ..control.submit_options import add_rerun_options, add_submit_options
from ..control.sweeps import verbs as sweeps
from ..control.verb_options import (
    NOTEBOOK_HELP,
    add_cluster_options,
    add_event_options,
    add_fault_options,
    add_log_options,
    add_notebook_options,
    add_serve_options,
)
from ..core.errors import SpecError
from ..core.options import near_matches
from ..planner.request import SUMMARY, add_plan_options

VERB_HELP = {
    "jobs": "list the jobs, newest first",
    "nodes": nodes.NODES_HELP,
    "health": nodes.HEALTH_HELP,
    "kept": kept_pods.HELP,
    "describe": "show everything known about a job",
    "events": "show what has happened to a job until now",
    "logs": "show what a job's ranks have printed until now; `attach` follows it",
    "attach": "stream a job into this cell until it ends",
    **runs.VERBS,
    "notebook": NOTEBOOK_HELP,
    "sweep": sweeps.HELP,
    "schedule": schedules.HELP,
    "rerun": "run a job again: the same code, the same specification",
    "promote": promote.HELP,
    "env": environment_verbs.HELP,
    "scale": "ask a job to grow or shrink, without a restart",
    "stop": "end jobs at once; their checkpoints stay",
    **housekeeping.VERBS,
    "fault": "break something on purpose and watch the job recover",
    "cluster": "start, show or stop the local cluster, or heal its network",
    "validate": "check nodes, devices, storage, network and a small training, row by row",
    **mounting.VERBS,
    "serve": "serve a model over HTTP, with as many replicas as the load needs",
    "plan": SUMMARY,
    "recipe": "list the recipes, or put the cell that trains one below this one",
}

ALIASES = {"list": "jobs"}  # the name on the command line


@cache
def cell_parser() -> Parser:
    """Return the parser of ``%%hyperpod``."""
    parser = Parser(
        prog="%%hyperpod",
        description="Run this cell on the cluster, on every rank, and stream what it prints. "
        "Interrupting the cell leaves the job running.",
        epilog="%hyperpod --help lists the verbs for jobs and nodes.",
        formatter_class=help_format,
    )
    add_submit_options(parser)
    sweeps.add_sweep_options(parser)
    schedules.add_schedule_options(parser)
    parser.add_argument(
        "--push",
        action="append",
        default=[],
        metavar="A,B",
        help="variables of this notebook to define in the job: numbers, text, lists, dicts, arrays, tensors, frames",
    )
    parser.add_argument(
        "--pull",
        action="append",
        default=[],
        metavar="A,B",
        help="variables of the job's cell to define in this notebook when it has ended, with the values of rank 0: the "
        "same kinds as --push, and frames of pandas, up to 64 MiB together",
    )
    _add_stream_options(parser)
    return parser


def _add_stream_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--detach", action="store_true", help="submit and return at once")
    parser.add_argument("--cancel-on-interrupt", action="store_true", help="interrupting the cell stops the job")


@cache
def verb_parser() -> Parser:
    """Return the parser of ``%hyperpod VERB …``."""
    parser = Parser(
        prog="%hyperpod",
        description="Jobs, nodes and faults from a cell.",
        formatter_class=help_format,
        epilog="JOB is an id, or a name for its newest job; without it, the last job of this notebook.",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    made = {
        name: verbs.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + ".", formatter_class=help_format
        )
        for name, text in VERB_HELP.items()
    }
    for name in (
        "describe",
        "events",
        "logs",
        "attach",
        "report",
        "notebook",
        "tag",
        "rerun",
        "promote",
        "scale",
    ):
        made[name].add_argument(
            "job", nargs="?", metavar="JOB", help="id or name (default: the last job of this notebook)"
        )
    made["stop"].add_argument(
        "jobs", nargs="*", metavar="JOB", help="ids or names (default: the last job of this notebook)"
    )
    add_event_options(made["events"])
    add_log_options(made["logs"])
    made["attach"].add_argument(
        "--cancel-on-interrupt", action="store_true", help="interrupting the cell stops the job"
    )
    environment_verbs.add_options(made["env"])
    for name in runs.VERBS:
        runs.add_options(name, made[name])
    add_notebook_options(made["notebook"])
    sweeps.add_options(made["sweep"])
    schedules.add_options(made["schedule"])
    add_rerun_options(made["rerun"])
    _add_stream_options(made["rerun"])
    promote.add_options(made["promote"])
    _add_stream_options(made["promote"])
    made["scale"].add_argument(
        "target", type=int, metavar="N", help="nodes to run on, or replicas, within the job's range"
    )
    fault = made["fault"]
    fault.add_argument("--job", metavar="JOB", help="id or name (default: the last job of this notebook)")
    add_fault_options(fault)
    add_cluster_options(made["cluster"])
    nodes.add_node_options(made["nodes"])
    kept_pods.add_options(made["kept"])
    nodes.add_health_options(made["health"])
    for name in housekeeping.VERBS:
        housekeeping.add_options(name, made[name])
    for name in mounting.VERBS:
        mounting.add_options(name, made[name])
    validate.add_options(made["validate"])
    add_serve_options(made["serve"])
    add_plan_options(made["plan"])
    recipe = made["recipe"]
    recipe.add_argument("name", nargs="?", metavar="NAME", help="the recipe; without it, all are listed")
    recipe.add_argument("--nodes", type=int, metavar="N", help="nodes to train on (default: the recipe's own)")
    recipe.add_argument("--inline", action="store_true", help="write the model into the cell, to change it there")
    return parser


def parse(parser: Parser, line: str) -> argparse.Namespace:
    """Parse a magic's line; raises SpecError for bad use, HelpShown after ``--help``."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise SpecError(f"{parser.prog}: {error} in {without_values(line)[:80]!r}") from None
    if parser is verb_parser():
        words = [ALIASES.get(words[0], words[0]), *words[1:]] if words else ["--help"]
    if parser is verb_parser() and words and not words[0].startswith("-") and words[0] not in VERB_HELP:
        raise SpecError(
            f"{parser.prog}: unknown verb {words[0][:40]!r}{near_matches(words[0], list(VERB_HELP))}; "
            f"expected one of {', '.join(VERB_HELP)}"
        )
    return parser.parse_args(words)
