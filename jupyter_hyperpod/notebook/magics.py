"""The magics ``%%hyperpod`` and ``%hyperpod``: they parse their line, delegate the work and show the result."""

from __future__ import annotations

import argparse
import ast
import os
import sys
import traceback
from functools import partial
from typing import Any

from IPython.core.magic import cell_magic, line_magic, magics_class
from traitlets import Bool, Int, Unicode

from ..control import jobs
from ..control.executed import stored_notebook
from ..control.option_parser import HelpShown
from ..control.schedules.verbs import chosen_timing
from ..control.sources import ipython_lines
from ..control.sources.source import OWN_HEADER, check_source
from ..control.submit_options import job_name, spec_fields
from ..control.sweeps.verbs import chosen_plan
from ..core.errors import HyperpodError, SpecError
from ..core.units import parse_bytes
from ..loader.reporting import show_with
from . import bars, push, schedules, stream, sweeps, verbs
from .arguments import cell_parser, parse, verb_parser
from .shell import Notebook


@magics_class
class HyperpodMagics(Notebook):
    """The magics and their defaults, set in ipython_config.py as ``c.HyperpodMagics.backend = "local"``."""

    backend = Unicode("local", help="Backend of jobs without --backend.").tag(config=True)
    nodes = Int(None, allow_none=True, help="Nodes of a job without --nodes and --elastic.").tag(config=True)
    spares = Int(1, help="Warm nodes kept ready for a job without --spares.").tag(config=True)
    priority = Int(0, help="Priority of a job without --priority, -1000 to 1000.").tag(config=True)
    threads = Int(1, help="CPU threads of every rank of a job without --threads.").tag(config=True)
    output_cap = Unicode(
        "", help="What a node's output may take on the disk for a job without --output-cap, such as 1GB."
    ).tag(config=True)
    cancel_on_interrupt = Bool(False, help="Stop the job, not only the streaming, when a cell is interrupted.").tag(
        config=True
    )

    @cell_magic("hyperpod")  # type: ignore[arg-type]
    def run_cell(self, line: str, cell: str) -> None:
        try:
            self._submit(line, cell)
        except HelpShown:
            pass
        except FileNotFoundError as error:
            raise stream.without_folder(error) from None
        except HyperpodError as error:
            syntax = error.syntax if isinstance(error, SpecError) else None
            lines = traceback.format_exception_only(syntax) if syntax else None
            raise stream.quiet(error, lines) from None

    @line_magic("hyperpod")  # type: ignore[arg-type]
    def run_verb(self, line: str) -> Any:
        try:
            options = parse(verb_parser(), line)
            return verbs.VERBS[options.verb](options, self)
        except HelpShown:
            return None
        except FileNotFoundError as error:
            raise stream.without_folder(error) from None
        except HyperpodError as error:
            raise stream.quiet(error) from None

    def _submit(self, line: str, cell: str) -> None:
        options = parse(cell_parser(), line)
        defaults = {"backend": self.backend, "spares": self.spares, "priority": self.priority, "threads": self.threads}
        if self.nodes is not None and options.elastic is None:
            defaults["nodes"] = self.nodes
        if self.output_cap and options.output_cap is None:
            try:
                defaults["output_cap"] = parse_bytes(self.output_cap)
            except SpecError as error:
                raise SpecError(f"HyperpodMagics.output_cap: {error}") from None
        origin = self._origin()
        fields = spec_fields(options, job_name(origin.get("notebook", "") or "cell"), defaults)
        fields |= {"filename": f"Cell In[{self._cell_number()}]", "origin": origin}
        source = push.place(cell, self._lines_above(cell))
        source, left_out = ipython_lines.without_display_lines(source, "the cell")
        check_source(source, fields["filename"])
        if left_out:
            print(ipython_lines.note(left_out), file=sys.stderr, flush=True)
        if not options.dry_run:
            said = partial(print, file=sys.stderr)
            notebook = origin.get("notebook", "")
            origin |= stored_notebook.keep_front_end_s(self.open_store(), notebook, source, said)
        if timing := chosen_timing(options):
            schedules.submit(self, options, source, fields, timing)
            return
        names = push.listed(options.push)
        if wanted := push.wanted_names(push.listed(options.pull), source):
            fields["pull"] = wanted
        values = push.named_values(names, self.namespace())
        if plan := chosen_plan(options, fields.get("seed", 0)):
            sweeps.submit(self, options, source, self._low(options, fields), plan, values)
            return
        if options.dry_run:
            verbs.show_dry_run(self.open_store(), fields, source, names)
            return
        store = self.open_store()
        self.last_job = jobs.submit(store, push.with_values(source, values, store), fields)
        self.show_warnings(store, self.last_job)
        if options.detach:
            self.show_once(store, self.last_job)
            return
        self.attach(store, self.last_job, cancel=options.cancel_on_interrupt or self.cancel_on_interrupt)

    def _low(self, options: argparse.Namespace, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of trials, whose priority is one under that of jobs where none is given."""
        return fields if options.priority is not None else {**fields, "priority": max(self.priority - 1, -1000)}

    def _cell_number(self) -> int:
        """The number that a front end shows beside the cell. IPython increments it before or after the cell runs."""
        request = self._request().get("content", {})
        if request.get("silent", False) or not request.get("store_history", True):
            return int(self._shell.execution_count)
        return len(self._shell.history_manager.input_hist_parsed) - 1

    def _lines_above(self, cell: str) -> int:
        """The number of lines of the visible cell above the first line of its body."""
        code = str(self._request().get("content", {}).get("code", ""))
        if code.rstrip().endswith(cell.rstrip()) and len(code) >= len(cell):
            return int(code.rstrip()[: -len(cell.rstrip()) or None].count("\n"))
        above = code[: len(code) - len(code.lstrip())].count("\n")  # IPython leaves out empty lines at the top
        return above + 1

    def _request(self) -> dict[str, Any]:
        """The front end's request that is being executed; empty where there is none."""
        parent = self._shell.get_parent() if hasattr(self._shell, "get_parent") else {}
        return parent if isinstance(parent, dict) else {}

    def _origin(self) -> dict[str, str]:
        """The notebook and the cell that run, as far as the front end names them."""
        metadata = self._request().get("metadata", {})
        known = {"notebook": os.environ.get("JPY_SESSION_NAME", ""), "cell_id": metadata.get("cellId", "")}
        return {name: str(value) for name, value in known.items() if value}


def register(shell: Any) -> None:
    """Register magics and completion in an IPython shell."""
    from . import completion

    magics = HyperpodMagics(shell, parent=shell)
    documented: Any = HyperpodMagics
    documented.run_cell.__doc__ = cell_parser().format_help()
    documented.run_verb.__doc__ = verb_parser().format_help()
    shell.register_magics(magics)
    completion.register(shell, magics)
    if hasattr(shell, "kernel"):  # a terminal shows no widgets
        show_with(bars.loading)
    for transform in (lift_magic, keep_empty_cell):
        if transform not in shell.input_transformers_cleanup:
            shell.input_transformers_cleanup.append(transform)


def lift_magic(lines: list[str]) -> list[str]:
    """Move ``%%hyperpod`` above the comments and empty lines before it. Each line of the body keeps its number.

    Raises SyntaxError where code precedes it.
    """
    at = next((number for number, line in enumerate(lines) if OWN_HEADER.match(line)), 0)
    if at == 0:
        return lines
    if all(not line.strip() or line.lstrip().startswith("#") for line in lines[:at]):
        return [lines[at].rstrip("\n") + "\n", *lines[:at], *lines[at + 1 :]]
    first = next(line for line in lines if line.strip())
    if not first.startswith("%%") and not _is_python("".join(lines)):
        raise SyntaxError(
            "%%hyperpod has to be the first line of its cell: only comments and empty lines may precede it"
        )
    return lines


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def keep_empty_cell(lines: list[str]) -> list[str]:
    """Give a ``%%hyperpod`` cell without a body an empty line; else IPython would refuse it before we see it."""
    if len(lines) == 1 and lines[0].split(" ")[0].strip() == "%%hyperpod" and "?" not in lines[0]:
        return [lines[0].rstrip("\n") + "\n", "\n"]
    return lines
