"""Checkpoints of a process alone: killed in the middle of a save, full disks, other people's directories."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.policy import interval
from jupyter_hyperpod.runtime.checkpoint.store import Checkpoint, CheckpointManifest, Directory, new_token
from jupyter_hyperpod.runtime.checkpoint.writer import CheckpointWriter, StateCopy
from jupyter_hyperpod.runtime.comm import state_codec

pytestmark = pytest.mark.slow

BIG = """
import resource, signal, sys, warnings, torch, jupyter_hyperpod as hp
torch.manual_seed(0)
width, steps, every, place = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if len(sys.argv) > 5:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[5]), resource.RLIM_INFINITY))
model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 1))
optimizer = torch.optim.AdamW(model.parameters())
data = [(torch.ones(4) * i, torch.ones(1)) for i in range(20)]
settings = dict(global_batch=4, micro_batch=2, checkpoint=hp.Checkpoint(place, every_steps=every))
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    with hp.Session(model, optimizer, data, **settings) as session:
        for step in session.steps(steps):
            step.run(lambda b: torch.nn.functional.mse_loss(model(b[0]), b[1]))
        print(session.step, session.digest())
for warning in said:
    if issubclass(warning.category, RuntimeWarning):
        print(warning.message)
"""


def train(place: Path, *, width: int = 4, steps: int = 6, every: int = 2, limit: int = 0) -> list[str]:
    command = [sys.executable, "-c", BIG, str(width), str(steps), str(every), str(place)]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command + ([str(limit)] if limit else []), capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_killed_in_the_middle_of_a_save(tmp_path: Path) -> None:
    place, width = tmp_path / "run", 300_000
    expected = train(tmp_path / "calm", width=width, steps=4)
    command = [sys.executable, "-c", BIG, str(width), "400", "2", str(place)]
    deadline = time.monotonic() + 60
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        torn: list[Path] = []
        while not torn:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.001)
            whole = list(Directory(place).committed())
            torn = [p for p in place.glob(".saving-*/state.safetensors") if whole and p.exists() and p.stat().st_size]
        process.send_signal(signal.SIGKILL)
    left = [path.name for path in place.iterdir() if path.name.startswith(".saving-")]
    assert left, "it was killed while it wrote"
    for step, path in list(Directory(place).committed()):
        if step > 2:  # the next session is to have steps to take
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
    assert [step for step, _ in Directory(place).committed()] == [2]
    assert train(place, width=width, steps=4) == expected, "the whole one was taken up, to the same bits"
    assert not [path for path in place.iterdir() if path.name.startswith(".saving-")], "what was torn is gone"


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return train(tmp_path_factory.mktemp("calm") / "run")


def test_a_full_disk_stops_checkpoints_and_not_training(tmp_path: Path) -> None:
    calm = train(tmp_path / "calm", width=400)
    full = train(tmp_path / "full", width=400, limit=20_000)  # memory for gradients is a file, too, and smaller
    assert full[0] == calm[0]
    assert "could not be written: File too large" in full[1] and "training goes on" in full[1]
    assert not list((tmp_path / "full").iterdir()), "nothing half-written is left"


def test_a_path_that_cannot_be_written_stops_nothing(calm: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    said = train(tmp_path / "file" / "run")
    assert said[0] == calm[0]
    assert "Not a directory" in said[1] and len(said) == 2, "said once"


def session(place: Path, **settings: object) -> hp.Session:
    model = torch.nn.Linear(4, 1)
    options = {"global_batch": 4, "micro_batch": 2, "checkpoint": str(place)} | settings
    data = [(torch.ones(4), torch.ones(1))] * 20
    return hp.Session(model, torch.optim.AdamW(model.parameters()), data, **options)  # type: ignore[arg-type]


def test_a_checkpoint_that_is_due_while_another_is_written_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, write = threading.Event(), CheckpointWriter.run

    def late(writer: CheckpointWriter) -> None:
        assert go.wait(50)
        write(writer)

    monkeypatch.setattr(CheckpointWriter, "run", late)
    settings = hp.Checkpoint(str(tmp_path / "run"), every_steps=2, at_end=False)
    with session(tmp_path / "run", checkpoint=settings) as one:
        for step in one.steps(5):
            step.run(lambda batch: torch.nn.functional.mse_loss(one.model(batch[0]), batch[1]))
            if step.number == 5:
                go.set()
                (writing,) = [thread for thread in threading.enumerate() if isinstance(thread, CheckpointWriter)]
                writing.join(50)
    assert [at for at, _ in Directory(tmp_path / "run").committed()] == [5, 2]


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "run"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(SpecError, match=r"mode 0777, others can write to it; expected 0700"):
        session(place)
    if os.geteuid() == 0:
        place.chmod(0o700)
        os.chown(place, 12345, 12345)
        with pytest.raises(SpecError, match="belongs to user 12345, expected 0"):
            session(place)


def test_a_checkpoint_of_another_session_is_refused(tmp_path: Path) -> None:
    with session(tmp_path / "run") as first:
        for step in first.steps(1):
            step.run(lambda batch: torch.nn.functional.mse_loss(first.model(batch[0]), batch[1]))
    with session(tmp_path / "run", seed=4) as other, pytest.warns(RuntimeWarning, match="another session"):
        with pytest.raises(SpecError, match=r"seed 0, expected 4.*Give this session a path of its own"):
            next(other.steps(1))


def test_a_manifest_knows_its_own_damage() -> None:
    manifest = CheckpointManifest(3, "0" * 12, {"seed": 1}, [{"v": None}], {"state.safetensors": (4, "ab")})
    text = manifest.encode()
    assert CheckpointManifest.decode(text) == manifest
    for place in (0, 70, len(text) - 1):
        broken = bytearray(text)
        broken[place] ^= 1
        with pytest.raises(ValueError, match="SHA-256"):
            CheckpointManifest.decode(bytes(broken))


@pytest.mark.parametrize(
    "wrong", [{"keep": 0}, {"every_steps": 0}, {"every_s": 0.0}, {"every_s": 1.0, "every_steps": 1}]
)
def test_settings_that_make_no_sense(wrong: dict[str, int]) -> None:
    with pytest.raises(SpecError, match="expected"):
        Checkpoint("x", **wrong)  # type: ignore[arg-type]


def test_the_interval_is_dalys() -> None:
    # cost 5 min, MTBF 24 h, by the formula (37) of the paper
    assert interval.daly_s(300.0, 86400.0) == pytest.approx(7000.1, rel=1e-3)
    assert interval.daly_s(10.0, 5.0) == 5.0
    decided = interval.decide(3, 900.0, 0.8, 2.0, 0)
    assert decided.value == pytest.approx(21.4, abs=0.5)
    assert "MTBF 5 min observed over 3 failures, saving costs 800 ms" in decided.reason
    assert "no failure yet" in interval.decide(0, 10.0, None, None, 10**9).reason
    assert interval.decide(9, 9.0, 0.001, 4.0, 0).value == 4.0, "one is written before the next begins"
    assert not interval.worth_saying(10.0, 11.0) and interval.worth_saying(10.0, 20.0)


def test_a_report_that_is_lost_with_its_generation_is_given_again(tmp_path: Path) -> None:
    """The leader of a replica would wait for it for ever."""
    directory = Directory(tmp_path / "run")
    skeleton, tensors = state_codec.pack({"weight": torch.ones(3)})
    copies = [StateCopy(new_token(), 4, {}, 1, skeleton, tensors, shard, 2) for shard in range(2)]
    copies[1] = replace(copies[1], token=copies[0].token)
    leader, follower = (CheckpointWriter(directory, copy, time.monotonic()) for copy in copies)
    for writer in (leader, follower):
        writer.start()
    follower.join(50)
    assert follower.report()["part"], "it is on the way when a new generation is called"
    reports = [leader.report(), follower.report()]
    for writer in (leader, follower):
        writer.update(reports)
    leader.join(50)
    assert leader.manifest is not None and leader.manifest.step == 4
    assert follower.report()["part"] is None, "once is enough"
    leader.cancelled.set()
