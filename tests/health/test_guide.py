"""The commands and the rules of docs/health.md, as they are printed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control import cluster
from jupyter_hyperpod.core.rules import parse
from jupyter_hyperpod.storage.store import Store

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "health.md").read_text()


@pytest.mark.slow
def test_the_commands(
    cluster_of_health: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    eventually: Callable[..., object],
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

    def told() -> bool:
        view = cluster.status(cluster_of_health)
        return any((one["node"], one["cause"]) == ("node-2", "NvidiaXid74") for one in view["incidents"]) or any(
            finding["fault"] == "NvidiaXid74" for finding in view["health"]["node-2"]["findings"]
        )

    eventually(told, message="what was injected is seen while this test still looks")
    assert main(["nodes", "resume", "node-2"]) == 0


def test_the_rules() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)
    assert [rule.name for rule in parse(json.loads(text))] == ["start", "step", "device"]
