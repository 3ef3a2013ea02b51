"""The options ``--sweep …`` of a submission, and the verb ``sweep``, for the command line and the magic."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...core.errors import Conflict, NotFound, SpecError
from ...core.units import format_bytes, plural
from ...policy.sweeps import space
from ...policy.sweeps.samplers import GRID, RANDOM
from ...storage.store import Store
from .. import housekeeping, jobs
from ..option_parser import add_action, add_env_option, one_of
from ..prospect import prospect
from ..runs.verbs import write
from ..sources import own_imports
from ..text_tables import Answer
from . import asking, following, sweep_table, trials
from .metric import values_text
from .plan import ASKING, LOSS, PRUNERS, SweepPlan, described, prepared, remarks, settled
from .trials import Sweep, SweepTrial

HELP = "list sweeps; show, follow, resume, stop or delete one, or write its report as one HTML file"
ACTIONS = ("list", "show", "follow", "resume", "stop", "delete", "report")
_INSTEAD = {
    **dict.fromkeys(("remove", "rm", "prune"), "`sweep delete NAME` deletes the trials of one that has ended"),
    **dict.fromkeys(("cancel", "pause", "kill"), "`sweep stop NAME` ends its trials; `sweep resume NAME` goes on"),
    **dict.fromkeys(("start", "run", "begin"), "`--sweep NAME=VALUES` with a cell or a file begins one"),
    **dict.fromkeys(("ls", "status", "jobs"), "`sweep list` shows all"),
    **dict.fromkeys(("attach", "watch", "logs"), "`sweep follow NAME` shows one until it ends"),
    "describe": "`sweep show NAME` shows one",
}
SAMPLERS = (GRID, RANDOM, *ASKING)


def add_sweep_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that make a submission a sweep; one that is not given is None."""
    group = parser.add_argument_group("sweep", "each trial is a job of its own with other values in the code")
    add = group.add_argument
    add(
        "--sweep",
        action="append",
        metavar="NAME=VALUES",
        help="try these values of a variable that the code assigns: lr=1e-4,3e-4 or lr=1e-4..1e-1:log or layers=1..8; "
        "may be repeated",
    )
    add("--trials", type=int, metavar="N", help="try N random points (default: all points of the lists)")
    add("--metric", metavar="NAME", help=f"logged value, or variable at the end, to judge by (default: {LOSS})")
    better = group.add_mutually_exclusive_group()
    better.add_argument("--minimize", action="store_true", help="the smallest value is the best (default)")
    better.add_argument("--maximize", action="store_true", help="the largest value is the best")
    add(
        "--sampler",
        choices=SAMPLERS,
        help=f"what chooses the points: {GRID}, {RANDOM} (default with --trials), or one of Optuna's, which learn from "
        f"trials that have ended: {', '.join(ASKING)}",
    )
    add(
        "--pruner",
        choices=tuple(filter(None, PRUNERS)),
        help="Optuna's pruner that ends trials worse than others early",
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the verb ``sweep``."""
    add_action(parser, ACTIONS, one_of("sweep", ACTIONS, _INSTEAD), "show, follow, resume, stop, delete or report")
    parser.add_argument(
        "sweep", nargs="?", metavar="NAME", help="id or name of a sweep, or a job of it; a name means its newest sweep"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="report: file to write (default: ID.html in this folder)"
    )
    parser.add_argument(
        "--again", choices=trials.AGAIN, help="resume: submit the trials once more that failed, or that were stopped"
    )
    add_env_option(parser, "resume: environment variable of the trials, whose values are not kept; may be repeated")


def chosen_plan(options: argparse.Namespace, seed: int, arguments: tuple[str, ...] = ()) -> SweepPlan | None:
    """The plan that the options ask for; None where they ask for no sweep. Raises SpecError."""
    if not options.sweep:
        given = [
            name for name in ("trials", "metric", "minimize", "maximize", "sampler", "pruner") if getattr(options, name)
        ]
        if given:
            raise SpecError(f"--{given[0]} belongs to a sweep: say what is to be tried, such as --sweep lr=1e-4,3e-4")
        return None
    return SweepPlan.make(
        space.parse(options.sweep),
        sampler=options.sampler,
        trials=options.trials,
        seed=seed,
        metric=options.metric or LOSS,
        maximize=options.maximize,
        pruner=options.pruner or "",
        arguments=arguments if any("{" in word for word in arguments) else (),
    )


def dry_run(store: Store, source: str, fields: Mapping[str, Any], plan: SweepPlan) -> tuple[dict[str, Any], list[str]]:
    """What a sweep would submit, for programs and as lines. Raises SpecError as `trials.begin` does."""
    plan = settled(source, plan)
    prepared(source, fields, plan)
    trials.checked_point(source, fields, plan)
    points = trials.checked_points(source, fields, plan)
    notes = remarks(source, plan)
    lines = [described(plan), *(f"note: {text}" for text in notes)]
    lines += [f"  trial {number}: {values_text(point)}" for number, point in points.items()]
    said = prospect(store, fields, later=True)
    lines += [said] if said else []
    return {"plan": plan.to_json(), "trials": list(points.values()), "notes": notes, "prospect": said}, lines


def followed(options: argparse.Namespace, store: Store) -> tuple[Sweep, Iterator[list[SweepTrial]]] | None:
    """The sweep to follow, and what comes of it: of ``follow``, and of ``resume`` where the plan asks; else None."""
    if options.action == "follow":
        sweep = named(options, store)
        return sweep, following.updates(sweep)
    if options.action == "resume" and not options.again:
        sweep = named(options, store)
        if sweep.plan.asks and sweep.missing:
            return sweep, asking.resume(sweep, options.env)
    return None


def detached_line(sweep: Sweep, command: str) -> str:
    """What to say when somebody stops following a sweep."""
    if sweep.plan.asks and sweep.missing:
        return (
            f"detached; the running trials of {sweep.id} go on, and no new ones begin until {command} sweep resume "
            f"{sweep.id}"
        )
    return f"detached; {sweep.id} goes on. Follow it again with: {command} sweep follow {sweep.id}"


def named(options: argparse.Namespace, store: Store) -> Sweep:
    """The sweep that the options name. Raises NotFound, SpecError where they name none."""
    if not options.sweep:
        raise SpecError(f"`sweep {options.action}` needs the name of a sweep; `sweep list` shows them")
    return trials.read(store, options.sweep)


def run(options: argparse.Namespace, store: Store, command: str) -> Answer:
    """Carry out ``sweep``, but for what is `followed`, which each face shows. ``command``: how this face is called."""
    if options.output is not None and options.action != "report":
        raise SpecError(f"-o belongs to `sweep report`, not to `sweep {options.action}`")
    if options.env is not None and options.action != "resume":
        raise SpecError(f"--env belongs to `sweep resume`, not to `sweep {options.action}`")
    if options.again is not None and options.action != "resume":
        raise SpecError(f"--again belongs to `sweep resume`, not to `sweep {options.action}`")
    if options.action == "list":
        if options.sweep:
            raise SpecError("`sweep list` lists all sweeps; `sweep show NAME` shows one")
        found = [trials.read(store, name) for name in trials.sweep_ids(store)]
        return Answer([sweep_table.record(one) for one in found], sweep_table.overview(found))
    sweep = named(options, store)
    if options.action == "show":
        return shown(sweep, command)
    if options.action == "stop":
        asked = trials.stop(sweep, f"stopped by {jobs.person()}: the sweep {sweep.id}")
        told = (
            f"asked {plural(len(asked), 'trial')} of {sweep.id} to stop" if asked else f"{sweep.id} has already ended"
        )
        return Answer({"id": sweep.id, "jobs": asked}, None, [told])
    if options.action == "delete":
        return _deleted(sweep, command)
    if options.action == "resume":
        return _resumed(sweep, options, command)
    return report(sweep, options.output)


def _deleted(sweep: Sweep, command: str) -> Answer:
    """Delete all jobs of a sweep. Raises Conflict where one of them has not ended."""
    sweep.store.refuse_foreign()
    if count := len(sweep.unfinished):
        have = "has" if count == 1 else "have"
        raise Conflict(
            f"{plural(count, 'trial')} of {sweep.id} {have} not ended: `{command} sweep stop {sweep.id}` ends what "
            "runs, then delete it"
        )
    gone = housekeeping.delete_jobs(sweep.store, trials.all_jobs(sweep))
    return Answer({"id": sweep.id, "jobs": gone.record}, None, gone.lines)


def _resumed(sweep: Sweep, options: argparse.Namespace, command: str) -> Answer:
    """Submit what is missing, or once more what failed or was stopped."""
    if options.again:
        more = trials.submit_again(sweep.store, sweep.id, options.again, options.env)
        none = f"no trial of {sweep.id} has {'failed' if options.again == 'failed' else 'been stopped'}"
    else:
        more = trials.resume(sweep.store, sweep.id, options.env)
        none = f"no trial of {sweep.id} is missing"
        for state in trials.AGAIN:
            if count := sum(trial.state == state for trial in sweep.trials):
                none += f"; {count} {state}: {command} sweep resume {sweep.id} --again {state} submits them once more"
    lines = [f"submitted {plural(len(more), 'trial')} of {sweep.id}" if more else none]
    if more and (names := own_imports.changed(sweep.store, sweep.store.job(more[0]))):
        lines.append(f"since {sweep.id} began, {names} has changed: the new trials run it as it was then")
    return Answer({"id": sweep.id, "jobs": more}, None, lines)


@contextmanager
def told_when_cut_off(say: Callable[[str], object]) -> Iterator[None]:
    """Say what was submitted, and how to go on, where a submission ends early."""
    try:
        yield
    except BaseException as error:
        for text in getattr(error, "__notes__", []):
            say(text)
        raise


def shown(sweep: Sweep, command: str) -> Answer:
    """A sweep as a table and lines."""
    lines = [sweep_table.summary_line(sweep), described(sweep.plan), sweep_table.hidden_line(sweep)]
    lines += sweep_table.end_lines(sweep, command) if not sweep.unfinished else []
    return Answer(sweep_table.record(sweep), sweep_table.trials_table(sweep), list(filter(None, lines)))


def report(sweep: Sweep, output: str | None) -> Answer:
    """Write the report of a sweep."""
    from ... import __version__
    from .sweep_page import sweep_page

    if not sweep.trials:
        raise NotFound(f"no trial of {sweep.id} is left")
    path = Path(output or f"{sweep.id}.html").absolute()
    size = write(path, sweep_page(sweep, __version__))
    line = sweep_table.summary_line(sweep)
    told = {"id": sweep.id, "path": str(path), "bytes": size, "sentence": line}
    return Answer(told, None, [line, f"{path}: {format_bytes(size)}"])
