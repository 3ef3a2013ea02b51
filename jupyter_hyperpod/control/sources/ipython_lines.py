"""Lines that are for IPython: those without an effect on a job are left out; of others it says what to write instead.

Nothing is translated: a job never runs something else than what is written.
"""

from __future__ import annotations

import io
import re
import shlex
import tokenize

from ...core.errors import SpecError
from ...core.units import few
from ...storage.joined_cells import JoinedCells
from ..option_parser import without_values

CELL_MAGIC = re.compile(r"%%(\w+)(.*)")
_LINE_MAGIC = re.compile(r"%(\w+)(.*)")
_QUESTION = re.compile(r"\?{1,2}\s*(%?[\w.]+)\s*$|(%{0,2}[\w.]+)\?{1,2}\s*$")
_ASSIGNED = re.compile(r"([\w.,\s\[\]'\"]+?)\s*=\s*([%!])(.*)")
_SETS_VARIABLE = re.compile(r"%(?:set_)?env\b")
_ENV_VALUE = re.compile(r"(--env[=\s]+['\"]?\w*=).*")
_NO_EFFECT = ("matplotlib", "autoreload", "autosave", "config", "colors", "xmode")
_NO_EFFECT_LOADED = ("autoreload", "jupyter_hyperpod")
_INSTALLERS = ("pip", "pip3", "conda", "mamba", "uv", "poetry")
_INSTALL = (
    "install packages before, where the nodes run: a job starts with the packages that are there, or with those of "
    "--python PATH"
)
_TIMEIT = "import timeit, and write print(timeit.timeit(lambda: …, number=10))"
_TIME = "import time, take time.perf_counter() before and after, and print the difference"
_SHELL = 'import subprocess, and write subprocess.run(["bash", "-c", …], check=True)'
_WRITTEN = "write the file before, and give its folder with --include, or write it with pathlib.Path(…).write_text(…)"
_SHOWN = "write display(…) of what it shows, such as IPython.display.HTML(…)"
_INSTEAD = {
    **dict.fromkeys(("pip", "conda", "mamba", "uv"), _INSTALL),
    **dict.fromkeys(("bash", "sh", "script", "system", "sx", "cmd"), _SHELL),
    **dict.fromkeys(("html", "HTML", "javascript", "js", "latex", "markdown", "svg", "SVG"), _SHOWN),
    **dict.fromkeys(("writefile", "file"), _WRITTEN),
    **dict.fromkeys(("prun", "lprun", "mprun", "memit"), "profile with the module cProfile"),
    **dict.fromkeys(("debug", "pdb"), "take it out: nobody can type at a node"),
    "timeit": _TIMEIT,
    "time": _TIME,
    "capture": "use contextlib.redirect_stdout(io.StringIO())",
    "run": "import the file as a module (--include DIR copies its folder), or write runpy.run_path(…)",
    "aimport": "write import, without autoreload",
    "pylab": "write import numpy as np and import matplotlib.pyplot as plt",
    "store": "give variables of the notebook with --push NAME",
    "tensorboard": "take it out, and start TensorBoard beside the job",
    "load_ext": "take it out: a job has no extensions of IPython",
    "reload_ext": "take it out: a job has no extensions of IPython",
    "config": "write display(…) of each value that is to be shown",
    "hyperpod": "put it into a cell of its own, which is not submitted",
}


def without_display_lines(source: str, what: str) -> tuple[str, list[str]]:
    """The source without lines that only change what a notebook shows, and these lines; other lines keep their numbers.

    Raises SpecError for any other line that is for IPython; what is otherwise not Python stays as it is.
    """
    lines, left_out = source.split("\n"), list[str]()
    if (first := _cell_magic(lines)) is not None:
        raise SpecError(refused(lines[first], place(first + 1, what, source)))
    while (at := _not_python("\n".join(lines))) is not None and (text := for_ipython(lines, at)):
        if not _is_without_effect(text):
            raise SpecError(refused(text, place(at + 1, what, source)))
        left_out.append(text.strip())
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        while lines[at].endswith("\\") and at + 1 < len(lines):
            lines[at], at = "", at + 1
        lines[at] = f"{indent}pass" if indent else ""
    return "\n".join(lines), left_out


def note(left_out: list[str]) -> str:
    """A sentence about the lines that were left out."""
    unique = list(dict.fromkeys(left_out))
    return f"left out, without an effect on the job: {few(unique, 5)}"


def _cell_magic(lines: list[str]) -> int | None:
    """The index of the first line of code, where it is that of somebody's cell magic: below may be any language."""
    for at, line in enumerate(lines):
        if line.strip() and not line.lstrip().startswith("#"):
            return at if CELL_MAGIC.match(line) else None
    return None


def refused(line: str, where: str) -> str:
    """Why a line cannot run, and what to write instead; ``where``: its place in words."""
    return (
        f"{where} is for IPython, not Python: {_without_values(line.strip())[:80]!r}; the nodes run plain Python: "
        f"{_instead(line.strip())}"
    )


def place(number: int, what: str, source: str) -> str:
    """A line of a source in words; where cells of a notebook were joined to it, with the line of its cell."""
    return str(JoinedCells(source).at(number) or f"line {number} of {what}")


def _without_values(line: str) -> str:
    """The line without what may be secret: values of ``--env``, of ``%env`` and of variables for a shell."""
    if found := _SETS_VARIABLE.match(line):
        name = re.split(r"[=\s]", rest := line[found.end() :].strip(), maxsplit=1)[0]
        return f"{found[0]} {name}" + ("" if rest == name else "=***")
    line = _ENV_VALUE.sub(r"\1***", line)
    return without_values(line) if line.startswith("!") else line


def _instead(line: str) -> str:
    if found := _ASSIGNED.fullmatch(line):
        if found[2] == "!":
            call = f"subprocess.run({_quoted(found[3])}, check=True, capture_output=True, text=True)"
            return f"import subprocess, and write {found[1].strip()} = {call}.stdout.splitlines()"
        line = f"%{found[3]}"
    if line.startswith("!"):
        words = line.lstrip("!").split()
        if words and (words[0] in _INSTALLERS or words[:3] == ["python", "-m", "pip"]):
            return _INSTALL
        return f"import subprocess, and write subprocess.run({_quoted(line.lstrip('!'))}, check=True)"
    if asked := _QUESTION.fullmatch(line):
        return f"take it out, or write help({(asked[1] or asked[2]).lstrip('%')})"
    magic = CELL_MAGIC.match(line) or _LINE_MAGIC.match(line)
    name, rest = (magic[1], magic[2].strip()) if magic else ("", "")
    if name == "cd":
        return f"import os, and write os.chdir({rest or '~'!r})"
    if name in ("env", "set_env"):
        variable = re.split(r"[=\s]", rest, maxsplit=1)[0] or "NAME"
        return f"import os, and write os.environ[{variable!r}] = …, or submit with --env {variable}"
    return _INSTEAD.get(name, "take it out, or write in Python what it does")


def _quoted(command: str) -> str:
    text = without_values(command.strip())
    return repr(["bash", "-c", text if len(text) <= 60 else f"{text[:60]}…"])


def _is_without_effect(line: str) -> bool:
    magic = _LINE_MAGIC.fullmatch(line.strip())
    if magic is None:
        return False
    try:
        words = shlex.split(magic[2], comments=True)
    except ValueError:
        words = magic[2].split()
    if magic[1] in ("load_ext", "reload_ext"):
        return bool(words) and set(words) <= set(_NO_EFFECT_LOADED)
    return magic[1] in _NO_EFFECT and "ast_node_interactivity" not in line


def _not_python(text: str) -> int | None:
    """The index of the line at which the text is not Python; None where it is."""
    try:
        compile(text, "<cell>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return max(0, (error.lineno or 1) - 1)
    except (ValueError, RecursionError, MemoryError, OverflowError):
        return None
    return None


def for_ipython(lines: list[str], at: int) -> str:
    """The line there, with those that continue it, if IPython would take it for its own; else ""."""
    if at >= len(lines) or not _begins_statement(lines[:at]):
        return ""
    text, end = lines[at], at
    while text.endswith("\\") and end + 1 < len(lines):
        end += 1
        text = f"{text[:-1]} {lines[end].strip()}"
    line = text.strip()
    known = (CELL_MAGIC.match, _LINE_MAGIC.match, _QUESTION.fullmatch, _ASSIGNED.fullmatch)
    return text if line.startswith("!") or any(is_own(line) for is_own in known) else ""


def _begins_statement(before: list[str]) -> bool:
    """Whether a statement begins after these lines: no bracket and no text is open."""
    if before and before[-1].endswith("\\"):
        return False
    try:
        for _ in tokenize.generate_tokens(io.StringIO("\n".join([*before, ""])).readline):
            pass
    except (tokenize.TokenError, IndentationError):
        return False
    return True
