"""Serving from a terminal: the commands of docs/serving.md as they are printed, its handler, and a small benchmark."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kept import Kept
from benchmarks.serving import replicas as benchmark
from jupyter_hyperpod import cli
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.events import REPLICA_STAGES
from jupyter_hyperpod.core.spec import JobSpec, ServeSpec
from jupyter_hyperpod.storage.store import ENVIRONMENT_VARIABLE, Store

PAGE = Path(__file__).resolve().parents[2] / "docs" / "serving.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.S)


def run(store: Store, line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    words = shlex.split(line)
    assert words[:2] == ["jupyter", "hyperpod"]
    status = cli.main(["--store", str(store.root), *words[2:]])
    return status, capsys.readouterr().out


def test_the_commands_of_the_page_work(
    shared_cluster: Store,
    decoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(decoder, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    (commands,) = blocks("bash")
    said = []
    for line in commands.splitlines():
        status, text = run(shared_cluster, line, capsys)
        said.append(text)
        assert status == 0, line
    assert "/v1/completions" in said[0] and "Authorization: Bearer" in said[0]
    assert "REPLICAS" in said[1] and "chat-" in said[1]
    job_id = re.search(r"chat-[a-z2-7]{8}", said[0])
    assert job_id is not None
    assert jobs.wait(shared_cluster, job_id[0], timeout_s=60)["state"] == "stopped"


def test_the_handler_of_the_page_and_json(
    shared_cluster: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source,) = blocks("python")
    (tmp_path / "handler.py").write_text(source)
    (tmp_path / "model.txt").write_text("2")
    line = f"jupyter hyperpod serve {tmp_path}/model.txt --handler {tmp_path}/handler.py --json"
    status, said = run(shared_cluster, line, capsys)
    found = json.loads(said)
    assert status == 0 and found["task"] == "predict" and Path(found["token_file"]).exists()
    assert run(shared_cluster, f"jupyter hyperpod stop {found['id']}", capsys)[0] == 0
    assert jobs.wait(shared_cluster, found["id"], timeout_s=60)["state"] == "stopped"


def test_bad_use_is_told(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--replicas", "2"]) == 2
    assert "--replicas needs a MODEL" in capsys.readouterr().err
    assert cli.main(["serve", "/nonexistent/model"]) == 2
    assert "there is no model at" in capsys.readouterr().err


def test_what_cannot_run_elsewhere_is_refused_and_the_page_says_so(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", "--slurm", "partition=train"]) == 2
    assert "--slurm needs a MODEL" in capsys.readouterr().err
    pod = {"image": "i", "host-path": "/x", "head": "pod"}
    with pytest.raises(SpecError, match="a deployment cannot have its head in a pod"):
        JobSpec("s", "0" * 64, backend="kubernetes", kubernetes=pod, serve=ServeSpec("m"))
    assert "`--kubernetes head=pod` is refused" in PAGE.read_text()


@pytest.mark.slow
def test_the_benchmark_reports_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_hyperpod import bench

    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path))
    found = bench.run("serving", runs=1, layers=2, width=64, rate=20, seconds=3)
    metrics = {row["metric"]: row["median"] for row in found["rows"]}
    assert metrics["decision to answered"] >= metrics["decision to loaded"] > 0
    assert metrics["lost"] == 0 and metrics["accepted"] == 60
    assert {bar["name"] for bar in found["bars"]} == {*benchmark.BARS.values(), "accepted_requests_lost"}


@pytest.mark.parametrize("slow", ["store", "local"])
def test_loads_are_judged_where_they_come_from(tmp_path: Path, slow: str) -> None:
    """Each place has a bar of its own: what is quick from one does not make up for what is slow from the other."""
    stages: dict[str, Any] = dict.fromkeys(REPLICA_STAGES, 2.0) | {"loading": 1.0}
    times = dict.fromkeys(("median_s", "p99_s", "longest_s", "undisturbed_median_s"), 0.1)
    kept = Kept(tmp_path, layers=1, width=1, rate=1, seconds=1, format=benchmark.FORMAT)
    kept.add("kill-0", {"kills": 1, "accepted": 10, "lost": 0, "sent_again": 1} | times)
    for case in benchmark.CASES:
        call_s = 0.5 if case == slow else 0.9
        alone = {"seconds": call_s + 0.1, "call_s": call_s}
        for number in range(benchmark.ROUNDS[case]):
            kept.add(f"{case}-{number}", stages | {"alone": [alone], "bytes": 1})
    report = benchmark.run(runs=1, layers=1, width=1, rate=1, seconds=1, keep=tmp_path)
    assert [bar["name"] for bar in report["bars"] if not bar["ok"]] == [benchmark.BARS[slow]]
    assert benchmark.BARS["store"] == "load_stage_over_loading_alone"
