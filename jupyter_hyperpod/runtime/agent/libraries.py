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
# programs that use these make an optimizer, and the first one of a process loads torch's compiler: most of a second
_TRAIN = frozenset({"accelerate", "jupyter_hyperpod", "lightning", "transformers"})
_OF_TRAINING = ("jupyter_hyperpod.runtime.session.session", "torch._dynamo")


def import_ahead(*names: str) -> None:
    """Import these modules; those that cannot be imported are left out, and the program says why."""
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)


def import_ahead_of(program: Path) -> None:
    """Import numpy, torch and what training loads, as far as the program in this file may need them."""
    with suppress(OSError, UnicodeDecodeError):  # of which its worker tells
        import_ahead(*needed(program.read_text()))


def needed(source: str) -> tuple[str, ...]:
    """Which of numpy, torch and what training loads a program may need; the first two where its text leaves a doubt."""
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
    if installed <= WITHOUT_TORCH:
        return ("numpy",)
    return "numpy", "torch", *(_OF_TRAINING if installed & _TRAIN else ())
