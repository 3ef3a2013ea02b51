"""Recipes from the command line and from a notebook, and the commands of docs/recipes.md as they are printed."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.core.errors import NotFound, SpecError
from jupyter_hyperpod.recipes import catalogue, render
from jupyter_hyperpod.storage.store import ENVIRONMENT_VARIABLE, Store

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "recipes.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def test_the_commands_of_the_guide(shared_cluster: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(shared_cluster.root))
    said = []
    for line in blocks("bash")[0].splitlines():
        words = shlex.split(line)
        assert words[:2] == ["jupyter", "hyperpod"]
        command = [sys.executable, "-m", "jupyter_hyperpod", *words[2:]]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    listed, shown, rendered, followed = said
    assert [line.split()[0] for line in listed.splitlines()[1:]] == catalogue.names()
    assert "116,829,156,672 parameters, 5,132,849,472 of them for a token" in shown
    assert blocks("bash")[0].splitlines()[3].removesuffix(" --follow") in rendered
    assert re.search(r"gpt-oss-tiny: loss \d\.\d{3} after step 40", followed)


def test_the_model_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    exec(blocks("python")[0], {})
    assert capsys.readouterr().out == "116,829,156,672 parameters\n"


def test_every_recipe_is_in_the_guide() -> None:
    assert set(catalogue.names()) <= set(re.findall(r"`([\w.-]+)`", GUIDE))


def test_json_holds_what_is_computed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "show", "llama-3.1-70b", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["parameters"] == 70_553_706_496
    assert record["scales"][0]["sizes"] == [8, 16, 24, 32]
    assert main(["recipe", "list", "--json"]) == 0
    assert record in json.loads(capsys.readouterr().out)
    assert main(["recipe", "render", "llama-tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cell"] == render.cell(catalogue.load("llama-tiny"))


def test_a_file_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "llama.py"
    command = ["recipe", "render", "llama-3.1-8b", "--nodes", "5", "--backend", "slurm", "--output", str(path)]
    assert main([*command, "--json"]) == 0
    submit = json.loads(capsys.readouterr().out)["submit"]
    assert submit.startswith("jupyter hyperpod submit llama.py --nodes 5 --elastic 2:8 ")
    assert path.read_text().startswith(f"# {submit}\n# llama-3.1-8b: ")
    assert main(command) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show"], "needs a name: one of llama-tiny, "),
        (["show", "gpt-os-tiny"], "did you mean gpt-oss-tiny?"),
        (["list", "llama-tiny"], "takes no name"),
        (["show", "llama-tiny", "--nodes", "2"], "--nodes belongs to `recipe render`"),
        (["render", "llama-tiny", "--nodes", "9"], "choose from 1, 2, 3, 4"),
        (["render", "llama-tiny", "--output", "tiny.txt"], "is not a .py file"),
    ],
)
def test_bad_use_is_answered(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "render", "llama-tiny", "--output", str(tmp_path / "no" / "tiny.py")]) == 1
    assert "No such file or directory" in capsys.readouterr().err


def test_the_magic_puts_the_cell_below(store: Store) -> None:
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}), colors="nocolor")
    shell.run_line_magic("load_ext", "jupyter_hyperpod")
    recipe = catalogue.load("gpt-oss-tiny")
    shell.run_cell("%hyperpod recipe gpt-oss-tiny --nodes 3 --inline").raise_error()
    assert shell.rl_next_input == render.cell(recipe, 3, inline=True)
    table = shell.run_cell("%hyperpod recipe").result
    assert [record["name"] for record in table] == catalogue.names()
    assert "gpt-oss-120b" in repr(table)
    assert isinstance(shell.run_cell("%hyperpod recipe lama").error_in_exec, NotFound)
    assert isinstance(shell.run_cell("%hyperpod recipe llama-tiny --nodes 7").error_in_exec, SpecError)
    with provisionalcompleter():
        line = "%hyperpod recipe gpt-oss-t"
        assert [completion.text for completion in shell.Completer.completions(line, len(line))] == ["gpt-oss-tiny"]
