"""The magics ``%%hyperpod`` and ``%hyperpod``: they parse their line, delegate the work and show the result."""

from __future__ import annotations

import ast
import os
import traceback
from contextlib import suppress
from typing import Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from traitlets import Bool, Float, Int, Unicode

from ..control import jobs
from ..control.option_parser import HelpShown, Parser
from ..control.source import OWN_HEADER, check_source
from ..control.submit_options import job_name, spec_fields
from ..core.errors import HyperpodError, SpecError
from ..loader.reporting import show_with
from ..storage.store import Store
from . import push, stream, verbs, widgets
from .arguments import cell_parser, parse, verb_parser
from .output import JobDisplay

STOP_WAIT_S = 10.0


@magics_class
class HyperpodMagics(Magics):
    """The magics and their defaults, set in ipython_config.py as ``c.HyperpodMagics.backend = "local"``."""

    backend = Unicode("local", help="Backend of jobs without --backend.").tag(config=True)
    nodes = Int(None, allow_none=True, help="Nodes of a job without --nodes and --elastic.").tag(config=True)
    spares = Int(1, help="Warm nodes kept ready for a job without --spares.").tag(config=True)
    priority = Int(0, help="Priority of a job without --priority, -1000 to 1000.").tag(config=True)
    threads = Int(1, help="CPU threads of every rank of a job without --threads.").tag(config=True)
    store = Unicode("", help="Directory of jobs and cluster; empty means $JUPYTER_HYPERPOD_STORE or the default.").tag(
        config=True
    )
    cancel_on_interrupt = Bool(False, help="Stop the job, not only the streaming, when a cell is interrupted.").tag(
        config=True
    )
    lost_after_s = Float(60.0, help="Seconds without news and supervisor until a cell gives up.").tag(config=True)

    def __init__(self, shell: Any, **options: Any) -> None:
        super().__init__(shell, **options)
        self._shell: Any = shell
        self.last_job = ""
        self._displays: dict[str, list[JobDisplay]] = {}

    @cell_magic("hyperpod")  # type: ignore[arg-type]
    def run_cell(self, line: str, cell: str) -> None:
        try:
            self._submit(line, cell)
        except HelpShown:
            pass
        except stream.JobFailed as error:
            raise error.with_traceback(None) from None
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
        except stream.JobFailed as error:
            raise error.with_traceback(None) from None
        except HyperpodError as error:
            raise stream.quiet(error) from None

    def open_store(self) -> Store:
        """Return the store of the traits, else of the environment."""
        return Store(self.store or None)

    def namespace(self) -> dict[str, Any]:
        """Return the notebook's variables."""
        return dict(self._shell.user_ns)

    def in_kernel(self) -> bool:
        """Tell whether a front end shows rich output, rather than a terminal."""
        return getattr(self._shell, "kernel", None) is not None

    def next_cell(self, text: str) -> None:
        """Put a new cell with this text below the one that runs; in a terminal, on the next prompt."""
        self._shell.set_next_input(text)

    def _submit(self, line: str, cell: str) -> None:
        options = parse(cell_parser(), line)
        defaults = {"backend": self.backend, "spares": self.spares, "priority": self.priority, "threads": self.threads}
        if self.nodes is not None and options.elastic is None:
            defaults["nodes"] = self.nodes
        origin = self._origin()
        fields = spec_fields(options, job_name(origin.get("notebook", "") or "cell"), defaults)
        fields |= {"filename": f"Cell In[{self._cell_number()}]", "origin": origin}
        source = push.place(cell, self._lines_above(cell))
        check_source(source, fields["filename"])
        names = [name.strip() for text in options.push for name in text.split(",") if name.strip()]
        values = push.named_values(names, self.namespace())
        if options.dry_run:
            verbs.show_dry_run(fields, source, names)
            return
        store = self.open_store()
        self.last_job = jobs.submit(store, push.with_values(source, values, store), fields)
        if options.detach:
            self.show_once(store, self.last_job)
            return
        self.attach(store, self.last_job, cancel=options.cancel_on_interrupt or self.cancel_on_interrupt)

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

    def _display(self, store: Store, job_id: str, *, streams: bool) -> JobDisplay | None:
        if not self.in_kernel():
            return None
        display = JobDisplay(str(store.root), store.job(job_id).spec().cell_digest, streams)
        self._displays.setdefault(job_id, []).append(display)
        return display

    def show_once(self, store: Store, job_id: str) -> None:
        """Show a job without following it."""
        display = self._display(store, job_id, streams=False)
        if display is not None:
            display.show(jobs.job_view(store, job_id))
        print(f"{job_id} runs in the background; follow it with: %hyperpod attach {job_id}", flush=True)

    def attach(self, store: Store, job_id: str, *, cancel: bool = False) -> None:
        """Stream a job until it ends; an interrupt leaves it running, or stops it if `cancel`."""
        try:
            stream.stream(store, job_id, self._display(store, job_id, streams=True), self.lost_after_s)
        except KeyboardInterrupt:
            if not cancel:
                print(f"detached; {job_id} goes on. Attach again with: %hyperpod attach {job_id}", flush=True)
                return
            jobs.stop(store, job_id, reason="the cell was interrupted")
            print(f"{job_id} was asked to stop", flush=True)
            with suppress(TimeoutError):
                jobs.wait(store, job_id, timeout_s=STOP_WAIT_S)
        finally:
            self._refresh(store, job_id)

    def _refresh(self, store: Store, job_id: str) -> None:
        """Update every display of the job, those of earlier cells, too."""
        view = jobs.job_view(store, job_id)
        for display in self._displays.get(job_id, ()):
            display.show(view)


def register(shell: Any) -> None:
    """Register magics and completion in an IPython shell."""
    from . import completion

    magics = HyperpodMagics(shell, parent=shell)
    documented: list[tuple[Any, Parser]] = [
        (HyperpodMagics.run_cell, cell_parser()),
        (HyperpodMagics.run_verb, verb_parser()),
    ]
    for method, parser in documented:
        method.__doc__ = parser.format_help()
    shell.register_magics(magics)
    completion.register(shell, magics)
    if hasattr(shell, "kernel"):  # a terminal shows no widgets
        show_with(widgets.loading)
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
