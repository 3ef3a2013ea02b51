"""What the recipes say is consistent, fits where it is to run, and becomes code that runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from jupyter_hyperpod.control.submit_options import job_name, spec_fields
from jupyter_hyperpod.core.errors import NotFound, SpecError
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.notebook.arguments import cell_parser, parse
from jupyter_hyperpod.policy.batching import assign
from jupyter_hyperpod.recipes import catalogue, render
from jupyter_hyperpod.recipes.decoder import Decoder

RECIPES = [catalogue.load(name) for name in catalogue.names()]
SCALES = [pytest.param(r, s, id=f"{r.name}-{s.nodes}") for r in RECIPES for s in r.scales]
recipes = pytest.mark.parametrize("recipe", RECIPES, ids=[r.name for r in RECIPES])


def test_both_families_are_there_from_tiny_to_large() -> None:
    assert {"llama-tiny", "llama-3.1-8b", "llama-3.1-70b"} < set(catalogue.names())
    assert {"gpt-oss-tiny", "gpt-oss-20b", "gpt-oss-120b"} < set(catalogue.names())
    assert [r.name for r in RECIPES if r.local] == ["llama-tiny", "gpt-oss-tiny"]


@recipes
def test_the_number_of_parameters_is_the_published_one(recipe: catalogue.Recipe) -> None:
    with torch.device("meta"):  # takes no memory
        model = Decoder(recipe.config)
    assert sum(p.numel() for p in model.parameters()) == recipe.config.parameters
    assert recipe.local or recipe.published
    for name, published in recipe.published.items():
        assert getattr(recipe.config, name) == pytest.approx(published, rel=5e-3)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("llama-3.1-8b", 8_030_261_248), ("llama-3.1-70b", 70_553_706_496), ("llama-3.2-1b", 1_235_814_400)],
)
def test_exact_counts_of_published_weights(name: str, parameters: int) -> None:
    assert catalogue.load(name).config.parameters == parameters


@pytest.mark.parametrize(("recipe", "scale"), SCALES)
def test_the_global_batch_is_whole_for_every_number_of_nodes(recipe: catalogue.Recipe, scale: catalogue.Scale) -> None:
    assert (scale.sizes[0], scale.sizes[-1]) == (scale.elastic.minimum, scale.elastic.maximum)
    assert scale.nodes in scale.sizes
    for nodes in scale.sizes:
        found, count = recipe.scale(nodes)
        assert (found.global_batch, found.learning_rate, count) == (scale.global_batch, scale.learning_rate, nodes)
        shares = assign(scale.micro_batches, scale.members(nodes))
        assert [leaf for share in shares for leaf in share] == list(range(scale.micro_batches))
        assert sum(len(share) for share in shares) * scale.micro_batch == scale.global_batch
        lengths = {len(share) for share in shares}
        assert min(lengths) >= 1 and max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(("recipe", "scale"), SCALES)
def test_training_state_leaves_room_for_activations(recipe: catalogue.Recipe, scale: catalogue.Scale) -> None:
    device_bytes = catalogue.INSTANCES[scale.instance].device_bytes or 1e9
    assert recipe.state_bytes(scale) < 0.6 * device_bytes
    assert scale.sequence_length <= recipe.config.max_position_embeddings


@recipes
@pytest.mark.parametrize("inline", [False, True], ids=["import", "inline"])
def test_the_rendered_cell_is_valid_and_builds_the_model(recipe: catalogue.Recipe, inline: bool) -> None:
    text = render.cell(recipe, inline=inline)
    magic, _, source = text.partition("\n")
    assert magic.startswith("%%hyperpod ")
    options = parse(cell_parser(), magic.removeprefix("%%hyperpod"))
    spec = JobSpec(cell_digest="0" * 64, **spec_fields(options, job_name("x")))
    assert (spec.nodes, spec.name) == (recipe.scales[0].nodes, recipe.job_name)
    assert spec.backend == ("local" if recipe.local else "slurm")
    assert max(map(len, text.splitlines())) <= 120
    assert ("Not verified on GPUs" in text) == (not recipe.local)
    compile(source, recipe.name, "exec", dont_inherit=True)
    namespace: dict[str, object] = {"__name__": "__main__"}
    with torch.device("meta"):
        exec(source.partition("STEPS, ")[0] + "model = Decoder(config)", namespace)
    model = namespace["model"]
    assert isinstance(model, torch.nn.Module)
    assert sum(p.numel() for p in model.parameters()) == recipe.config.parameters
    if not inline:
        assert namespace["config"] == recipe.config


def test_nodes_choose_the_scale() -> None:
    small, recipe = catalogue.load("llama-3.1-8b"), catalogue.load("llama-3.1-70b")
    assert render.options(small, 5) == "--nodes 5 --elastic 2:8 --name llama-3-1-8b --replica 8 --backend slurm"
    assert "--nodes 64 --elastic 40:128:8" in render.options(recipe, 64, "slurm")
    assert "global_batch=1024" in render.source(recipe, 64)
    assert "One replica is 64 ranks on 8 nodes" in render.source(recipe)
    for nodes in (12, 36, 1000):
        with pytest.raises(SpecError, match=f"no settings for {nodes} nodes; choose from 8, 16, 24"):
            recipe.scale(nodes)
    with pytest.raises(NotFound, match=r"did you mean llama-tiny\?"):
        catalogue.load("lama-tiny")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"global_batch": 500}, "each a multiple of the next"),
        ({"micro_batch": 32}, "each a multiple of the next"),
        ({"nodes": 12}, "cut a replica in two"),
        ({"nodes": 40}, "outside 8:32:8"),
        ({"global_batch": 192}, "leave replicas of 32 nodes idle"),
        ({"instance": "toaster"}, "'toaster' is unknown"),
    ],
)
def test_scales_that_cannot_be_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        replace(catalogue.load("llama-3.1-70b").scales[0], **wrong)
