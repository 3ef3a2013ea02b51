"""The parser of one verb, and what all verbs have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ..control.option_parser import explained, help_format, placed

JSON_LINES = "print one JSON object per line"


ALIASES = {"jobs": "list"}  # the name in the magic


class CommandParser(argparse.ArgumentParser):
    """Answers bad use with the nearest known word."""

    def error(self, message: str) -> NoReturn:
        if message == "unrecognized arguments: --json" and not isinstance(self, _Verb):
            super().error(f"{message} (write it behind the verb, such as list --json)")
        known = list(self._option_string_actions)
        if message.startswith("one of the arguments") and (unknown := _unknown(known)):
            message = f"unrecognized arguments: {unknown}"
        super().error(explained(message, known))


def _unknown(known: Sequence[str]) -> str:
    """The first option of the command line that no parser knows, or ""."""
    given = (word.partition("=")[0] for word in sys.argv[1:])
    return next((word for word in given if word.startswith("--") and len(word) > 2 and word not in known), "")


class _Verb(CommandParser):
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


class Verbs:
    """Adds verbs with the same style and global options."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Verb)

    def add(self, name: str, help: str, *, job: bool = False, query: bool = False, json: bool = True) -> _Verb:
        text = help[0].upper() + help[1:] + "."
        aliases = [alias for alias, verb in ALIASES.items() if verb == name]
        verb: _Verb = self._verbs.add_parser(
            name, aliases=aliases, help=help, description=text, formatter_class=help_format, allow_abbrev=False
        )
        add_store(verb, argparse.SUPPRESS)
        if json:
            verb.add_argument("--json", action="store_true", help=JSON_LINES if query else "print JSON")
        if job:
            verb.add_argument("job", metavar="JOB", help="a job's id, or its name for the newest job of that name")
        return verb


def add_store(parser: argparse.ArgumentParser, default: Any) -> None:
    """Add ``--store``."""
    parser.add_argument(
        "--store",
        metavar="DIR",
        default=default,
        help="directory of jobs and cluster (default: $JUPYTER_HYPERPOD_STORE, else ~/.local/state/jupyter_hyperpod)",
    )
