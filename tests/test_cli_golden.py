"""The frozen command line: help texts change only together with `tests/data/cli.txt`.

Write the file anew with ``python -m tests.test_cli_golden``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from traitlets.config.loader import PyFileConfigLoader

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.cli.parser import ALIASES, build_parser
from jupyter_hyperpod.cli.verbs import VERBS, function_of
from jupyter_hyperpod.control.submit_options import add_submit_options
from jupyter_hyperpod.notebook.arguments import VERB_HELP, cell_parser, verb_parser
from jupyter_hyperpod.notebook.magics import HyperpodMagics
from jupyter_hyperpod.notebook.verbs import VERBS as MAGIC_VERBS
from jupyter_hyperpod.server.extension import HyperpodExtension

GOLDEN = Path(__file__).parent / "data" / "cli.txt"


def choices(parser: argparse.ArgumentParser) -> dict[str, Any]:
    assert parser._subparsers is not None
    found: dict[str, Any] = dict(parser._subparsers._group_actions[0].choices or {})  # type: ignore[arg-type]
    return found


def help_texts() -> str:
    parsers = [build_parser(), *dict.fromkeys(choices(build_parser()).values())]
    parsers += [cell_parser(), verb_parser(), *choices(verb_parser()).values()]
    return "\n".join(f"==== {parser.prog}\n{parser.format_help()}" for parser in parsers)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="argparse words its help differently in each version")
def test_help_is_frozen() -> None:
    assert help_texts() == GOLDEN.read_text(), "write it anew with `python -m tests.test_cli_golden` if that is meant"


def test_every_verb_is_declared_and_done() -> None:
    assert set(choices(build_parser())) == set(VERBS) | ALIASES.keys()
    assert all(callable(function_of(verb)) for verb in VERBS)
    assert set(choices(verb_parser())) == set(VERB_HELP) == set(MAGIC_VERBS)


@pytest.mark.parametrize("before", [(), ("--store", "list"), ("--store=list",)], ids=" ".join)
@pytest.mark.parametrize("verb", [*VERBS, *ALIASES])
def test_a_command_declares_its_own_verb_as_all_are_declared(verb: str, before: tuple[str, ...]) -> None:
    alone = choices(build_parser([*before, verb, "more"]))
    assert set(alone) == {ALIASES.get(verb, verb)} | {
        name for name, of in ALIASES.items() if of == ALIASES.get(verb, verb)
    }
    assert alone[verb].format_help() == choices(build_parser())[verb].format_help()


_PRINT_IMPORTED = """
import sys
from jupyter_hyperpod.cli.parser import build_parser
from jupyter_hyperpod.cli.verbs import function_of
build_parser(sys.argv[1:]); function_of(sys.argv[1]); print(*sys.modules)
"""


@pytest.mark.parametrize("verb", ["list", "describe", "logs", "stop", "scale"])
def test_a_short_command_imports_nothing_of_other_verbs(verb: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PRINT_IMPORTED, verb], check=True, stdout=subprocess.PIPE, text=True, timeout=60
    )
    imported = set(done.stdout.split())
    others = ("control.sweeps", "control.runs.promote", "control.setup", "control.doctor", "planner", "health.agent")
    assert imported & {f"jupyter_hyperpod.{name}" for name in others} == set()
    assert imported & {"yaml", "torch", "numpy", "traitlets"} == set()


@pytest.mark.parametrize("words", [[], ["nosuch"], ["--help"], ["--store"], ["--json", "list"]], ids=" ".join)
def test_what_names_no_verb_is_judged_by_all_verbs(words: list[str]) -> None:
    assert set(choices(build_parser(words))) == set(VERBS) | ALIASES.keys()


def test_generated_configuration_has_every_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--generate-config"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    for known in (HyperpodExtension, HyperpodMagics):
        for name in known.class_own_traits(config=True):
            assert f"# c.{known.__name__}.{name} = " in text
    path = tmp_path / "config.py"
    path.write_text(text.replace("# c.HyperpodMagics.threads = 1", "c.HyperpodMagics.threads = 3"))
    assert PyFileConfigLoader(str(path)).load_config() == {"HyperpodMagics": {"threads": 3}}


def test_magic_and_command_line_share_the_options_of_a_submission() -> None:
    shared = argparse.ArgumentParser()
    add_submit_options(shared)
    assert len(shared._option_string_actions) > 15
    for parser in (cell_parser(), choices(build_parser())["submit"]):
        assert shared._option_string_actions.keys() <= parser._option_string_actions.keys()


if __name__ == "__main__":
    GOLDEN.write_text(help_texts())
