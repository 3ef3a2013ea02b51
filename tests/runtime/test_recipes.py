"""Rendered recipes on a real cluster: they learn, and what they learn does not depend on who computed it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_hyperpod.recipes import catalogue, render
from jupyter_hyperpod.runtime.audit import audit
from tests.runtime.conftest import Run, Submit


def submit(job: Submit, name: str, nodes: int, *, inline: bool = False) -> Run:
    recipe = catalogue.load(name)
    scale, _ = recipe.scale(nodes)
    return job(
        render.source(recipe, nodes, inline=inline), nodes=nodes, elastic=str(scale.elastic), name=recipe.job_name
    )


def same(one: Run, other: Run) -> None:
    assert one.losses() == other.losses(), one.story()
    assert one.view["digest"] == other.view["digest"] is not None


@pytest.mark.parametrize("name", ["llama-tiny", "gpt-oss-tiny"])
def test_a_tiny_recipe_learns_the_same_on_any_number_of_members(job: Submit, name: str) -> None:
    alone, together, inline = (
        submit(job, name, n, inline=written) for n, written in ((1, False), (3, False), (2, True))
    )
    losses = [float.fromhex(loss) for loss in _finished(alone, name).losses().values()]
    steps = catalogue.load(name).scales[0].steps
    assert len(losses) == steps
    assert losses[0] == pytest.approx(5.55, abs=0.15), "log(256): nothing is known about a byte"
    assert sum(losses[-5:]) / 5 < 0.75 * losses[0], losses
    same(_finished(together, name), alone)
    same(_finished(inline, name), alone)


def test_the_cell_of_a_large_recipe_trains_at_tiny_size(job: Submit) -> None:
    tiny = catalogue.load("gpt-oss-tiny")
    scale = replace(tiny.scales[0], replica=2, steps=6)
    source = render.source(replace(tiny, scales=(scale,)))
    assert "fully_shard" in source
    one, two = (job(source, nodes=nodes, elastic="1:2", replica=2) for nodes in (1, 2))
    same(_finished(one, tiny.name), _finished(two, tiny.name))
    losses = [float.fromhex(loss) for loss in one.losses().values()]
    assert losses[-1] < losses[0] - 0.5, losses


def test_a_mixture_of_experts_survives_a_kill(job: Submit) -> None:
    undisturbed, killed = submit(job, "gpt-oss-tiny", 1), submit(job, "gpt-oss-tiny", 3)
    killed.until_step(5)
    killed.kill(1)
    same(_finished(killed, "gpt-oss-tiny"), _finished(undisturbed, "gpt-oss-tiny"))
    assert [incident["cause"] for incident in killed.view["incidents"]] == ["process killed"]


def _finished(run: Run, name: str) -> Run:
    run.finish()
    (said,) = filter(None, run.text().values())
    assert said.startswith(f"{name}: loss ")
    assert audit(run.events).sound
    return run
