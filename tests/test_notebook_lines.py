"""Notebooks as jobs: lines for IPython are left out, or refused with what to write instead; errors name their cell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from jupyter_hyperpod.control.runs.report_page import report_page
from jupyter_hyperpod.control.runs.run_record import read
from jupyter_hyperpod.control.sources.ipython_lines import without_display_lines
from jupyter_hyperpod.control.sources.source import notebook_source
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.joined_cells import joined
from jupyter_hyperpod.storage.store import Store


def book(*cells: str, made: str = "") -> str:
    shown: list[dict[str, Any]] = [{"cell_type": "code", "source": cell, "metadata": {}} for cell in cells]
    if made:
        shown.append({"cell_type": "code", "source": made, "metadata": {"hyperpod": {"cells": "all"}}})
    return json.dumps({"cells": [{"cell_type": "markdown", "source": "# Title"}, *shown], "metadata": {}})


def test_lines_that_change_only_what_is_shown_are_left_out() -> None:
    said: list[str] = []
    cells = (
        "%load_ext jupyter_hyperpod\n%load_ext autoreload\n%autoreload 2\n%matplotlib inline",
        "import os\n%config InlineBackend.figure_format = 'retina'\nx = 1",
        "%hyperpod jobs\n%hyperpod logs",
        "if x:\n    %matplotlib inline\nprint(x)",
    )
    source = notebook_source(book(*cells, made="%%hyperpod\nboom"), "book.ipynb", said.append)
    assert "%matplotlib" not in source and "boom" not in source and "    pass\nprint(x)" in source
    assert said == [
        "left out, without an effect on the job: %load_ext autoreload, %autoreload 2, %matplotlib inline, "
        "%config InlineBackend.figure_format = 'retina', %hyperpod jobs and 1 more"
    ]
    quiet: list[str] = []
    notebook_source(book("%load_ext jupyter_hyperpod\nx = 1"), "book.ipynb", quiet.append)
    assert quiet == []


REFUSED = {
    "!pip install torch": "install packages before, where the nodes run",
    "%pip install torch": "install packages before",
    "!ls -l": "subprocess.run(['bash', '-c', 'ls -l'], check=True)",
    "files = !ls": "files = subprocess.run(['bash', '-c', 'ls'], check=True, capture_output=True, text=True)",
    "%timeit f()": "timeit.timeit(",
    "x = %timeit -o f()": "timeit.timeit(",
    "%time f()": "time.perf_counter()",
    "%%bash\necho it's": "subprocess.run(['bash'",
    "%%time\nf()": "time.perf_counter()",
    "%cd data": "os.chdir('data')",
    "%env LEVEL=debug": "os.environ['LEVEL'] = …, or submit with --env LEVEL",
    "%run other.py": "import the file as a module",
    "?print": "take it out, or write help(print)",
    "frame.head??": "help(frame.head)",
    "%load_ext tensorboard": "a job has no extensions of IPython",
    "%config InteractiveShell.ast_node_interactivity = 'all'": "display(…)",
    "%unknown": "write in Python what it does",
    "x = 1\n%hyperpod stop": "a cell of its own",
    "%aimport mine": "write import, without autoreload",
}


@pytest.mark.parametrize("line", REFUSED)
def test_other_lines_are_refused_with_what_to_write_instead(line: str) -> None:
    with pytest.raises(SpecError) as error:
        notebook_source(book("y = 2", f"# about\n{line}"), "book.ipynb")
    said = str(error.value).replace('"', "'")
    number = 3 if line.startswith("x = 1\n") else 2
    assert said.startswith(f"line {number} of code cell 2 of book.ipynb is for IPython, not Python: ")
    assert REFUSED[line] in said, said


def test_what_may_be_secret_is_not_shown() -> None:
    for line in ("%env TOKEN=xyzzy", "%set_env TOKEN xyzzy", "!TOKEN=xyzzy ./run", "!export TOKEN='a xyzzy'"):
        with pytest.raises(SpecError) as error:
            without_display_lines(line, "the cell")
        assert "xyzzy" not in str(error.value) and "TOKEN" in str(error.value)


@pytest.mark.parametrize(
    "source",
    ['text = """\n%matplotlib inline\n"""', "y = (7\n%config\n)", "y = 7 \\\n%config", "x = [\n%matplotlib inline\n]"],
)
def test_python_is_never_changed(source: str) -> None:
    assert without_display_lines(source, "the cell") == (source, [])


@given(st.text("%!?= \n#'\"()[]{}abx:\\1", max_size=40))
def test_no_source_is_changed_where_it_is_python(source: str) -> None:
    try:
        compile(source, "x", "exec")
    except (SyntaxError, ValueError):
        try:
            left, out = without_display_lines(source, "the cell")
        except SpecError:
            return
        assert (left == source) == (not out) and left.count("\n") == source.count("\n")
    else:
        assert without_display_lines(source, "the cell") == (source, [])


def test_cells_that_were_joined_in_the_notebook_are_named_too() -> None:
    source = "\n" + joined("book.ipynb", [(2, "x = 1"), (5, "y = 2\n%timeit y")])
    with pytest.raises(SpecError, match="^line 2 of code cell 5 of book.ipynb is for IPython"):
        without_display_lines(source, "the cell")


RUNS = """
import json, sys
from pathlib import Path
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.runtime.worker.cell import run
spec = JobSpec(name="a", cell_digest="0" * 64, filename=sys.argv[1])
error = run(sys.stdin.read(), spec, lambda: True, Path()).error
print(json.dumps([error.line, error.cell, error.message, list(error.traceback)]))
"""


def failed(*cells: str) -> tuple[int, int, str, list[str], str]:
    """The line, the cell, the message and the traceback of a notebook that fails, and what it writes to stderr."""
    source = notebook_source(book(*cells), "whole.ipynb")
    command = [sys.executable, "-c", RUNS, "/somewhere/whole.ipynb"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    line, cell, message, trace = json.loads(done.stdout)
    return line, cell, message, trace, done.stderr


def test_errors_name_the_cell_and_show_its_line() -> None:
    line, cell, _, lines, warned = failed(
        "%matplotlib inline\ndef half(x):\n    return 1 / x",
        "",
        "import warnings\nwarnings.warn('odd')",
        "try:\n    half(0)\nexcept ZeroDivisionError as error:\n    raise KeyError('lost') from error",
    )
    trace = "\n".join(lines)
    assert '  File "whole.ipynb, cell 4", line 2, in <module>\n    half(0)' in trace
    assert '  File "whole.ipynb, cell 1", line 3, in half\n    return 1 / x' in trace
    assert '  File "whole.ipynb, cell 4", line 4, in <module>\n    raise KeyError' in trace
    assert (line, cell) == (4, 4) and "/somewhere" not in trace
    assert "whole.ipynb, cell 3:2: UserWarning: odd\n  warnings.warn('odd')\n" in warned


def test_a_refusal_names_the_line_of_the_cell() -> None:
    refusal = "from jupyter_hyperpod.core.errors import SpecError\nraise SpecError('line 6 binds y: move it')"
    line, cell, message, trace, _ = failed("x = 1", f"y = 2\n{refusal}")
    assert message == "line 2 of code cell 2 of whole.ipynb binds y: move it"
    assert (line, cell) == (3, 2) and trace[-1].endswith(message)


def test_the_magic_leaves_the_same_lines_out(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}), colors="nocolor")
    shell.run_line_magic("load_ext", "jupyter_hyperpod")
    shell.run_cell("%%hyperpod --dry-run\n%matplotlib inline\nprint(1)").raise_error()
    out, err = capfd.readouterr()
    assert err == "left out, without an effect on the job: %matplotlib inline\n" and "would submit" in out
    error = shell.run_cell("%%hyperpod --dry-run\nx = 1\n%timeit x").error_in_exec
    assert isinstance(error, SpecError) and str(error).startswith("line 3 of the cell is for IPython")


def test_a_dry_run_and_the_report_count_the_same_lines(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}), colors="nocolor")
    shell.run_line_magic("load_ext", "jupyter_hyperpod")
    shell.run_cell("%%hyperpod --dry-run\n\nx = 1\n\nprint(x)\n\n").raise_error()
    assert "would submit 3 lines, nothing" in capsys.readouterr().out
    job = store.create_job(JobSpec("cell", store.put_cell("\n\nx = 1\n\nprint(x)\n\n")))
    assert ", 3 lines, SHA-256" in report_page(read(store, job.id), "")


def test_a_submitted_notebook_names_its_cells(shared_cluster: Store, tmp_path: Path) -> None:
    path = tmp_path / "whole.ipynb"
    path.write_text(book("%matplotlib inline\ndef half(x):\n    return 1 / x", "half(2)\nhalf(0)"))
    command = [sys.executable, "-m", "jupyter_hyperpod", "--store", str(shared_cluster.root)]
    done = subprocess.run([*command, "submit", str(path), "--follow"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "%matplotlib inline\n" in done.stderr
    assert '  File "whole.ipynb, cell 2", line 2, in <module>\n    half(0)' in done.stderr
    assert '  File "whole.ipynb, cell 1", line 3, in half\n    return 1 / x' in done.stderr
    assert "ZeroDivisionError on rank 0 at line 3 of code cell 1: division by zero" in done.stderr
