"""Turns a fresh fork of a preloaded interpreter into a job's process, as if ``python -m module`` had been started."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

from ..core.spec import LaunchPlan
from ..storage.environment import tell_loaded_libraries
from ..system.diagnostics import note
from ..system.processes import close_descriptors, die_with_parent


def become(plan: LaunchPlan, module: str, log: int, parent: int, names: Mapping[str, str], leads: bool) -> int:
    """Run the plan's ``module`` in this fork of `parent`; returns its exit status.

    ``names``: variables that say where it runs. ``leads``: it opens a session of its own.
    """
    die_with_parent(parent)
    if leads:
        os.setsid()
    redirect(log)
    reset_signals()
    os.environ.update(plan.env)
    os.environ.update(names)
    enter(plan)
    sys.argv = [module, *plan.arguments]
    sys.path[0] = os.getcwd()
    tell_loaded_libraries(plan.env)
    main: Callable[[], int | None] = importlib.import_module(module).main
    return main() or 0


def redirect(log: int, keep: int = -1) -> None:
    """Standard input from nowhere, output and errors to `log`; close all other descriptors but `keep`."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target, inheritable=True)
    os.closerange(3, keep)
    close_descriptors(max(3, keep + 1))


def reset_signals() -> None:
    """What `python -m` would have found."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def enter(plan: LaunchPlan) -> None:
    """Go to the plan's directory; where it is gone (another machine's path), stay and say so."""
    try:
        os.chdir(plan.working_directory or "/")
    except OSError as error:
        note(f"the working directory cannot be entered, {os.getcwd()} is used instead: {error}")


def run_and_exit(life: Callable[[], int]) -> None:
    """Run ``life()`` as the whole life of a forked process; never returns."""
    status = 1
    try:
        status = life()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status & 0xFF)
