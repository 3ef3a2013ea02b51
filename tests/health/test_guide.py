"""The commands and the rules of docs/health.md, as they are printed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control import cluster
from jupyter_hyperpod.core.rules import parse
from jupyter_hyperpod.storage.store import Store

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "health.md").read_text()


def test_the_commands(
    cluster_of_health: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JUPYTER_HYPERPOD_STORE", str(cluster_of_health.root))
    said = []
    for line in re.findall(r"```bash\n(.*?)```", GUIDE, re.DOTALL)[0].splitlines():
        words = shlex.split(line, comments=True)
        assert words[:2] == ["jupyter", "hyperpod"]
        assert main(words[2:]) == 0, line
        said.append(capsys.readouterr().out)
    assert "Schedulable" in said[0] and "instance" in said[1] and "cpu-stress" in said[2]
    labels = cluster.status(cluster_of_health)["health"]["node-2"]["labels"]
    assert labels.get("sagemaker.amazonaws.com/deep-health-check-status") in ("Passed", None)
    assert "labelled only" in said[-1]


def test_the_rules() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)
    assert [rule.name for rule in parse(json.loads(text))] == ["start", "step", "device"]
