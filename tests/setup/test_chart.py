"""The chart, filled in by a stand-in for helm, is what `setup apply` makes; helm itself is not there to try it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control.setup import chart, node_groups
from jupyter_hyperpod.control.setup.chart import CHART, VALUES, ChartWish, render
from jupyter_hyperpod.control.setup.health_objects import HealthAgents
from jupyter_hyperpod.core.errors import SpecError

AGENTS = HealthAgents("registry.example/train:3", "/opt/environment/bin/python", ("/fsx",), "None")
NODES = node_groups.parse(["p5.48xlarge:2", "m6i.xlarge:1"])
WISHES = {
    "small": ChartWish("team", {}),
    "account": ChartWish("team", {"account": "runner"}, remedies=True, groups=NODES, agents=AGENTS),
    "user": ChartWish("team", {"user": "jane@example.org"}, agents=AGENTS),
    "group": ChartWish("alpha-2", {"group": "scientists"}, remedies=True),
}


def filled(files: dict[str, str], values: dict[str, Any]) -> list[dict[str, Any]]:
    """What helm makes of a chart that has nothing but values in it."""

    def value(found: re.Match[str]) -> str:
        inner: Any = values
        for name in found[1].split("."):
            inner = inner[name]
        return str(inner)

    made = []
    for name, text in files.items():
        if name.startswith("templates/"):
            whole = re.sub(r"\{\{ \.Values\.([a-z.]+) \}\}", value, text)
            assert "{{" not in whole
            made += [one for one in yaml.safe_load_all(whole) if one]
    return made


@pytest.mark.parametrize("name", WISHES)
def test_filled_in_with_its_values_it_is_what_apply_makes(name: str) -> None:
    wish = WISHES[name]
    files = render(wish, "0.1.0")
    assert filled(files, yaml.safe_load(files[VALUES])) == wish.objects()
    assert "chart-value" not in "".join(files.values())
    assert all("Not verified with helm" in text.splitlines()[0] for text in files.values())


def test_with_other_values_it_is_what_apply_makes_of_them() -> None:
    files = render(WISHES["account"], "0.1.0")
    health = {"image": "x:1", "python": "/usr/bin/python3", "recovery": "Automatic"}
    other = HealthAgents("x:1", "/usr/bin/python3", ("/fsx",))
    wish = ChartWish("beta", {"account": "me"}, remedies=True, groups=NODES, agents=other)
    assert filled(files, {"namespace": "beta", "account": "me", "health": health}) == wish.objects()
    assert filled(files, {"namespace": "1", "account": "2", "health": health})[0]["metadata"]["name"] == "1"


def test_its_description_has_a_version_that_helm_takes() -> None:
    told = yaml.safe_load(render(WISHES["small"], "1.2.3.dev4+g0")[CHART])
    assert (told["apiVersion"], told["version"], told["appVersion"]) == ("v2", "1.2.3", "1.2.3.dev4+g0")


def test_what_helm_would_replace_is_refused() -> None:
    with pytest.raises(SpecError, match="helm would replace"):
        render(ChartWish("team", {"user": "{{ .Release.Name }}"}), "0.1.0")


def test_the_command_writes_it_once_and_says_what_is_not_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["setup", "chart", "-o", str(tmp_path / "chart"), "--namespace", "team", "--health", "x:1"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["written"] == [CHART, VALUES, chart.JOBS, chart.HEALTH] and told["objects"] == 12
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "all of its files were there already, the same" in said and "not verified with helm" in said
    assert main([*words[:-1], "y:1"]) == 2
    assert "has other files already" in capsys.readouterr().err


def test_cluster_is_another_word_for_eks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    for action, place in zip(("eks", "cluster"), places, strict=True):
        assert main(["setup", action, "a", "--region", "us-west-2", "--nodes", "m6i.xlarge:2", "-o", str(place)]) == 0
    capsys.readouterr()
    one, two = ({path.name: path.read_text() for path in place.rglob("*.*")} for place in places)
    assert one == two and one
    assert main(["setup", "cluster", "a", "--hashes"]) == 2
    assert "--hashes belongs to `setup image`" in capsys.readouterr().err
