"""A store on a disk without room: a job can be stopped all the same, and people read why what is shown is old."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]
SMALL = 'mount -t tmpfs -o size=8m none "$1" && cd "$1" && exec "$2" -c "$3"'
COMMON = """
import contextlib, io, os, time
os.environ["JUPYTER_HYPERPOD_STORE"] = os.getcwd() + "/store"
from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage import room
from jupyter_hyperpod.storage.journal import event_writer, read_events, follow_commands
from jupyter_hyperpod.storage.journal_writer import JournalWriter
from jupyter_hyperpod.storage.store import Store

def fill():
    with contextlib.suppress(OSError), open("fill", "ab", buffering=0) as file:
        while file.write(bytes(4096)):
            pass

def say(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([*words])
    return status, out.getvalue() + err.getvalue()

def until(true):
    deadline_s = time.monotonic() + 100
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
"""
COMMANDS = """
store = Store().prepare()
job = store.create_job(JobSpec(name="one", cell_digest="0" * 64, nodes=1, elastic=None))
with event_writer(job.events, "coordinator") as journal:
    journal.append("job.state", {"state": "running", "reason": ""})
fill()
status, said = say("list")
assert "disk of the store" in said and "newest entry is of 20" in said and "prune" in said, said
assert "is full" in say("describe", "one")[1]
in_words = [line for line in said.splitlines() if line.startswith("warning: the disk of the store")]
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}), colors="nocolor")
shell.run_line_magic("load_ext", "jupyter_hyperpod")
for verb in ("list", "describe one"):
    with contextlib.redirect_stderr(io.StringIO()) as err:
        shell.run_line_magic("hyperpod", verb)
    assert err.getvalue().splitlines() == in_words, err.getvalue()
import logging
from jupyter_hyperpod.server.tailer import Tailer
how = {"poll_interval_s": 0.01, "idle_interval_s": 0.05, "recent_bytes": 1 << 16, "jobs_listed": 10}
tailer = Tailer(store, on_change=lambda *_: None, log=logging.getLogger("test"), **how)
tailer.start()
reader, told = tailer.watch("cluster", None, lambda: None), []
until(lambda: told.extend(reader.take()) or any('"room":"the disk of the store' in text for text in told))
tailer.stop()
status, said = say("stop", "one")
assert (status, said) == (0, f"asked {job.id} to stop\\n"), said
follower = follow_commands(job.commands)
(command,) = follower.poll()
assert command.kind == "stop" and not follower.problems
assert all(os.stat(job.commands / name).st_mode & 0o777 == 0o600 for name in os.listdir(job.commands))
fill()
writer = JournalWriter(job.events, "supervisor")
assert not writer.write("warning.raised", {"text": "waits"})
assert writer.write_end(store.root, "job.state", {"state": "stopped", "reason": "room"}) and writer.waiting == 1
assert jobs.job_view(store, job.id)["reason"] == "room"
while room.write_event(store.root, job.events, "x", "job.state", {"state": "running", "reason": "again"}):
    fill()

jobs._unfinished = jobs.job_view  # the job has ended, and its commands are what is tried
status, said = say("stop", "one")
assert status and "No space left on device; free space there: `jupyter hyperpod prune`" in said, said
os.remove("fill")
assert writer.flush() and not room.full(store.root)
store.prepare()
assert sorted(os.listdir(store.root / "reserve")) == list("01234567")
writer.close()
print("done")
"""
TRAINING = """
with open("cell.py", "w") as file:
    file.write("import time\\nwhile True:\\n    print('x' * 100)\\n    time.sleep(0.1)\\n")
try:
    status, said = say("submit", "cell.py")
    store = Store()
    (job_id,) = store.job_ids()
    until(lambda: jobs.job_view(store, job_id)["state"] == "running")
    fill()
    assert say("stop", job_id)[0] == 0
    until(lambda: (fill(), jobs.job_view(store, job_id)["state"])[1] == "stopped")
    fill()
    assert say("cluster", "stop")[0] == 0
    assert "cluster stopped" in say("cluster", "status")[1]
finally:
    if os.path.exists("fill"):
        os.remove("fill")
    main(["cluster", "stop"])
print("done")
"""


def _on_a_small_disk(tmp_path: Path, program: str) -> None:
    """Run a program in a file system of 8 MB that nobody else sees."""
    space = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    if subprocess.run([*space, "mount", "-t", "tmpfs", "none", tmp_path], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here, not even in a namespace of its own")
    command = [*space, "sh", "-c", SMALL, "sh", str(tmp_path), sys.executable, COMMON + program]
    path = {"PYTHONPATH": str(TREE)}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=150, env={**os.environ, **path})
    assert ran.stdout.endswith("done\n"), ran.stdout + ran.stderr


def test_a_command_uses_the_room_that_is_kept_aside(tmp_path: Path) -> None:
    _on_a_small_disk(tmp_path, COMMANDS)


@pytest.mark.slow
def test_a_job_and_the_cluster_are_stopped_on_a_full_disk(tmp_path: Path) -> None:
    _on_a_small_disk(tmp_path, TRAINING)
