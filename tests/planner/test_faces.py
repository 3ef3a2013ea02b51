"""A plan in a terminal and in a cell, and the commands of docs/planner.md as they are printed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.core.events import Event, encode
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.notebook.magics import HyperpodMagics
from jupyter_hyperpod.storage.store import Store
from tests.planner.test_calibrate import made

ISSUE = "--instances 256 --rate 0.05% --manual 280min --auto 40min --gpu-hours 10M --price 5 --json"


def run(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str, str]:
    try:
        status = main(["plan", *shlex.split(line)])
    except SystemExit as end:
        status = int(end.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


def test_the_published_saving(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, ISSUE)
    found = json.loads(out)
    assert status == 0 and found["convention"] == "productive"
    assert found["reduction"] == pytest.approx(0.3205, abs=0.0005)
    assert found["saving"] == pytest.approx(25.6e6, abs=0.1e6)
    for convention, reduction in (("restart", 0.40), ("serial", 0.56)):
        other = json.loads(run(capsys, f"{ISSUE} --convention {convention}")[1])
        assert (other["convention"], other["reduction"]) == (convention, pytest.approx(reduction, abs=0.005))


def test_a_table_names_its_convention_and_a_simulation_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--gpu-hours 1M --simulate --runs 3 --seed 5 --checkpoint-cost 1min --spares 4")
    assert status == 0
    assert "convention: productive" in out and "3 times each from seed 5" in out
    assert "in place" in out and "±" in out and "software bug" in out and "4 warm spares" in out


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--rate -0.05%", "negative"),
        ("--rate 0.05", "no unit"),
        ("--rate 30%", "is the unit right"),
        ("--instances 0", "0 instances"),
        ("--instances 1.5", "not a whole number"),
        ("--manual 280", "no unit"),
        ("--manual 40min --auto 280min", "are the two exchanged"),
        ("--interval 0min", "longer than nothing"),
        ("--interval -5min", "negative"),
        ("--gpu-hours 0", "more than none"),
        ("--price free", "not an amount of money"),
        ("--manual 20h --convention serial", "never ends"),
        ("--seed 3", "add --simulate"),
        ("--simulate --runs 0", "0 repetitions"),
        ("--simulate --elastic 2:4", "outside the elastic range"),
        ("--calibrate nobody", "no job 'nobody'"),
        ("--plot plan.png", "ends with .svg"),
        ("--plot /nowhere/plan.svg", "cannot be written"),
    ],
)
def test_bad_input_is_told(capsys: pytest.CaptureFixture[str], store: Store, line: str, told: str) -> None:
    status, out, err = run(capsys, f"{line} --store {store.root}")
    assert (status, out) == (2, "") and told in err


def test_a_picture_of_its_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "plan.svg"
    assert run(capsys, f"--plot {target}")[0] == 0
    picture = ElementTree.fromstring(target.read_text())
    assert len(picture.findall("{http://www.w3.org/2000/svg}path")) == 6
    assert "prefers-color-scheme" in target.read_text()
    status, _, err = run(capsys, f"--plot {target}")
    assert status == 2 and "another" in err


def with_journal(store: Store, events: list[Event]) -> str:
    job = store.prepare().create_job(JobSpec("measured", store.put_cell("pass"), 4))
    job.events.mkdir(exist_ok=True)
    (job.events / "w.jsonl").write_bytes(b"".join(map(encode, events)))
    return job.id


@pytest.mark.slow
def test_a_job_calibrates_a_plan(capsys: pytest.CaptureFixture[str], store: Store) -> None:
    job = with_journal(store, made(steps=8000, injected=False))
    line = f"--store {store.root} --calibrate measured --simulate --runs 2 --gpu-hours 100k --json"
    status, out, _ = run(capsys, line)
    found = json.loads(out)
    assert status == 0 and found["calibration"]["job_id"] == job
    assert found["rate_per_hour"] == pytest.approx(1 / (4 * 16_001 / 3600), rel=1e-3)
    assert found["simulation"]["in place"]["stages_s"]["stall"]["mean"] > 0
    assert any(f"as measured in {job}" in line for line in found["lines"])


def test_the_magic_says_the_same_and_draws_it(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    shell = InteractiveShell()
    magics = HyperpodMagics(shell, parent=shell)
    magics.store = str(store.root)
    found: Any = magics.run_verb("plan --convention restart")
    assert found["reduction"] == pytest.approx(0.40, abs=0.005)
    status, out, _ = run(capsys, "--convention restart")
    assert status == 0 and repr(found).split() == out.split()
    page = found._repr_html_()
    assert "<svg" in page and "var(--jp-ui-font-color1" in page and "(convention: restart)" in page


GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "planner.md").read_text()


@pytest.mark.parametrize("line", re.findall(r"^jupyter hyperpod plan(.*)$", GUIDE.replace("\\\n", " "), re.MULTILINE))
def test_the_commands_of_the_guide(
    line: str, capsys: pytest.CaptureFixture[str], store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with_journal(store, made())
    status, out, err = run(capsys, line.split("#")[0].replace("JOB", "measured") + f" --store {store.root}")
    assert status == 0, err
    assert "convention: " in out


def test_the_code_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    exec(code, {})
    out, _ = capsys.readouterr()
    assert "32.05% less time, $25.6 M less" in out and "goodput 0.9" in out
