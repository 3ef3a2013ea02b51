"""A program gets the same numbers whether numpy and torch were imported ahead of it or by itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jupyter_hyperpod.runtime.agent.libraries import needed

BOTH = ("numpy", "torch")
TRAINS = (*BOTH, "jupyter_hyperpod.runtime.session.session", "torch._dynamo")


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("print('here')", ()),
        ("import os, sys\nfrom pathlib import Path", ()),
        ("def nobody_can_run_this(", ()),
        ("import pandas as pd", ("numpy",)),
        ("import json\nfrom numpy.random import rand", ("numpy",)),
        ("import torch", BOTH),
        ("import json\ndef late():\n    import jupyter_hyperpod as hp", TRAINS),
        ("import torch\nfrom accelerate import Accelerator", TRAINS),
        ("from . import mine", BOTH),
        ("import mine", BOTH),
        ("exec(open('train.py').read())", BOTH),
        ("import runpy\nrunpy.run_path('train.py')", BOTH),
        ("import pandas\nmodel = __import__('torch').nn.Linear(2, 1)", BOTH),
        ("from importlib import import_module", BOTH),
    ],
)
def test_what_a_program_may_need(source: str, names: tuple[str, ...]) -> None:
    assert needed(source) == names


DRAWS = """
import sys
for name in sys.argv[1].split():
    __import__(name)
import random
from jupyter_hyperpod.runtime.program import generators
from jupyter_hyperpod.runtime.worker import adapters
assert ("torch" in sys.modules) == ("torch" in sys.argv[1])
adapters.seed_everything(2**40 + 7, 1)
generators.note()
import numpy
print(numpy.random.rand()) if sys.argv[2] == "drawn" else None
import torch
print(random.random(), torch.rand(2).tolist(), torch.get_num_threads())
print(torch.__loader__ is torch.__spec__.loader, type(torch.__loader__).__name__)
generators.begin()
print(random.random(), numpy.random.rand())
"""


@pytest.mark.parametrize("drawn", ["drawn", "untouched"])
def test_numbers_are_the_same_imported_ahead_or_late(drawn: str) -> None:
    def run(ahead: str) -> str:
        line = [sys.executable, "-c", DRAWS, ahead, drawn]
        return subprocess.run(line, capture_output=True, text=True, check=True, timeout=100).stdout

    ahead = run("numpy torch")
    assert ahead.count("\n") >= 3
    assert run("") == run("numpy") == run(" ".join(TRAINS)) == ahead
