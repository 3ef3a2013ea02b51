"""The testbed itself: what it does to a node is what SLURM sees."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.slurm import CONTROLLER, Testbed

pytestmark = pytest.mark.slurm
INTERRUPTED = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background has inherited to ignore it
from tests.support.slurm import Testbed
with Testbed(1) as bed:
    bed.freeze("n1")
    print(bed.directory, *(process.pid for process in bed._up.values()), flush=True)
    time.sleep(600)
"""


def test_nodes_have_names_networks_and_processes_of_their_own(bed: Testbed) -> None:
    said = bed.run(CONTROLLER, "srun", "-N4", "sh", "-c", "echo $(hostname) $(ps -e | wc -l)").stdout.split()
    assert sorted(said[::2]) == bed.nodes
    assert all(int(count) < 20 for count in said[1::2])


def test_a_node_that_slurm_reboots_comes_back(bed: Testbed) -> None:
    before = bed.pid("n3")
    bed.run(CONTROLLER, "scontrol", "reboot", "ASAP", "n3")
    bed.until(lambda: bed.states()["n3"] == "idle" and bed._children("n3") not in ([], [str(before)]), "n3 is back")


def test_power_partition_and_frost_are_not_told(bed: Testbed) -> None:
    bed.power_cut("n1")
    bed.cut("n2")
    bed.freeze("n3")
    done = bed.run(CONTROLLER, "ping", "-c1", "-W1", "n2", check=False) if Path("/bin/ping").exists() else None
    assert done is None or done.returncode
    assert bed.states()["n4"] == "idle"
    assert bed.states()["n1"] in ("idle", "idle*")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_testbed_leaves_nothing(number: int, eventually: Callable[..., None]) -> None:
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as it:
        assert it.stdout is not None
        directory, *pids = it.stdout.readline().decode().split()
        os.kill(it.pid, number)
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert Path(directory).exists() == (number == signal.SIGKILL), "only who cannot clean up leaves files"
    Testbed(1).close()
    assert not Path(directory).exists(), "the next one removes them"
