"""The page on what can be switched off names every part, and what it says switches parts off for real."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jupyterlab_server.config import get_page_config

from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.server.extension import HyperpodExtension
from jupyter_hyperpod.system.encryption import ENCRYPT_VARIABLE
from jupyter_hyperpod.system.variables import SAMPLES_OFF, SAMPLES_VARIABLE

TREE = Path(__file__).resolve().parents[1]
PAGE = (TREE / "docs" / "switch-off.md").read_text()
SOURCES = [path for path in (TREE / "src").rglob("*.ts*") if "__tests__" not in path.parts]
PLUGIN = re.compile(r"(?:\bid: |const PLUGIN = )'jupyter_hyperpod:([\w-]+)'|= view\(\s*'([\w-]+)'")


def plugins() -> set[str]:
    return {"".join(found) for path in SOURCES for found in PLUGIN.findall(path.read_text())}


def test_every_plugin_is_on_the_page() -> None:
    exported = re.search(r"export default \[(.*?)\]", (TREE / "src" / "index.ts").read_text(), re.DOTALL)
    assert exported and len(plugins()) == len([name for name in exported[1].split(",") if name.strip()])
    assert set(re.findall(r"^\| `jupyter_hyperpod:([\w-]+)` \|", PAGE, re.MULTILINE)) == plugins()


def test_the_server_has_what_the_page_configures() -> None:
    lines = re.findall(r"`c\.HyperpodExtension\.(\w+) = ([^`]+)`", PAGE)
    assert lines
    for name, value in lines:
        trait = HyperpodExtension.class_traits(config=True)[name]
        trait.validate(HyperpodExtension(), {"False": False, '"off"': "off", "0": 0.0}[value])
    assert HyperpodExtension.standby.default_value is False and HyperpodExtension.keep_jobs.default_value == ""
    assert f"{ENCRYPT_VARIABLE}=off" in PAGE


def test_a_server_or_a_person_wants_no_samples_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"{SAMPLES_VARIABLE}={SAMPLES_OFF}" in PAGE and "node_samples = False" in PAGE
    monkeypatch.delenv(SAMPLES_VARIABLE, raising=False)
    assert SAMPLES_VARIABLE not in jobs.complete({})["env"]
    monkeypatch.setenv(SAMPLES_VARIABLE, "OFF")
    assert jobs.complete({"env": {"A": "b"}})["env"] == {SAMPLES_VARIABLE: SAMPLES_OFF, "A": "b"}
    wanted = {SAMPLES_VARIABLE: "on"}
    assert jobs.complete({"env": wanted})["env"] == wanted, "what is said for one job counts"


def test_a_part_is_switched_off_and_on_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")

    def off() -> set[str]:
        return set(get_page_config([]).get("disabledExtensions", []))

    commands = re.findall(r"^jupyter (labextension .*?) +#", PAGE, re.MULTILINE)
    assert len(commands) == 3
    before = off()
    for command, expected in zip(commands[1:], ({"jupyter_hyperpod:status"}, set()), strict=True):
        run = [sys.executable, "-m", "jupyter", *command.split()]
        subprocess.run(run, check=True, capture_output=True, env=os.environ, timeout=60)
        assert off() == before | expected
