"""Rendered recipes on a real cluster: they learn, and what they learn does not depend on who computed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from jupyter_hyperpod.bench.laboratory import wait_for_idle
from jupyter_hyperpod.recipes import catalogue, render
from jupyter_hyperpod.runtime.audit import audit
from jupyter_hyperpod.storage.store import Store
from tests.runtime.conftest import Run, Submit, start


def submit(job: Submit, name: str, nodes: int, *, inline: bool = False) -> Run:
    recipe = catalogue.load(name)
    scale, _ = recipe.scale(nodes)
    return job(
        render.source(recipe, nodes, inline=inline), nodes=nodes, elastic=str(scale.elastic), name=recipe.job_name
    )


def same(one: Run, other: Run) -> None:
    assert one.losses() == other.losses(), one.story()
    assert one.view["digest"] == other.view["digest"] is not None


@pytest.fixture(scope="module")
def alone(shared_cluster: Store) -> Callable[[str], Run]:
    """A recipe on one node, undisturbed: trained once for all tests."""

    @cache
    def trained(name: str) -> Run:
        wait_for_idle(shared_cluster)
        recipe = catalogue.load(name)
        run = start(shared_cluster, render.source(recipe, 1), nodes=1, spares=0, name=recipe.job_name)
        return _finished(run, name)

    return trained


@pytest.mark.parametrize("name", ["llama-tiny", "gpt-oss-tiny"])
def test_a_tiny_recipe_learns_the_same_on_any_number_of_members(
    job: Submit, alone: Callable[[str], Run], name: str
) -> None:
    expected = alone(name)
    together, inline = (submit(job, name, n, inline=written) for n, written in ((3, False), (2, True)))
    losses = [float.fromhex(loss) for loss in expected.losses().values()]
    steps = catalogue.load(name).scales[0].steps
    assert len(losses) == steps
    assert losses[0] == pytest.approx(5.55, abs=0.15), "log(256): nothing is known about a byte"
    assert sum(losses[-5:]) / 5 < 0.75 * losses[0], losses
    same(_finished(together, name), expected)
    same(_finished(inline, name), expected)


def test_the_cell_of_a_large_recipe_trains_at_tiny_size(job: Submit) -> None:
    tiny = catalogue.load("gpt-oss-tiny")
    scale = replace(tiny.scales[0], replica=2, steps=6)
    source = render.source(replace(tiny, scales=(scale,)))
    assert "fully_shard" in source
    one, two = (job(source, nodes=nodes, elastic="1:2", replica=2) for nodes in (1, 2))
    same(_finished(one, tiny.name), _finished(two, tiny.name))
    losses = [float.fromhex(loss) for loss in one.losses().values()]
    assert losses[-1] < losses[0] - 0.5, losses


def test_a_mixture_of_experts_survives_a_kill(job: Submit, alone: Callable[[str], Run]) -> None:
    undisturbed = alone("gpt-oss-tiny")
    killed = submit(job, "gpt-oss-tiny", 3)
    killed.until_step(5)
    killed.kill(1)
    same(_finished(killed, "gpt-oss-tiny"), undisturbed)
    assert [incident["cause"] for incident in killed.view["incidents"]] == ["process killed"]


def _finished(run: Run, name: str) -> Run:
    run.finish()
    (said,) = filter(None, run.text().values())
    assert said.startswith(f"{name}: loss ")
    assert audit(run.events).sound
    return run
