"""What real ranks print, through rotated files: followed by two at once, and read by step, time and node."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from tests.runtime.conftest import TRAIN, Run, Submit

pytestmark = pytest.mark.slow

# a rank prints about 75 kB per step, and more than the journal and the files together take
PRINTING = TRAIN.replace(
    "        loss = step.run(loss_fn)\n",
    "        print('begins', step.number, 'of', session.rank, flush=True)\n"
    "        loss = step.run(loss_fn)\n"
    "        for part in range(15):\n"
    "            print('line', step.number, part, 'of', session.rank, 'x' * 5000)\n"
    "        print('ends', step.number, 'of', session.rank, file=sys.stderr)\n",
).replace("import os, time,", "import os, sys, time,")
WAITING = """
import os, time
print("waits", flush=True)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.05)
"""
SMALL = {"HYPERPOD_OUTPUT_MB": "0.2"}


def logs(run: Run, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", "jupyter_hyperpod", "--store", str(run.store.root), "logs", run.job_id]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=True)
    return (done.stdout + done.stderr).splitlines()


def follower(run: Run, into: Path) -> subprocess.Popen[bytes]:
    """Follow a job; a full pipe would hold it up, so it writes to a file."""
    command = [sys.executable, "-m", "jupyter_hyperpod", "--store", str(run.store.root), "logs", run.job_id, "--follow"]
    with into.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)


def numbers(lines: list[str], rank: int) -> list[tuple[int, int]]:
    """The steps and parts of the printed lines of a rank."""
    found = [line.split() for line in lines if line.startswith(f"[rank {rank}] line ")]
    return [(int(words[3]), int(words[4])) for words in found]


def test_two_followers_lose_and_repeat_nothing_while_files_are_rotated(job: Submit, tmp_path: Path) -> None:
    go = tmp_path / "go"
    run = job(WAITING + PRINTING, nodes=2, env=SMALL | {"PAUSE_S": "0.05", "GO": str(go)}, output_cap=1_000_000)
    files = [tmp_path / name for name in "ab"]
    followers = [follower(run, file) for file in files]
    try:
        run.until(lambda: all("waits" in file.read_text() for file in files), 60.0)
        go.touch()
        assert [one.wait(timeout=120) for one in followers] == [0, 0]
    finally:
        for one in followers:
            one.kill()
    run.finish()
    every = [(step, part) for step in range(1, 25) for part in range(15)]
    for lines in (file.read_text().splitlines() for file in files):
        assert not any("dropped" in line for line in lines if not line.startswith("warning: "))
        for rank in range(2):
            assert numbers(lines, rank) == every
    beside = run.store.job(run.job_id).path / "output"
    parts = [path.name for path in beside.iterdir() if "@" in path.name]
    assert parts and not any("@000000@" in name for name in parts), "the first files have been dropped"
    assert sum(path.stat().st_size for path in beside.iterdir()) <= 2e6 + 50_000


def test_output_is_found_by_step_and_time_also_behind_a_loss(job: Submit) -> None:
    run = job(PRINTING, nodes=2, env=SMALL | {"PAUSE_S": "0.02"})
    run.until_event("step.committed", count=8)
    run.kill(1)
    run.finish()
    for steps, expected in (("3:4", [3, 4]), ("20", [20]), ("23:", [23, 24])):
        found = logs(run, "--steps", steps)
        for rank in range(2):
            assert numbers(found, rank) == [(step, part) for step in expected for part in range(15)]
            for word in ("begins", "ends"):
                said = [line for line in found if line.startswith(f"[rank {rank}] {word} ")]
                assert said == [f"[rank {rank}] {word} {step} of {rank}" for step in expected]
        assert logs(run, "--steps", steps, "--rank", "1") == [line for line in found if line.startswith("[rank 1]")]
    last = logs(run, "--tail", "3", "--rank", "0", "--grep", "line")
    assert numbers(last, 0) == [(24, 12), (24, 13), (24, 14)]
    pieces = [json.loads(line) for line in logs(run, "--json")]
    node = next(piece["data"]["node"] for piece in pieces if piece["data"].get("step") == 24)
    on_node = [json.loads(line) for line in logs(run, "--json", "--node", node)]
    assert on_node == [piece for piece in pieces if piece["data"]["node"] == node]
    middle_s = pieces[len(pieces) // 2]["time_s"]
    assert [json.loads(line) for line in logs(run, "--json", "--until", _date(middle_s))] == [
        piece for piece in pieces if piece["time_s"] <= int(middle_s)
    ]
    assert "has printed nothing on nowhere" in _refused(run, "--node", "nowhere")


def test_a_file_that_the_program_puts_in_place_of_its_output_gets_no_marks(job: Submit, tmp_path: Path) -> None:
    into = tmp_path / "own.txt"
    opened = f"file = os.open({str(into)!r}, os.O_WRONLY | os.O_CREAT)\nkept = os.dup(1)\nos.dup2(file, 1)\n"
    source = TRAIN.replace(
        "        loss = step.run(loss_fn)\n", "        print('own', step.number)\n        loss = step.run(loss_fn)\n"
    )
    begins = source.index("with hp.Session")
    run = job(source[:begins] + opened + source[begins:] + "\nos.dup2(kept, 1)\n", nodes=1, env={"PAUSE_S": "0.0"})
    run.finish()
    assert into.read_text() == "".join(f"own {step}\n" for step in range(1, 25))


def _date(time_s: float) -> str:
    return datetime.fromtimestamp(int(time_s)).isoformat()


def _refused(run: Run, *arguments: str) -> str:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        logs(run, *arguments)
    return str(refused.value.stderr)
