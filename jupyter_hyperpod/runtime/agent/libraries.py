"""Imports ahead what a program needs: once for all ranks of a node and their replacements, which are forked.

A second goes by until torch is imported, so a program that plainly does without does not wait for it.
"""

from __future__ import annotations

import ast
import importlib
import sys
from contextlib import suppress
from pathlib import Path

from ...core.extras import WITHOUT_TORCH

# who uses these may run code of which the program's text tells nothing
_RUN_OTHER_CODE = frozenset({"__import__", "eval", "exec", "importlib", "pickle", "runpy"})


def import_ahead(*names: str) -> None:
    """Import these modules; those that are not installed are left out."""
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)


def import_ahead_of(program: Path) -> None:
    """Import what the program in this file may need of numpy and torch."""
    with suppress(OSError, UnicodeDecodeError):  # of which its worker tells
        import_ahead(*needed(program.read_text()))


def needed(source: str) -> tuple[str, ...]:
    """Which of numpy and torch a program may need. Where its text leaves a doubt, it may need both."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return ()  # it cannot run
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    imported = {name.partition(".")[0] for name in names}
    if (imported | {node.id for node in nodes if isinstance(node, ast.Name)}) & _RUN_OTHER_CODE:
        return "numpy", "torch"
    installed = imported - sys.stdlib_module_names
    if not installed:
        return ()
    return ("numpy",) if installed <= WITHOUT_TORCH else ("numpy", "torch")
