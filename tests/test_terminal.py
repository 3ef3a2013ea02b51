"""The status line of the command line: rewritten at a terminal, absent where each version of it is kept."""

from __future__ import annotations

import io

import pytest

from jupyter_hyperpod.cli.terminal import Terminal
from jupyter_hyperpod.loader.reporting import is_interactive


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm-256color", "JPY_PARENT_PID": "1"}, True),  # a terminal of JupyterLab
        ({"TERM": "xterm-color", "JPY_PARENT_PID": "1"}, False),  # `!jupyter hyperpod …` in a cell
        ({"TERM": "dumb"}, False),
    ],
)
def test_where_a_status_line_is_shown(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], shown: bool
) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    Terminal().status("step 1")
    assert is_interactive(screen) == shown, "a load in a `!` command keeps no progress lines either"
    assert ("step 1" in screen.getvalue()) == shown
