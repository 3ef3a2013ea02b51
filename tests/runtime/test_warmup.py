"""Where no zygote has loaded what jobs need, the agent does so once for its workers and for those that replace them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys, time
from pathlib import Path
import torch
from jupyter_hyperpod.runtime.worker import warmup
torch.set_num_threads(2)
threads, drawn = len(os.listdir("/proc/self/task")), torch.get_rng_state()
warmup.before_forks(Path(sys.argv[1]))
assert torch.get_num_threads() == 2 and torch.equal(drawn, torch.get_rng_state())
assert len(os.listdir("/proc/self/task")) == threads, "an agent forks"
began_s = time.process_time()
exec(compile(Path(sys.argv[1]).read_text(), "cell", "exec"), {}) if os.path.exists(sys.argv[1]) else None
print(time.process_time() - began_s, warmup.SESSION in sys.modules, "torch._dynamo" in sys.modules)
"""
TRAINS = """
import torch, jupyter_hyperpod as hp
optimizer = torch.optim.AdamW(torch.nn.Linear(2, 2).parameters())
hp.Session
"""


def run(cell: Path) -> tuple[float, bool, bool]:
    shown = subprocess.run([sys.executable, "-c", PROGRAM, cell], capture_output=True, text=True, check=True).stdout
    seconds, *loaded = shown.split()
    return float(seconds), loaded[0] == "True", loaded[1] == "True"


def test_a_worker_of_a_cell_that_trains_finds_everything_loaded(tmp_path: Path) -> None:
    (tmp_path / "cell.py").write_text(TRAINS)
    seconds, *loaded = run(tmp_path / "cell.py")
    assert loaded == [True, True]
    assert seconds < 0.3, "1.4 s of a core without it, for each worker"


@pytest.mark.parametrize("source", ["import torch\nprint(torch.ones(2).sum(), file=__import__('sys').stderr)\n", None])
def test_other_cells_and_one_that_cannot_be_read_begin_as_before(tmp_path: Path, source: str | None) -> None:
    if source is not None:
        (tmp_path / "cell.py").write_text(source)
    assert run(tmp_path / "cell.py")[1:] == (False, False)
