"""The command line: its parser declares no more verbs than a command needs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .. import __version__
from ..control.option_parser import help_format
from .configuration import GenerateConfig
from .declarations import DECLARED
from .verb_parser import ALIASES, CommandParser, Verbs, add_store

PROG = "jupyter hyperpod"
DESCRIPTION = "Train on a cluster, lose a machine, keep the step."
EPILOG = "A JOB is a job's id, or its name for the newest job of that name. Exit status: 0 ok, 1 failure, 2 bad use."


def build_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the whole command line; where `words` begin with a verb, only as much of it as they need."""
    parser = CommandParser(
        prog=PROG, description=DESCRIPTION, epilog=EPILOG, formatter_class=help_format, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"jupyter_hyperpod {__version__}")
    parser.add_argument("--generate-config", action=GenerateConfig, help="print every setting, to be kept in a file")
    add_store(parser, None)
    verbs = Verbs(parser)
    wanted = _verb_of(words)
    for name in (wanted,) if wanted in DECLARED else DECLARED:
        DECLARED[name](verbs, name)
    return parser


def _verb_of(words: Sequence[str]) -> str:
    """The word where the verb should be."""
    left = iter(words)
    for word in left:
        if word == "--store":
            next(left, "")
        elif not word.startswith("--store="):
            return ALIASES.get(word, word)
    return ""
