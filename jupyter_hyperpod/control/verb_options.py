"""Declares the options of the verbs cluster, logs, serve and fault, and turns them into keywords."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..core import env_references
from ..core.backends import BACKENDS
from ..core.errors import SpecError
from ..core.events import EVENT_FIELDS, FAULTS, TARGETS
from ..core.names import is_job_id
from ..core.options import argument, near_matches
from ..core.units import few, plural
from ..storage.output import output_choice
from ..storage.output.levels import LEVELS
from ..storage.output.levels import parse as parse_levels
from ..storage.output.output_choice import OutputChoice
from ..storage.store import JobStore, Store
from . import cluster
from .clusters.foreground import EXIT_LEFT
from .clusters.shape import IDLE_VARIABLE, OFF, parse_idle_timeout
from .engines import presets
from .jobs import person
from .option_parser import add_backend_options, add_env_option, chosen_backend_options, duration, verbatim_help_format


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``logs`` that choose what is shown."""
    when = "30s, 10min, 2h or 1d ago, 15:00 (today or yesterday), or a date such as 2026-11-25T21:00"
    parser.add_argument("--rank", type=int, metavar="R", help="only this rank")
    parser.add_argument("--node", metavar="NODE", help="only what was printed on this node")
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N lines")
    parser.add_argument("--grep", metavar="REGEX", help="only lines in which this regular expression is found")
    parser.add_argument(
        "--level",
        type=argument(_levels),
        metavar="LEVEL",
        help=f"only lines of this level, or of several with commas: {', '.join(LEVELS)}. Usual formats of logs are "
        "known; a traceback has the level of its record, else error",
    )
    parser.add_argument("--since", metavar="TIME", help=f"only what was printed since {when}")
    parser.add_argument("--until", metavar="TIME", help="only what was printed until then")
    parser.add_argument(
        "--steps",
        metavar="A:B",
        help="only what each rank printed in its steps from A to B of the newest session; A:, :B and A work, too",
    )


def _levels(text: str) -> str:
    parse_levels(text)
    return text


def tail(options: argparse.Namespace, things: str) -> int | None:
    """How many of the last ``things`` are to be shown, None for all. Raises SpecError."""
    if options.tail is not None and options.tail < 1:
        raise SpecError(f"--tail is {options.tail}; expected a number of {things}, 1 or more")
    found: int | None = options.tail
    return found


def log_choice(options: argparse.Namespace, job: JobStore, *, follow: bool = False) -> OutputChoice:
    """What the options of ``logs`` choose. Raises SpecError."""
    if follow and (options.until or options.steps):
        raise SpecError("--follow shows what comes: it cannot be combined with --until and --steps")
    if options.steps and (options.since or options.until):
        raise SpecError("give a range either of time (--since, --until) or of steps (--steps)")
    last, pattern = tail(options, "lines"), output_choice.pattern(options.grep) if options.grep else None
    levels = parse_levels(options.level) if options.level else None
    found = OutputChoice(options.rank, tail=last, pattern=pattern, node=options.node, levels=levels)
    if options.steps:
        steps = output_choice.chosen_steps(job.events, *output_choice.step_range(options.steps))
        return replace(found, steps=steps)
    since_s, until_s = output_choice.time_range(options.since, options.until)
    return replace(found, since_s=since_s, until_s=until_s)


def log_filters(options: argparse.Namespace) -> str:
    """The options of ``logs`` that were given and may hide lines, as they were written."""
    return given_filters(options, "rank", "node", "grep", "level", "since", "until", "steps")


def given_filters(options: argparse.Namespace, *names: str) -> str:
    """Those of the options that were given, as they are written: ``--rank 1 --grep 'a b'``."""
    given = [(name, getattr(options, name)) for name in names if getattr(options, name) is not None]
    words = [(name, one) for name, value in given for one in (value if isinstance(value, list) else [value])]
    return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in words)


NOTEBOOK_HELP = "write the notebook of a job with the outputs of its cells, also while it runs"


def add_notebook_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``notebook``."""
    written = "notebook to write (default: JOB.ipynb in this folder); an executed one that is there is replaced"
    parser.add_argument("-o", "--output", metavar="FILE", help=written)
    parser.add_argument("--rank", type=int, metavar="R", help="with what this rank has printed (default: rank 0)")


def add_event_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``events`` that choose what is shown."""
    parser.add_argument(
        "--kind",
        action="append",
        type=argument(_kind),
        metavar="KIND",
        help="only this kind, for example incident.stage; may be repeated",
    )
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N events")


def _kind(text: str) -> str:
    if text in EVENT_FIELDS:
        return text
    near = near_matches(text, sorted(EVENT_FIELDS), 3)
    raise SpecError(f"no event is of the kind {text[:40]!r}{near}; `events` without --kind shows those of the job")


def no_events(job_id: str, options: argparse.Namespace, count: int) -> str:
    """A sentence for a job of whose ``count`` events none is shown."""
    if not count:
        return f"nothing has happened to {job_id} yet"
    return f"no event of {job_id} matches {given_filters(options, 'kind')}; it has {plural(count, 'event')}"


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``cluster``; an option that is not given is None (or False)."""
    actions = ("start", "status", "stop", "heal")
    parser.add_argument("action", choices=actions, metavar="ACTION", help="start, status, stop or heal")
    parser.add_argument("word", nargs="?", help=argparse.SUPPRESS)  # refused with the option that was meant
    parser.add_argument("--yes", action="store_true", help="stop: end jobs that run without a question")
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
    parser.add_argument(
        "--standby",
        action="store_true",
        help="start: where another host serves this store, be ready here, and take over when that host is lost",
    )
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="start: serve this store here from now on, in the place of another host",
    )
    parser.add_argument(
        "--foreground",
        action="store_true",
        help="start: stay until the cluster has ended or another host serves the store, as in a SLURM job; a signal "
        f"makes this host leave without ending a job (exit status {EXIT_LEFT})",
    )
    parser.add_argument(
        "--idle-timeout",
        type=argument(parse_idle_timeout),
        metavar="T",
        help="start: the cluster ends by itself after so long without a job, a schedule and a request, "
        f"{OFF} for never (default: ${IDLE_VARIABLE}, else 4h); one that runs already does so, too",
    )
    parser.add_argument("--node", metavar="NODE", help="heal: only this node (default: all that are cut off)")


def _queue(text: str) -> tuple[str, int]:
    name, _, nodes = text.partition("=")
    if not nodes.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=NODES, for example research=2")
    return name, int(nodes)


def run_cluster(
    options: argparse.Namespace,
    store: Store,
    wait: Callable[[Store], object],
    agrees: Callable[[str], bool] = lambda question: True,
) -> str:
    """Carry out ``cluster``, with ``wait`` until a started one is ready; return what a person should know, or "".

    ``agrees``: asks whether jobs that run are to end with it. Raises SpecError for an option that belongs to another
    action.
    """
    if options.word is not None:
        meant = {"start": "--nodes", "heal": "--node"}.get(options.action)
        said = f": write `cluster {options.action} {meant} {options.word}`" if meant else ""
        raise SpecError(f"`cluster {options.action}` takes no {options.word!r}{said}")
    queues = None if options.queues is None else dict(options.queues)
    shape: dict[str, Any] = {"nodes": options.nodes, "spares": options.spares, "queues": queues}
    shape["isolated"] = options.isolate_network or None
    shape |= {"standby": options.standby, "take_over": options.take_over, "idle_timeout_s": options.idle_timeout}
    if options.action != "start" and any(value not in (None, False) for value in (*shape.values(), options.foreground)):
        flags = "--nodes, --spares, --queue, --isolate-network, --idle-timeout, --standby, --take-over and --foreground"
        raise SpecError(f"{flags} belong to `cluster start`, not to `cluster {options.action}`")
    if options.action != "heal" and options.node is not None:
        raise SpecError(f"--node belongs to `cluster heal`, not to `cluster {options.action}`")
    if options.action != "stop" and options.yes:
        raise SpecError(f"--yes belongs to `cluster stop`, not to `cluster {options.action}`")
    if options.action != "status":
        cluster.refuse_member(store)
    if options.action == "start":
        here = not cluster.ensure_started(store, **shape)
        if here and not (options.standby or options.take_over) and cluster.standby_for(store) is None:
            wait(store)
    elif options.action == "stop" and (host := cluster.standby_for(store)) is not None:
        cluster.stop(store, by=person())
        return f"this host no longer stands by; {host} serves the store, and its jobs go on"
    elif options.action == "stop" and (cluster.connectable(store) or cluster.status(store)["state"] != "stopped"):
        running = cluster.request(store, {"op": "status"})["jobs"] if cluster.connectable(store) else []
        jobs_run = f"{plural(len(running), 'job')} {'has' if len(running) == 1 else 'have'} not ended: {few(running)}"
        if running and not (options.yes or agrees(f"{jobs_run}. Stop the cluster, and end them?")):
            return "nothing was stopped"
        cluster.stop(store, by=person())
        if running:
            return f"{plural(len(running), 'job')} ended with it: {few(running)}"
    elif options.action == "heal":
        return f"healed: {', '.join(cluster.heal(store, options.node)) or 'nothing was cut off'}"
    return ""


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a deployment; an option that is not given is None (or False, or empty)."""
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="path or URL of the weights; without it, all deployments are listed")
    add("--replicas", metavar="MIN:MAX", help="replicas to keep, and the most that load may bring (default: 1)")
    add("--handler", metavar="FILE", help="a .py file with load(model) and predict(model, inputs), served at /predict")
    add("--engine", metavar="ENGINE", help=f"run another server in each replica: {presets.help_text()}")
    add("--engine-args", metavar="ARGS", help="arguments for the engine, as one text: --engine-args='--dtype float16'")
    add(
        "--start-timeout",
        dest="start_timeout_s",
        type=duration,
        metavar="T",
        help="how long an engine may take until it is ready (default: 10m)",
    )
    add("--recipe", metavar="NAME", help="shape of the decoder (default: config.json beside the weights)")
    add("--name", metavar="NAME", help="name of the deployment (default: that of the model)")
    add("--port", type=int, metavar="P", help="port on loopback (default: any that is free)")
    add("--outstanding", type=float, metavar="N", help="wanted number of requests per replica at a time (default: 2)")
    add("--slots", type=int, metavar="N", help="most requests per replica at a time (default: 8)")
    add(
        "--queue",
        type=int,
        metavar="N",
        help="further requests that may wait; those beyond get 429 (default: 256)",
    )
    add(
        "--timeout",
        dest="request_timeout_s",
        type=duration,
        metavar="T",
        help="limit for one request (default: 60s, 10m with --engine)",
    )
    add(
        "--scale-down-delay",
        dest="scale_down_delay_s",
        type=duration,
        metavar="T",
        help="remove replicas that were not needed for this time (default: 30s)",
    )
    add("--threads", type=int, metavar="T", help="CPU threads of every replica (default: 1)")
    add("--backend", choices=tuple(BACKENDS), help="where the replicas run (default: local)")
    add_backend_options(parser)
    add_env_option(parser, "environment variable of every replica; NAME alone takes your own value")


def serve_fields(options: argparse.Namespace) -> dict[str, Any]:
    """The given keywords of `deploy.serve` besides the model. Raises SpecError for options without one."""
    limits = ("outstanding", "slots", "queue", "request_timeout_s", "scale_down_delay_s")
    engine = ("engine", "engine_args", "start_timeout_s")
    names = ("replicas", "handler", *engine, "recipe", "name", "port", "threads", "env", *limits, "backend")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    given |= chosen_backend_options(options)
    if given and options.model is None:
        raise SpecError(f"--{next(iter(given)).replace('_', '-')} needs a MODEL to be served")
    if "env" in given:
        given["env"], given["env_from"] = env_references.split(given["env"])
    return given


def add_fault_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a fault and its target; the table of kinds is `core.events.FAULTS`."""
    parser.add_argument("kind", type=_fault_kind, choices=FAULTS, metavar="KIND", help="what breaks; the list below")
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
    parser.formatter_class = verbatim_help_format
    parser.epilog = "\n".join(["kinds, and the possible targets of each:", *lines])


def _fault_kind(text: str) -> str:
    if text not in FAULTS and is_job_id(text):
        raise argparse.ArgumentTypeError(
            f"{text} is a job, and the kind of the fault comes first: fault kill --job {text} --rank 0"
        )
    return text


def fault_aim(options: argparse.Namespace) -> dict[str, Any]:
    """The keywords of `jobs.fault` that were given."""
    names = ("rank", "node", "target", "factor", "duration_s")
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def aimed_at(options: argparse.Namespace) -> str:
    """The target of the fault, for people."""
    return str(options.node or options.target or f"rank {options.rank}")
