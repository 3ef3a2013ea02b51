"""The command ``jupyter hyperpod …`` for jobs, nodes and faults. Exit status: 0 ok, 1 failure, 2 bad use."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ..core.errors import HyperpodError, UserError
from ..core.extras import remedy
from ..system import place


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    try:
        from .parser import build_parser
        from .terminal import Terminal

        words = list(sys.argv[1:] if arguments is None else arguments)
        parser, terminal = build_parser(words), Terminal()
    except KeyboardInterrupt:
        return 130
    if not words:
        parser.print_help(sys.stderr)
        return 2
    try:
        options = parser.parse_args(words)
        from . import verbs

        return verbs.run(options, terminal)
    except HyperpodError as error:
        terminal.note(f"error: {error}")
        return 2 if isinstance(error, UserError) else 1
    except FileNotFoundError:
        if not place.is_gone():
            raise
        terminal.note(f"error: {place.GONE}")
        return 1
    except ModuleNotFoundError as error:
        if not (sentence := remedy(error)):
            raise
        terminal.note(f"error: {sentence}")
        return 1
    except KeyboardInterrupt:
        terminal.clear()
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
