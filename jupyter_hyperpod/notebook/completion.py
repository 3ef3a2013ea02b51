"""Completes verbs, options, job names and ids, and node names after the magics. It only reads the store."""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher

from ..control import cluster
from ..control.schedules import schedule_file
from ..core.errors import HyperpodError
from ..mounts import table
from ..recipes import catalogue
from ..storage.store import Store
from .arguments import ALIASES, VERB_HELP, cell_parser, verb_parser
from .shell import Notebook

MATCHER_ID = "hyperpod_matcher"


def register(shell: Any, notebook: Notebook) -> None:
    """Add the matcher to the shell's completer, replacing an older one."""

    @context_matcher(identifier=MATCHER_ID)
    def matcher(context: CompletionContext) -> SimpleMatcherResult:
        words = candidates(context.text_until_cursor, context.cursor_line, notebook)
        found = [SimpleCompletion(text=word, type="hyperpod") for word in words if word.startswith(context.token)]
        return SimpleMatcherResult(completions=found, matched_fragment=context.token, suppress=bool(found))

    others = [m for m in shell.Completer.custom_matchers if getattr(m, "matcher_identifier", "") != MATCHER_ID]
    shell.Completer.custom_matchers[:] = [*others, matcher]


def candidates(line: str, line_number: int, notebook: Notebook) -> list[str]:
    """Return the completions at the end of `line`; empty where the line is not ours."""
    words = line.lstrip().split(" ")
    if words[0] == "%%hyperpod" and line_number == 0 and len(words) > 1:
        return _after(cell_parser(), words[1:], notebook)
    if words[0] != "%hyperpod" or len(words) < 2:
        return []
    if len(words) == 2:
        return [*VERB_HELP, *ALIASES]
    verb = _verb(words[1])
    return _after(verb, words[2:], notebook, words[1]) if verb else []


def _verb(name: str) -> argparse.ArgumentParser | None:
    actions = verb_parser()._subparsers
    choices: Any = actions._group_actions[0].choices if actions else {}
    return choices.get(name)  # type: ignore[no-any-return]


def _after(parser: argparse.ArgumentParser, words: list[str], notebook: Notebook, verb: str = "") -> list[str]:
    previous = words[-2] if len(words) > 1 else ""
    option = parser._option_string_actions.get(previous)
    if option is not None and option.nargs != 0:
        return _values(option, notebook)
    if words[-1].startswith("-"):
        return [name for name in parser._option_string_actions if name.startswith("--")]
    found: list[str] = []
    for action in parser._get_positional_actions():
        found += _values(action, notebook)
    return found or [name for name in parser._option_string_actions if name.startswith("--")]


def _values(action: argparse.Action, notebook: Notebook) -> list[str]:
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    if action.dest == "name" and action.option_strings == []:
        return catalogue.names()
    if action.dest == "push":
        return sorted(name for name in notebook.namespace() if not name.startswith("_"))
    with suppress(HyperpodError):
        return _stored(action.dest, notebook.open_store())
    return []


def _stored(what: str, store: Store) -> list[str]:
    """The names of jobs (then their ids, newest first), nodes, mounts or schedules that the store knows."""
    if what in ("job", "jobs"):
        ids = store.job_ids()
        return [*dict.fromkeys(job.rpartition("-")[0] for job in ids), *ids]
    if what == "node":
        return [node["node"] for node in cluster.status(store)["nodes"]]
    if what == "schedule":
        return schedule_file.names(store)
    return list(table.table(store)) if what == "mount" else []
