"""The output of all ranks is watched: what is journaled and asked for, patterns without an end, and a real job."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.control.option_parser import Parser
from jupyter_hyperpod.control.submit_options import add_submit_options, spec_fields
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.events import Event
from jupyter_hyperpod.core.rules import LogRule, parse
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.health.logwatch import Watcher
from jupyter_hyperpod.system.timed_search import search
from tests.runtime.conftest import TRAIN, Run, Submit, job, reference

__all__ = ["job", "reference"]


class Scene:
    """A watcher, what it says, and a journal that is told to it."""

    def __init__(self, *rules: LogRule) -> None:
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.blamed: list[tuple[int | None, str]] = []
        self.watcher = Watcher(
            rules,
            lambda kind, data: self.said.append((kind, data)),
            lambda rank, cause, reason: self.blame(rank, reason),
        )
        self.seq = 0
        members = [{"member": f"m{rank}", "rank": rank} for rank in range(3)]
        self.tell(0.0, "generation.formed", members=members)
        self.tell(0.0, "job.state", state="running", reason="")

    def blame(self, rank: int | None, reason: str) -> None:
        self.blamed.append((rank, reason))

    def tell(self, at_s: float, kind: str, **data: Any) -> None:
        self.seq += 1
        self.watcher.hear(Event("w", self.seq, at_s, kind, data))

    def prints(self, at_s: float, rank: int, text: str, stream: str = "stdout") -> None:
        self.tell(at_s, "output.written", member=f"m{rank}", rank=rank, node="n", stream=stream, text=text)

    def states(self) -> list[tuple[int | None, str]]:
        return [(data["rank"], data["state"]) for kind, data in self.said if kind == "rule.state"]


def rule(**fields: Any) -> LogRule:
    (found,) = parse([{"name": "loss", "logPattern": "loss=([0-9.]+)", **fields}])
    return found


def test_each_rank_is_held_to_what_it_has_begun() -> None:
    scene = Scene(rule(expectedStartCutOffInSeconds=10, expectedRecurringFrequencyInSeconds=3))
    scene.prints(1.0, 1, "lo")
    scene.prints(1.1, 1, "ss=2.5\nmore")
    scene.prints(1.2, 0, "nothing of interest\n")
    scene.watcher.look(4.0)
    assert scene.states() == [(1, "HEALTHY")] and not scene.blamed, "rank 0 has never printed it and need not"
    scene.watcher.look(4.2)
    assert scene.states()[-1] == (1, "HANGING")
    assert scene.blamed == [(1, "rank 1: loss was not printed again within 3 s: HANGING")]
    scene.watcher.look(5.0)
    assert len(scene.blamed) == 1, "who takes the place begins anew"


def test_nobody_prints_at_all() -> None:
    scene = Scene(rule(expectedStartCutOffInSeconds=10))
    scene.watcher.look(10.5)
    assert scene.blamed == [(None, "loss was not printed within 10 s: HANGING")]


def test_no_clock_runs_while_the_job_recovers() -> None:
    scene = Scene(rule(expectedStartCutOffInSeconds=10, expectedRecurringFrequencyInSeconds=3))
    scene.prints(1.0, 1, "loss=1\n")
    scene.tell(2.0, "job.state", state="recovering", reason="")
    scene.watcher.look(60.0)
    scene.tell(60.0, "job.state", state="running", reason="")
    scene.watcher.look(62.0)
    assert not scene.blamed
    scene.watcher.look(63.1)
    assert [rank for rank, _ in scene.blamed] == [1]


def test_slow_is_told_and_nobody_is_replaced() -> None:
    scene = Scene(rule(metricThreshold=0.5, operator="lt", metricEvaluationDataPoints=2))
    for at in range(4):
        scene.prints(float(at), 2, "loss=0.25\n")
    assert scene.states() == [(2, "HEALTHY"), (2, "SLOW")] and not scene.blamed


def test_a_fault_of_a_stream_of_its_own() -> None:
    scene = Scene(rule(logPattern="ECC error", faultOnMatch=True))
    scene.prints(1.0, 0, "an uncorrectable ECC error was met\n", "stderr")
    assert scene.blamed == [(0, "rank 0: loss: a line that means a fault: FAULTED")]


def test_the_past_is_not_acted_upon() -> None:
    scene = Scene(rule(logPattern="ECC error", faultOnMatch=True))
    data = {"member": "m0", "rank": 0, "node": "n", "stream": "stdout", "text": "ECC error\n"}
    scene.watcher.hear(Event("w", 99, 1.0, "output.written", data), quiet=True)
    assert not scene.blamed and not scene.said


def test_a_pattern_that_would_never_end_is_cut_short_and_switched_off() -> None:
    evil = "(x+x+)+y"
    began_s = time.monotonic()
    with pytest.raises(TimeoutError, match="needs more than"):
        search(re.compile(evil), "x" * 40)
    assert time.monotonic() - began_s < 30.0
    scene = Scene(rule(logPattern=evil), LogRule("ok", "done"))
    for at in range(4):
        scene.prints(float(at), 0, "x" * 40 + "\n")
    warnings = [data["text"] for kind, data in scene.said if kind == "warning.raised"]
    assert len(warnings) == 1 and "log rule loss is switched off" in warnings[0]
    scene.prints(9.0, 0, "done\n")
    assert scene.states() == [(0, "HEALTHY")], "the others go on"


def test_rules_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"name": "a", "logPattern": "x"}]))
    (tmp_path / "b.toml").write_text('[[logMonitoringConfiguration]]\nname = "b"\nlogPattern = "y"\n')
    parser = Parser(prog="submit")
    add_submit_options(parser)
    options = parser.parse_args(["--log-rule", str(tmp_path / "a.json"), "--log-rule", str(tmp_path / "b.toml")])
    fields = spec_fields(options, "job")
    spec = JobSpec(cell_digest="0" * 64, **fields)
    assert [one.name for one in spec.log_rules] == ["a", "b"]
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    (tmp_path / "a.json").write_text("[")
    with pytest.raises(SpecError, match="is not JSON or TOML"):
        parser.parse_args(["--log-rule", str(tmp_path / "a.json")])


@pytest.fixture
def rules() -> Iterator[tuple[LogRule, ...]]:
    yield parse([{"name": "broken", "logPattern": "my device is broken", "faultOnMatch": True}])


def test_a_rank_that_says_it_is_broken_is_replaced(job: Submit, reference: Run, rules: tuple[LogRule, ...]) -> None:
    cell = TRAIN.replace("        session.log(loss=loss)", "        session.log(loss=loss)\n        say(session, step)")
    cell = cell.replace(
        "settings =",
        "def say(session, step):\n"
        "    if session.rank == 1 and step.index == 6 and not os.path.exists(os.environ['MARK']):\n"
        "        open(os.environ['MARK'], 'w').close()\n"
        "        print('my device is broken', flush=True)\n\nsettings =",
    )
    mark = str(Path(reference.store.root) / "said-once")
    run = job(cell, nodes=2, log_rules=rules, env={"PAUSE_S": "0.05", "MARK": mark})
    run.finish()
    run.same_as(reference)
    (incident,) = run.view["incidents"]
    assert incident["cause"] == "log rule broken", run.story()
    assert [(rule["rule"], rule["rank"], rule["state"]) for rule in run.view["rules"]] == [("broken", 1, "FAULTED")]


NOISE = """
import time
began_s, beats = time.monotonic(), 0
while time.monotonic() < began_s + 8.0:
    print("alive", beats, flush=True)
    beats += 1
    for _ in range(20):
        print("noise " + "x" * 2_000)
    time.sleep(0.05)
print("the end")
"""


def test_a_rank_that_prints_more_than_the_journal_takes_is_not_taken_for_silent(job: Submit) -> None:
    alive = parse([{"name": "alive", "logPattern": "alive", "expectedRecurringFrequencyInSeconds": 3}])
    run = job(NOISE, nodes=2, log_rules=alive, env={"HYPERPOD_OUTPUT_MB": "0.2"}, output_cap=1_000_000)
    run.finish()
    assert not run.view["incidents"] and not run.of_kind("member.lost"), run.story()
    assert {rule["state"] for rule in run.view["rules"]} == {"HEALTHY"}
    beside = run.store.job(run.job_id).path / "output"
    assert sum(file.stat().st_size for file in beside.iterdir()) <= 2e6


def test_who_reads_too_slowly_blames_nobody() -> None:
    scene = Scene(rule(logPattern="step", expectedRecurringFrequencyInSeconds=2))
    for rank in range(2):
        scene.tell(
            1.0, "output.written", member=f"node-{rank}.a.7", node="n", rank=rank, stream="stdout", text="step\n"
        )
    scene.watcher.missed({"node-0"}, 3.5)
    scene.watcher.look(3.6)
    (told,) = [data for kind, data in scene.said if data["state"] == "HANGING"]
    assert told["member"] == "node-1.a.7"
    scene.watcher.look(5.6)
    assert [data["member"] for _, data in scene.said if data["state"] == "HANGING"] == ["node-1.a.7", "node-0.a.7"]
