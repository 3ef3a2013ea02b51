"""Declares the command line. Imports nothing heavy, so that `--help` and bad use answer at once."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from ..control import housekeeping, mounting, nodes
from ..control.doctor import checkup
from ..control.option_parser import explained, help_format, placed
from ..control.parity import environment_verbs
from ..control.report import JOBS_SHOWN
from ..control.runs import promote
from ..control.runs import verbs as runs
from ..control.submit_options import add_rerun_options, add_submit_options
from ..control.sweeps import verbs as sweeps
from ..control.validate import add_options as add_validate_options
from ..control.verb_options import (
    add_cluster_options,
    add_event_options,
    add_fault_options,
    add_log_options,
    add_serve_options,
)
from ..core.backends import BACKENDS
from ..planner.request import SUMMARY, add_plan_options
from .configuration import GenerateConfig
from .kubernetes_setup import HELP as SETUP_HELP
from .kubernetes_setup import add_setup_options
from .model import add_model_options

PROG = "jupyter hyperpod"
DESCRIPTION = "Train on a cluster, lose a machine, keep the step."
EPILOG = "A JOB is a job's id, or its name for the newest job of that name. Exit status: 0 ok, 1 failure, 2 bad use."


FOLLOW = "stay until the job ends; Ctrl-C leaves the job running"
JSON_LINES = "print one JSON object per line"


ALIASES = {"jobs": "list"}  # the name in the magic


class _Parser(argparse.ArgumentParser):
    """Answers bad use with the nearest known word."""

    def error(self, message: str) -> NoReturn:
        if message == "unrecognized arguments: --json" and not isinstance(self, _Verb):
            super().error(f"{message} (write it behind the verb, such as list --json)")
        super().error(explained(message, list(self._option_string_actions)))


class _Verb(_Parser):
    """One verb. Its words may be before and after its options; argparse alone would refuse the latter."""

    takes_arguments = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        behind: list[str] = []
        if self.takes_arguments and "--" in words:  # everything after it belongs to the file, options included
            at = words.index("--")
            words, behind = words[:at], words[at + 1 :]
        found, left = self._parse(words, namespace)
        if self.takes_arguments:
            found.arguments = behind
        return found, left

    def _parse(self, args: list[str], namespace: Any) -> Any:
        found, left = super().parse_known_args(args, namespace)
        left = placed(self, found, left)
        if left:  # here, because the parser of all verbs does not know this verb's options
            said = explained(f"unrecognized arguments: {' '.join(left)}", list(self._option_string_actions))
            behind = "; the file's own arguments stand behind --" if self.takes_arguments else ""
            argparse.ArgumentParser.error(self, said + behind)
        return found, left


class _Verbs:
    """Adds verbs with the same style and global options."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Verb)

    def add(self, name: str, help: str, *, job: bool = False, query: bool = False, json: bool = True) -> _Verb:
        text = help[0].upper() + help[1:] + "."
        aliases = [alias for alias, verb in ALIASES.items() if verb == name]
        verb: _Verb = self._verbs.add_parser(
            name, aliases=aliases, help=help, description=text, formatter_class=help_format, allow_abbrev=False
        )
        _add_store(verb, argparse.SUPPRESS)
        if json:
            verb.add_argument("--json", action="store_true", help=JSON_LINES if query else "print JSON")
        if job:
            verb.add_argument("job", metavar="JOB", help="a job's id, or its name for the newest job of that name")
        return verb


def _add_store(parser: argparse.ArgumentParser, default: Any) -> None:
    parser.add_argument(
        "--store",
        metavar="DIR",
        default=default,
        help="directory of jobs and cluster (default: $JUPYTER_HYPERPOD_STORE, else ~/.local/state/jupyter_hyperpod)",
    )


def build_parser() -> argparse.ArgumentParser:
    """Return the whole command line."""
    from .. import __version__

    parser = _Parser(prog=PROG, description=DESCRIPTION, epilog=EPILOG, formatter_class=help_format, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"jupyter_hyperpod {__version__}")
    parser.add_argument("--generate-config", action=GenerateConfig, help="print every setting, to be kept in a file")
    _add_store(parser, None)
    verbs = _Verbs(parser)
    _add_job_verbs(verbs)
    _add_control_verbs(verbs)
    _add_cluster_verbs(verbs)
    for name, text in mounting.VERBS.items():
        mounting.add_options(name, verbs.add(name, text))
    _add_recipe_verb(verbs)
    serve = verbs.add("serve", "serve a model over HTTP, with as many replicas as the load needs")
    add_serve_options(serve)
    serve.add_argument("--follow", action="store_true", help=FOLLOW)
    add_plan_options(verbs.add("plan", SUMMARY))
    add_model_options(verbs.add("model", "shard, merge, check or load a model: files, s3:// or https://"))
    return parser


def _add_job_verbs(verbs: _Verbs) -> None:
    submit = verbs.add("submit", "run a Python file or the code cells of a notebook as a job")
    submit.takes_arguments = True
    submit.usage = "%(prog)s [options] FILE [-- ARGUMENT ...]"
    submit.epilog = "The file gets the words after -- as sys.argv[1:], as with python FILE ARGUMENT ..."
    submit.add_argument("file", metavar="FILE", help="a .py file, or an .ipynb notebook whose code cells are joined")
    add_submit_options(submit)
    sweeps.add_sweep_options(submit)
    submit.add_argument("--follow", action="store_true", help=FOLLOW)

    rerun = verbs.add("rerun", "run a job again: the same code, the same specification", job=True)
    add_rerun_options(rerun)
    rerun.add_argument("--follow", action="store_true", help=FOLLOW)

    promoted = verbs.add("promote", promote.HELP, job=True)
    promote.add_options(promoted)
    promoted.add_argument("--follow", action="store_true", help=FOLLOW)

    listed = verbs.add("list", "list the jobs, newest first")
    shown = f"all jobs, not only the newest {JOBS_SHOWN} and those that run"
    listed.add_argument("--all", action="store_true", help=shown)
    listed.add_argument("--archived", action="store_true", help="archived jobs, too")
    listed.add_argument("--tag", metavar="TAG", help="only jobs with this tag")
    verbs.add("describe", "show everything known about a job", job=True)

    logs = verbs.add("logs", "print the output of a job's ranks", job=True, query=True)
    logs.add_argument("--follow", action="store_true", help=FOLLOW)
    add_log_options(logs)

    events = verbs.add("events", "print what happened to a job, one sentence per event", job=True, query=True)
    events.add_argument("--follow", action="store_true", help=FOLLOW)
    add_event_options(events)

    environment_verbs.add_options(verbs.add("env", environment_verbs.HELP))
    verbs.add("audit", "prove from the journal that every sample of every step was counted once", job=True)

    for name, text in runs.VERBS.items():
        runs.add_options(name, verbs.add(name, text, job=name in ("report", "tag")))

    sweep = verbs.add("sweep", sweeps.HELP)
    sweeps.add_options(sweep)
    nodes.add_node_options(verbs.add("nodes", nodes.NODES_HELP))
    nodes.add_health_options(verbs.add("health", nodes.HEALTH_HELP))


def _add_control_verbs(verbs: _Verbs) -> None:
    scale = verbs.add("scale", "ask a running job to grow or shrink, without a restart", job=True)
    scale.add_argument("target", type=int, metavar="N", help="nodes to run on, within the job's elastic range")

    verbs.add("stop", "end a job at once; its checkpoints stay", job=True)
    for name, text in housekeeping.VERBS.items():
        housekeeping.add_options(name, verbs.add(name, text))

    fault = verbs.add("fault", "break something on purpose and watch the job recover")
    fault.add_argument("--job", required=True, metavar="JOB", help="the job to break")
    add_fault_options(fault)


def _add_cluster_verbs(verbs: _Verbs) -> None:
    add_cluster_options(verbs.add("cluster", "start, show or stop the local cluster, or heal its network"))

    metrics = verbs.add("metrics", "print nodes and jobs in Prometheus' format, or serve them on loopback", json=False)
    metrics.add_argument("--port", type=int, metavar="P", help="serve /metrics on 127.0.0.1 until Ctrl-C; 0: any port")
    add_setup_options(verbs.add("setup", SETUP_HELP))
    add_validate_options(
        verbs.add("validate", "check nodes, devices, storage, network and a small training, row by row")
    )

    verbs.add("doctor", checkup.HELP)

    bench = verbs.add("bench", "measure this machine against the product's bars")
    bench.add_argument("name", metavar="NAME", help="latency, recovery, …; an unknown name lists them all")
    bench.add_argument(
        "options", type=_setting, nargs="*", metavar="OPTION=VALUE", help="settings of this benchmark, e.g. members=4"
    )
    bench.add_argument("--runs", type=int, metavar="N", help="repetitions (default: the benchmark's own)")
    bench.add_argument(
        "--peers",
        choices=("none", "torchrun", "torchft", "nvrx", "all"),
        help="systems to compare with; they are installed into environments of their own (default: none)",
    )


def _setting(text: str) -> tuple[str, int | float | str]:
    """Parse ``NAME=VALUE``; numbers become numbers."""
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form OPTION=VALUE")
    for number in (int, float):
        try:
            return name, number(value)
        except ValueError:
            continue
    return name, value


def _add_recipe_verb(verbs: _Verbs) -> None:
    recipe = verbs.add("recipe", "list the recipes, show one, or render the cell that trains it")
    recipe.add_argument("action", choices=("list", "show", "render"), metavar="ACTION", help="list, show or render")
    recipe.add_argument("name", nargs="?", metavar="NAME", help="show, render: the recipe, for example llama-tiny")
    recipe.add_argument("--nodes", type=int, metavar="N", help="render: nodes to train on (default: the recipe's own)")
    recipe.add_argument("--backend", choices=BACKENDS, help="render: where it runs (default: local, or slurm if large)")
    recipe.add_argument("--inline", action="store_true", help="render: write the model into the cell, to change it")
    recipe.add_argument("--output", metavar="FILE", help="render: a new .py file instead of a cell on the screen")
