"""Processes that a cell spawns find the functions and classes of the cell, and do not run it once more."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.runtime.worker.spawned import definitions
from tests.runtime.conftest import Submit

CELL = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch.multiprocessing as mp

FACTOR = 3
print("the cell runs", flush=True)


class Point:
    def __init__(self, x): self.x = x


def work(rank, x):
    print("child", rank, x * FACTOR, flush=True)


def square(point):
    return Point(point.x ** 2)


mp.spawn(work, args=(5,), nprocs=2)
context = multiprocessing.get_context("spawn")
with context.Pool(2) as pool:
    print([point.x for point in pool.map(square, [Point(2), Point(3)])])
with ProcessPoolExecutor(1, mp_context=context) as pool:
    print(pool.submit(square, Point(4)).result().x)
"""


@pytest.mark.timeout(180)
def test_a_cell_spawns_processes(job: Submit) -> None:
    run = job(CELL, nodes=1)
    run.finish(timeout_s=120.0)
    (said,) = run.text().values()
    assert sorted(said.splitlines()) == ["16", "[4, 9]", "child 0 15", "child 1 15", "the cell runs"]


@pytest.mark.timeout(120)
def test_what_a_spawned_process_lacks_is_said_with_its_line(job: Submit, tmp_path: Path) -> None:
    source = "import torch.multiprocessing as mp\nvalues = list(range(3))\ndef work(rank):\n    print(values)\n"
    source += "mp.spawn(work)\n"
    run = job(source, nodes=1, env={"TMPDIR": str(tmp_path)})  # torch leaves a file with the child's error there
    view = run.finish("failed", timeout_s=90.0)
    assert "NameError: name 'values' is not defined" in view["error"]["message"]
    assert "line 4, in work" in view["error"]["message"]
    assert list(tmp_path.glob("pytorch-errorfile*"))


def test_definitions_keep_their_lines() -> None:
    source = "import os\nx = 1; y = os.getpid()\n@property\ndef f():\n    return 1\nf()\nname: str = 'a'\n"
    assert definitions(source).splitlines() == [
        "import os",
        "",
        "@property",
        "def f():",
        "    return 1",
        "",
        "name: str = 'a'",
    ]


STATEMENTS = [
    "import os",
    "x = 1",
    "y = f()",
    "def f():\n    return 2",
    "class C:\n    a = f",
    "print(1)",
    "a = 1; b = 2",
    "@g\ndef h(): ...",
]
KEPT = (ast.Import, ast.FunctionDef, ast.ClassDef, ast.Assign)


@given(st.lists(st.sampled_from(STATEMENTS), max_size=12))
def test_definitions_are_a_module(parts: list[str]) -> None:
    kept = definitions("\n".join(parts))
    assert all(
        isinstance(node, (ast.Import, ast.FunctionDef, ast.ClassDef, ast.Assign)) for node in ast.parse(kept).body
    )
    assert kept.count("\n") == max(1, "\n".join(parts).count("\n") + 1)
