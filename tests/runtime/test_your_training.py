"""The code of docs/your-training.md, as a cell: undisturbed, and with two members killed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.runtime.conftest import Run, Submit

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "your-training.md").read_text()
SLOWER = ("            total += loss\n", "            total += loss\n            time.sleep(0.1)\n")


def printed(run: Run) -> str:
    return run.text().get(0, "")


def test_the_guide(job: Submit) -> None:
    code, *others = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    for other in others:
        alone, together = job(other, nodes=1), job(other)
        alone.finish(), together.finish()
        assert printed(alone) and printed(together) == printed(alone)
        assert together.view["digest"] == alone.view["digest"]
    undisturbed = job(code, nodes=1)
    undisturbed.finish()
    assert re.fullmatch(r"best \d+\.\d+ of 3 epochs\n", printed(undisturbed))
    assert code.count(SLOWER[0]) == 1
    run = job("import time\n" + code.replace(*SLOWER))
    run.until_step(3)
    run.kill(1)
    run.until_step(7)
    run.kill(0)
    run.finish()
    assert run.losses() == undisturbed.losses()
    assert run.view["digest"] == undisturbed.view["digest"]
    assert printed(run) == printed(undisturbed)


FRAMEWORKS = (Path(__file__).resolve().parents[2] / "docs" / "frameworks.md").read_text()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", FRAMEWORKS, re.DOTALL))
def test_the_frameworks(job: Submit, code: str) -> None:
    alone, together = job(code, nodes=1), job(code)
    alone.finish(timeout_s=120), together.finish(timeout_s=120)
    assert printed(alone).splitlines()[-1] == printed(together).splitlines()[-1]
    assert together.view["digest"] == alone.view["digest"]
