"""Writes a picture as an SVG file of its own, with colours for light and dark pages."""

from __future__ import annotations

from pathlib import Path

from ..core.errors import Conflict, SpecError

_LIGHT = "svg { background: #ffffff; --jp-ui-font-color1: #333333; --jp-border-color1: #dddddd }"
_DARK = "svg { background: #1e1e1e; --jp-ui-font-color1: #dddddd; --jp-border-color1: #444444 }"
STYLE = f"<style>{_LIGHT} @media (prefers-color-scheme: dark) {{ {_DARK} }}</style>"


def write_picture(path: str, svg: str) -> None:
    """Write a new file. Raises SpecError for a name without .svg, Conflict where the file exists."""
    target = Path(path)
    if target.suffix != ".svg":
        raise SpecError(f"--plot {path}: pictures are drawn as SVG; expected a name that ends with .svg")
    head, rest = svg.split(">", 1)
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(f"{head}>{STYLE}{rest}\n")
    except FileExistsError:
        raise Conflict(f"--plot {path}: the file exists and is kept; choose another name") from None
    except OSError as error:
        raise SpecError(f"--plot {path}: cannot be written: {error.strerror}") from None
