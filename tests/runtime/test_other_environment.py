"""A training in another environment than the cluster's recovers as any other, to the same bits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.runtime.conftest import Run, Submit
from tests.test_foreign_environments import TREE, make_environment


@pytest.mark.timeout(180)
def test_it_loses_a_node_and_keeps_the_bits(job: Submit, reference: Run, tmp_path: Path) -> None:
    found = [folder for folder in sys.path if folder.endswith("site-packages")]
    run = job(nodes=3, python=make_environment(tmp_path / "venv", [str(TREE), *found]))
    run.until_step(5)
    run.kill_node(1)
    run.until_step(12)
    run.kill(0)
    run.finish()
    run.same_as(reference)
