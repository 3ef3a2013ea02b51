"""Declares each verb. Each imports its options itself, so that a command does not pay for the others."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from .verb_parser import Verbs

FOLLOW = "stay until the job ends; Ctrl-C leaves the job running"


def _submit(verbs: Verbs, name: str) -> None:
    from ..control.schedules.verbs import add_schedule_options
    from ..control.submit_options import add_submit_options
    from ..control.sweeps.verbs import add_sweep_options

    verb = verbs.add(name, "run a Python file or the code cells of a notebook as a job")
    verb.takes_arguments = True
    verb.usage = "%(prog)s [options] FILE [-- ARGUMENT ...]"
    verb.epilog = "The file gets the words after -- as sys.argv[1:], as with python FILE ARGUMENT ..."
    verb.add_argument("file", metavar="FILE", help="a .py file, or an .ipynb notebook whose code cells are joined")
    add_submit_options(verb)
    add_sweep_options(verb)
    add_schedule_options(verb)
    verb.add_argument("--follow", action="store_true", help=FOLLOW)


def _rerun(verbs: Verbs, name: str) -> None:
    from ..control.submit_options import add_rerun_options

    verb = verbs.add(name, "run a job again: the same code, the same specification", job=True)
    add_rerun_options(verb)
    verb.add_argument("--follow", action="store_true", help=FOLLOW)


def _promote(verbs: Verbs, name: str) -> None:
    from ..control.runs import promote

    verb = verbs.add(name, promote.HELP, job=True)
    promote.add_options(verb)
    verb.add_argument("--follow", action="store_true", help=FOLLOW)


def _list(verbs: Verbs, name: str) -> None:
    from ..control.report import JOBS_SHOWN

    verb = verbs.add(name, "list the jobs, newest first")
    shown = f"all jobs, not only the newest {JOBS_SHOWN} and those that run"
    verb.add_argument("--all", action="store_true", help=shown)
    verb.add_argument("--archived", action="store_true", help="archived jobs, too")
    verb.add_argument("--tag", metavar="TAG", help="only jobs with this tag")


def _describe(verbs: Verbs, name: str) -> None:
    verbs.add(name, "show everything known about a job", job=True)


def _logs(verbs: Verbs, name: str) -> None:
    from ..control.verb_options import add_log_options

    verb = verbs.add(name, "print the output of a job's ranks", job=True, query=True)
    verb.add_argument("--follow", action="store_true", help=FOLLOW)
    add_log_options(verb)


def _events(verbs: Verbs, name: str) -> None:
    from ..control.verb_options import add_event_options

    verb = verbs.add(name, "print what happened to a job, one sentence per event", job=True, query=True)
    verb.add_argument("--follow", action="store_true", help=FOLLOW)
    add_event_options(verb)


def _env(verbs: Verbs, name: str) -> None:
    from ..control.parity import environment_verbs

    environment_verbs.add_options(verbs.add(name, environment_verbs.HELP))


def _audit(verbs: Verbs, name: str) -> None:
    verbs.add(name, "prove from the journal that every sample of every step was counted once", job=True)


def _run(verbs: Verbs, name: str) -> None:
    from ..control.runs import verbs as runs

    runs.add_options(name, verbs.add(name, runs.VERBS[name], job=name in ("report", "tag")))


def _notebook(verbs: Verbs, name: str) -> None:
    from ..control.verb_options import NOTEBOOK_HELP, add_notebook_options

    add_notebook_options(verbs.add(name, NOTEBOOK_HELP, job=True))


def _sweep(verbs: Verbs, name: str) -> None:
    from ..control.sweeps import verbs as sweeps

    sweeps.add_options(verbs.add(name, sweeps.HELP))


def _schedule(verbs: Verbs, name: str) -> None:
    from ..control.schedules import verbs as schedules

    schedules.add_options(verbs.add(name, schedules.HELP))


def _nodes(verbs: Verbs, name: str) -> None:
    from ..control import nodes

    nodes.add_node_options(verbs.add(name, nodes.NODES_HELP))


def _health(verbs: Verbs, name: str) -> None:
    from ..control import nodes

    nodes.add_health_options(verbs.add(name, nodes.HEALTH_HELP))


def _kept(verbs: Verbs, name: str) -> None:
    from ..control.clusters import kept_pods

    kept_pods.add_options(verbs.add(name, kept_pods.HELP))


def _scale(verbs: Verbs, name: str) -> None:
    verb = verbs.add(name, "ask a running job to grow or shrink, without a restart", job=True)
    verb.add_argument("target", type=int, metavar="N", help="nodes to run on, or replicas, within the job's range")


def _stop(verbs: Verbs, name: str) -> None:
    verb = verbs.add(name, "end jobs at once; their checkpoints stay")
    verb.add_argument(
        "jobs",
        nargs="+",
        metavar="JOB",
        help="a job's id, or its name for the newest job of that name; several will do",
    )


def _housekeeping(verbs: Verbs, name: str) -> None:
    from ..control import housekeeping

    housekeeping.add_options(name, verbs.add(name, housekeeping.VERBS[name]))


def _fault(verbs: Verbs, name: str) -> None:
    from ..control.verb_options import add_fault_options

    verb = verbs.add(name, "break something on purpose and watch the job recover")
    verb.add_argument("--job", required=True, metavar="JOB", help="the job to break")
    add_fault_options(verb)


def _cluster(verbs: Verbs, name: str) -> None:
    from ..control.verb_options import add_cluster_options

    add_cluster_options(verbs.add(name, "start, show or stop the local cluster, or heal its network"))


def _contexts(verbs: Verbs, name: str) -> None:
    from ..control.aws import context_options

    context_options.add_options(name, verbs.add(name, context_options.VERBS[name]))


def _metrics(verbs: Verbs, name: str) -> None:
    verb = verbs.add(name, "print nodes and jobs in Prometheus' format, or serve them on loopback", json=False)
    verb.add_argument("--port", type=int, metavar="P", help="serve /metrics on 127.0.0.1 until Ctrl-C; 0: any port")


def _setup(verbs: Verbs, name: str) -> None:
    from .kubernetes_setup import HELP, add_setup_options

    add_setup_options(verbs.add(name, HELP))


def _validate(verbs: Verbs, name: str) -> None:
    from ..control.validate import add_options

    add_options(verbs.add(name, "check nodes, devices, storage, network and a small training, row by row"))


def _doctor(verbs: Verbs, name: str) -> None:
    from ..control.doctor import checkup

    verbs.add(name, checkup.HELP)


def _bench(verbs: Verbs, name: str) -> None:
    verb = verbs.add(name, "measure this machine against the product's bars")
    verb.add_argument("name", metavar="NAME", help="latency, recovery, …; an unknown name lists them all")
    verb.add_argument(
        "options", type=_setting, nargs="*", metavar="OPTION=VALUE", help="settings of this benchmark, e.g. members=4"
    )
    verb.add_argument("--runs", type=int, metavar="N", help="repetitions (default: the benchmark's own)")
    verb.add_argument(
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


def _mounting(verbs: Verbs, name: str) -> None:
    from ..control import mounting

    mounting.add_options(name, verbs.add(name, mounting.VERBS[name]))


def _recipe(verbs: Verbs, name: str) -> None:
    from ..core.backends import BACKENDS

    verb = verbs.add(name, "list the recipes, show one, or render the cell that trains it")
    verb.add_argument("action", choices=("list", "show", "render"), metavar="ACTION", help="list, show or render")
    verb.add_argument("name", nargs="?", metavar="NAME", help="show, render: the recipe, for example llama-tiny")
    verb.add_argument("--nodes", type=int, metavar="N", help="render: nodes to train on (default: the recipe's own)")
    verb.add_argument("--backend", choices=BACKENDS, help="render: where it runs (default: local, or slurm if large)")
    verb.add_argument("--inline", action="store_true", help="render: write the model into the cell, to change it")
    verb.add_argument("--output", metavar="FILE", help="render: a new .py file instead of a cell on the screen")


def _serve(verbs: Verbs, name: str) -> None:
    from ..control.verb_options import add_serve_options

    verb = verbs.add(name, "serve a model over HTTP, with as many replicas as the load needs")
    add_serve_options(verb)
    verb.add_argument("--follow", action="store_true", help=FOLLOW)


def _plan(verbs: Verbs, name: str) -> None:
    from ..planner.request import SUMMARY, add_plan_options

    add_plan_options(verbs.add(name, SUMMARY))


def _model(verbs: Verbs, name: str) -> None:
    from .model import add_model_options

    add_model_options(verbs.add(name, "shard, merge, check or load a model: files, s3:// or https://"))


# in the order of `--help`
DECLARED: dict[str, Callable[[Verbs, str], None]] = {
    "submit": _submit,
    "rerun": _rerun,
    "promote": _promote,
    "list": _list,
    "describe": _describe,
    "logs": _logs,
    "events": _events,
    "env": _env,
    "audit": _audit,
    "report": _run,
    "notebook": _notebook,
    "tag": _run,
    "compare": _run,
    "sweep": _sweep,
    "schedule": _schedule,
    "nodes": _nodes,
    "health": _health,
    "kept": _kept,
    "scale": _scale,
    "stop": _stop,
    "delete": _housekeeping,
    "prune": _housekeeping,
    "share": _housekeeping,
    "fault": _fault,
    "cluster": _cluster,
    "list-cluster": _contexts,
    "describe-cluster": _contexts,
    "set-cluster-context": _contexts,
    "get-cluster-context": _contexts,
    "metrics": _metrics,
    "setup": _setup,
    "validate": _validate,
    "doctor": _doctor,
    "bench": _bench,
    "mount": _mounting,
    "umount": _mounting,
    "ls": _mounting,
    "cp": _mounting,
    "df": _mounting,
    "recipe": _recipe,
    "serve": _serve,
    "plan": _plan,
    "model": _model,
}
