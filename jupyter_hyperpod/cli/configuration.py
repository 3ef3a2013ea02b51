"""``--generate-config``: every setting of the server's extension and of the magics, with its help and its default."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

# class -> the file in which it is set; each is imported by a process of its own, since faces do not import each other
SETTINGS = {
    "jupyter_hyperpod.server.extension:HyperpodExtension": "jupyter_jupyter_hyperpod_config.py in ~/.jupyter",
    "jupyter_hyperpod.notebook.magics:HyperpodMagics": "ipython_config.py in ~/.ipython/profile_default",
}
_PRINT = (
    "import sys, importlib; module, _, name = sys.argv[1].partition(':'); "
    "print(getattr(importlib.import_module(module), name).class_config_section())"
)
_HEAD = "# Settings of jupyter_hyperpod, with their defaults. A line counts in the file that is named above it.\n"


class GenerateConfig(argparse.Action):
    """Prints all settings and ends, as ``--version`` does."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, help=more.get("help"))

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(settings(), end="", flush=True)
        parser.exit()


def settings() -> str:
    """All settings as a file of Python, each commented out."""
    parts = [_HEAD, "c = get_config()  # noqa\n"]
    for name, where in SETTINGS.items():
        done = subprocess.run([sys.executable, "-c", _PRINT, name], check=True, stdout=subprocess.PIPE, text=True)
        parts.append(f"# ==== for {where}\n\n{done.stdout.strip()}\n")
    return "\n".join(parts)
