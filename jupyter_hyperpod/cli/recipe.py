"""The command ``jupyter hyperpod recipe …``: lists recipes and renders the code that trains them."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path

from ..control import text_tables
from ..core.errors import HyperpodError, SpecError
from ..core.units import format_bytes
from ..recipes import catalogue, render
from ..storage.store import Store
from .terminal import Terminal

_SCALES = (
    "NODES",
    "INSTANCE",
    ">REPLICA",
    ">MICRO-BATCH",
    ">GLOBAL BATCH",
    ">TOKENS",
    ">LEARNING RATE",
    ">STATE PER RANK",
)
_RENDER_ONLY = ("nodes", "backend", "inline", "output")


def run_recipe(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    """Run ``recipe list|show|render`` and return the exit status; raises SpecError for wrong arguments."""
    given = [f"--{name}" for name in _RENDER_ONLY if getattr(options, name)]
    if given and options.action != "render":
        raise SpecError(f"{', '.join(given)} belongs to `recipe render`, not to `recipe {options.action}`")
    if options.action == "list":
        if options.name is not None:
            raise SpecError(f"`recipe list` takes no name; `recipe show {options.name}` shows one")
        table = text_tables.Table(catalogue.HEADERS, catalogue.overview())
        records = [catalogue.record(name) for name in catalogue.names()]
        return terminal.answer(options, records, table.render(terminal.paint))
    if options.name is None:
        raise SpecError(f"`recipe {options.action}` needs a name: one of {', '.join(catalogue.names())}")
    return _show(options, terminal) if options.action == "show" else _render(options, terminal)


def _show(options: argparse.Namespace, terminal: Terminal) -> int:
    recipe = catalogue.load(options.name)
    config = recipe.config
    lines = [f"{terminal.paint(recipe.name, 'title')}: {recipe.summary}"]
    counts = f"{config.parameters:,} parameters, {config.active_parameters:,} of them for a token"
    scaling = config.rope_scaling.settings() if config.rope_scaling else {}
    values = {"": counts} | {k: v for k, v in asdict(config).items() if k != "rope_scaling"} | scaling
    for name, value in values.items():
        lines.append(f"  {terminal.paint(f'{name:<34}', 'quiet')}{value}" if name else f"  {value}")
    rows = [_scale_row(recipe, scale) for scale in recipe.scales]
    lines.append(text_tables.Table(_SCALES, rows).render(terminal.paint))
    lines += [terminal.paint(source, "quiet") for source in recipe.sources]
    return terminal.answer(options, catalogue.record(options.name), *lines)


def _scale_row(recipe: catalogue.Recipe, scale: catalogue.Scale) -> list[str]:
    return [
        str(scale.elastic),
        scale.instance,
        str(scale.replica),
        str(scale.micro_batch),
        str(scale.global_batch),
        catalogue.amount(scale.global_batch * scale.sequence_length),
        f"{scale.learning_rate:g}",
        format_bytes(recipe.state_bytes(scale)),
    ]


def _render(options: argparse.Namespace, terminal: Terminal) -> int:
    recipe = catalogue.load(options.name)
    chosen = {"backend": options.backend, "inline": options.inline}
    if options.output is None:
        text = render.cell(recipe, options.nodes, **chosen)
        return terminal.answer(options, {"name": recipe.name, "cell": text}, text.rstrip("\n"))
    path = Path(options.output)
    if path.suffix != ".py":
        raise SpecError(f"{path.name!r} is not a .py file; a rendered recipe is Python")
    submit = f"jupyter hyperpod submit {path.name} {render.options(recipe, options.nodes, options.backend)}"
    _write_new(path, render.script(recipe, path.name, options.nodes, **chosen))
    record = {"name": recipe.name, "file": os.fspath(path), "submit": submit}
    return terminal.answer(options, record, f"wrote {path}; run it with: {submit}")


def _write_new(path: Path, text: str) -> None:
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise SpecError(f"{path} exists already; choose another name or remove it") from None
    except OSError as error:
        raise HyperpodError(f"cannot write {path}: {error.strerror}") from None
