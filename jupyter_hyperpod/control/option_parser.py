"""The parser of the CLI and the magics: it raises instead of exiting, and suggests the nearest known option."""

from __future__ import annotations

import argparse
import os
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ..core import backend_options
from ..core.env_references import EnvReference
from ..core.errors import SpecError
from ..core.names import is_env_name
from ..core.options import argument, near_matches
from ..core.spec import HIDDEN
from ..core.units import parse_bytes, parse_duration

_INVALID_CHOICE = re.compile(r"invalid choice: .(.*?). \(choose from (.*)\)")
FOLLOWS = " (logs JOB --follow shows what a job prints until it ends)"
_NEEDS_ONE = re.compile(r"one of the arguments (--.*) is required")
_UNRECOGNIZED = "unrecognized arguments: "
_ASSIGNMENT = re.compile(r"(\b[A-Za-z_][A-Za-z0-9_]*=)(?:'[^']*'|\"[^\"]*\"|[^\s'\"]+)+")


help_format = partial(argparse.HelpFormatter, max_help_position=28, width=100)
verbatim_help_format = partial(argparse.RawDescriptionHelpFormatter, max_help_position=28, width=100)


class HelpShown(Exception):
    """The parser has printed its help; nothing else is to be done."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises SpecError for bad use and never leaves the interpreter."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        super().__init__(*args, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words and options in any order."""
        found, left = super().parse_known_args(args, namespace)
        return found, placed(self, found, left)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Raise instead of exiting: HelpShown after help, SpecError after anything else."""
        if status == 0:
            raise HelpShown
        raise SpecError((message or f"{self.prog}: exit status {status}").strip())

    def error(self, message: str) -> NoReturn:
        """Raise SpecError with the nearest option that exists."""
        problem = explained(message, list(self._option_string_actions))
        raise SpecError(f"{self.prog}: {problem}; --help shows the options")


def placed(parser: argparse.ArgumentParser, found: argparse.Namespace, left: Sequence[str]) -> list[str]:
    """Give words that stand behind an option to the positionals that may be absent or longer; return what is left.

    argparse alone takes such a positional as absent when it meets the first option.
    """
    rest, words = list(left), [word for word in left if not word.startswith("-")]
    for action in parser._actions if words else ():
        given, taken = getattr(found, action.dest, None), words[:1] if action.nargs == "?" else words
        if action.option_strings or action.nargs not in ("?", "*", "+") or not taken:
            continue
        if action.nargs == "?" and (given != action.default or taken[0] not in (action.choices or taken)):
            continue
        try:
            value = parser._get_values(action, list(taken))
        except argparse.ArgumentError as error:
            parser.error(str(error))
        setattr(found, action.dest, value if action.nargs == "?" else [*(given or ()), *value])
        words = words[len(taken) :]
        for word in taken:
            rest.remove(word)
    return rest


def env_pair(text: str) -> tuple[str, str | EnvReference]:
    """A variable with its value, with that of this process, or with a reference. No message shows a possible value."""
    name, separator, value = text.partition("=")
    if not is_env_name(name):
        raise argparse.ArgumentTypeError(
            "expected NAME=VALUE, or NAME alone for the value in your own environment, with letters, digits and '_' "
            "in NAME; what was given is not shown, since it may be secret"
        )
    if separator:
        try:
            return name, EnvReference.parse(value) or value
        except SpecError as error:
            raise argparse.ArgumentTypeError(f"{name}: {error}") from None
    if name not in os.environ:
        raise argparse.ArgumentTypeError(f"{name} is not set in your environment; export it, or use {name}=VALUE")
    return name, os.environ[name]


def env_file(path: str) -> list[tuple[str, str | EnvReference]]:
    """The variables in a file: as for ``--env``, one per line. No message shows a possible value.

    Empty lines and those that begin with ``#`` are left out; so are ``export`` before a name and quotation marks
    around a whole value. Nothing is replaced in a value.
    """
    try:
        content = Path(path).expanduser().read_bytes()
        lines = content.decode("utf-8-sig").split("\n")
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        why = "it is text in UTF-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "it is not text in UTF-8"
        raise argparse.ArgumentTypeError(
            f"line {number} of {path} cannot be read: {why}; save the file as UTF-8"
        ) from None
    pairs = []
    for number, line in enumerate(lines, start=1):
        text = line.strip().removeprefix("export ").lstrip()
        if not text or text.startswith("#"):
            continue
        name, separator, value = text.partition("=")
        try:
            if len(name.split()) > 1:
                raise argparse.ArgumentTypeError(
                    "there is a space in the name, before '='; what was given is not shown, since it may be secret"
                )
            pairs.append(env_pair(f"{name.rstrip()}{separator}{_unquoted(value.strip())}"))
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"line {number} of {path}: {error}") from None
    return pairs


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


duration = argument(parse_duration)
byte_count = argument(parse_bytes)


def add_env_option(parser: argparse.ArgumentParser, text: str) -> None:
    """Add ``--env NAME[=VALUE]`` and ``--env-file FILE``, which may be repeated; of one name, the last one counts."""
    parser.add_argument("--env", type=env_pair, action="append", metavar="NAME[=VALUE]", help=text)
    parser.add_argument(
        "--env-file",
        dest="env",
        type=env_file,
        action="extend",
        metavar="FILE",
        help="file with such variables, one NAME=VALUE or NAME per line; of one name, the last one counts",
    )


def without_values(text: str) -> str:
    """Return `text` without the values after NAME=, which may be secrets of ``--env``."""
    return _ASSIGNMENT.sub(rf"\1{HIDDEN}", text)


def one_of(noun: str, known: Sequence[str], instead: Mapping[str, str]) -> Callable[[str], str]:
    """A type for argparse: one of the ``known`` words. ``instead``: what to say where a person writes another one."""

    def read(text: str) -> str:
        if text in known:
            return text
        near = (
            instead.get(text) or near_matches(text, known).strip(" ()") or f"`{noun} show {text[:40]}` shows that one"
        )
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no action, such as {', '.join(known)}; {near}")

    return read


def add_action(
    parser: argparse.ArgumentParser, actions: Sequence[str], read: Callable[[str], str], explanation: str
) -> None:
    """Declare the action of a verb that lists where none is given. ``read``: argparse's type for it, as of `one_of`."""
    parser.add_argument(
        "action",
        nargs="?",
        type=read,
        choices=actions,
        metavar="ACTION",
        default="list",
        help=f"list (default), {explanation}",
    )


def explained(message: str, options: Sequence[str]) -> str:
    """Return argparse's message with the nearest known word, and without misplaced values of variables."""
    if message.startswith(_UNRECOGNIZED):
        word = message.removeprefix(_UNRECOGNIZED).split()[0].partition("=")[0]
        return without_values(message) + near_matches(word, options)
    if choice := _INVALID_CHOICE.search(message):
        known = re.findall(r"[\w.-]+", choice[2])
        hint = near_matches(choice[1], known) or (
            FOLLOWS if choice[1] in ("attach", "watch") and "logs" in known else ""
        )
        return f"{message[: choice.start()]}invalid choice: {choice[1]!r}{hint}; expected one of {', '.join(known)}"
    if needed := _NEEDS_ONE.fullmatch(message):
        return f"expected one of {needed[1].replace(' --', ', --')}"
    return message


def add_backend_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each backend that has options of its own: --slurm KEY=VALUE."""
    for backend, table in backend_options.TABLES.items():
        text = f"with --backend {backend}: {table.examples}; may be repeated"
        parser.add_argument(f"--{backend}", action="append", type=_pair, metavar="OPTION=VALUE", help=text)


def chosen_backend_options(options: argparse.Namespace) -> dict[str, dict[str, str]]:
    """What was given of them: backend -> its options, as the fields of a specification."""
    return {name: dict(given) for name in backend_options.TABLES if (given := getattr(options, name))}


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form OPTION=VALUE")
    return name, value
