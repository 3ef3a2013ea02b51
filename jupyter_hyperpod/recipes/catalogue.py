"""Reads the recipes from ``data/*.toml``: a model, its optimizer, and settings for several scales."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from ..core.elastic import ElasticRange
from ..core.errors import NotFound, SpecError
from ..core.options import near_matches
from .config import DecoderConfig, RopeScaling

FLOAT_BYTES = 4  # training state is float32
THIS_MACHINE = "local"  # the instance type of recipes that are small enough for any machine


@dataclass(frozen=True, slots=True)
class InstanceType:
    """A machine: its ranks, one per device (0: as many as a replica has), and the bytes per device (0: unknown)."""

    ranks: int = 0
    device_bytes: float = 0


INSTANCES = {
    THIS_MACHINE: InstanceType(),
    "ml.p5.48xlarge": InstanceType(8, 80e9),  # https://aws.amazon.com/ec2/instance-types/p5: 8 H100 of 80 GB
    "ml.p6-b300.48xlarge": InstanceType(8, 268e9),  # https://aws.amazon.com/ec2/instance-types/p6: 8 B300 of 268 GB
}


@dataclass(frozen=True, slots=True)
class Optimizer:
    """AdamW, its warm-up, and the part of the learning rate at which the cosine schedule ends."""

    betas: tuple[float, float]
    weight_decay: float
    max_grad_norm: float
    warmup_steps: int
    min_learning_rate_ratio: float


@dataclass(frozen=True, slots=True)
class Scale:
    """Settings for a range of nodes. ``replica`` ranks hold one model; one replica computes a micro-batch.

    The global batch, and with it the learning rate, is the same for every number of nodes in the range. Raises
    SpecError where that is impossible.
    """

    instance: str
    nodes: int
    elastic: ElasticRange
    replica: int
    micro_batch: int
    global_batch: int
    sequence_length: int
    learning_rate: float
    steps: int

    def __post_init__(self) -> None:
        if self.instance not in INSTANCES:
            raise SpecError(f"instance {self.instance!r} is unknown; expected one of {', '.join(INSTANCES)}")
        if self.global_batch % self.micro_batch or self.micro_batch % self.replica:
            raise SpecError(
                f"{self.global_batch} sequences a step are not cut into micro-batches of {self.micro_batch} for "
                f"{self.replica} ranks; expected each a multiple of the next"
            )
        for nodes in (self.nodes, *self.sizes):
            if nodes * self.ranks % self.replica or not self.elastic.allows(nodes):
                raise SpecError(
                    f"{nodes} nodes of {self.ranks} ranks are outside {self.elastic} or cut a replica in two"
                )
        if self.members(self.elastic.maximum) > self.micro_batches:
            raise SpecError(f"{self.micro_batches} micro-batches leave replicas of {self.elastic.maximum} nodes idle")

    @property
    def micro_batches(self) -> int:
        """Micro-batches per step, the same for every number of nodes."""
        return self.global_batch // self.micro_batch

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every number of nodes in the range."""
        return self.elastic.sizes or tuple(range(self.elastic.minimum, self.elastic.maximum + 1))

    @property
    def nodes_a_replica(self) -> int:
        """Nodes that hold one replica together; 1 where a node holds one or more."""
        return max(1, self.replica // self.ranks)

    def members(self, nodes: int) -> int:
        """The number of replicas on this many nodes."""
        return nodes * self.ranks // self.replica

    @property
    def ranks(self) -> int:
        """Ranks of one node."""
        return INSTANCES[self.instance].ranks or self.replica


@dataclass(frozen=True, slots=True)
class Recipe:
    """A model with everything needed to train it. ``published`` holds the totals that its authors state."""

    name: str
    summary: str
    sources: tuple[str, ...]
    config: DecoderConfig
    optimizer: Optimizer
    scales: tuple[Scale, ...]
    published: Mapping[str, float]

    @property
    def job_name(self) -> str:
        """The recipe's name in the letters that a job's name may have."""
        return self.name.replace(".", "-")

    @property
    def local(self) -> bool:
        """Whether the model is small enough to train on this machine."""
        return all(scale.instance == THIS_MACHINE for scale in self.scales)

    def state_bytes(self, scale: Scale) -> int:
        """Bytes of training state on each rank of a replica where the fewest nodes compute; activations not counted.

        Parameters, two moments of AdamW, and gradients: the one of the micro-batch under way, those of finished
        tree nodes that wait for their siblings, and the reduced ones of this step and of the last.
        """
        share = -(-scale.micro_batches // scale.members(scale.elastic.minimum))
        gradients = 1 + max(1, (share - 1).bit_length()) + 2
        return self.config.parameters * FLOAT_BYTES * (3 + gradients) // scale.replica

    def scale(self, nodes: int | None = None) -> tuple[Scale, int]:
        """Return the settings for this many nodes, or the first settings with their own number; raises SpecError."""
        if nodes is None:
            return self.scales[0], self.scales[0].nodes
        for scale in self.scales:
            if nodes in scale.sizes:
                return scale, nodes
        sizes = sorted({size for scale in self.scales for size in scale.sizes})
        raise SpecError(f"{self.name} has no settings for {nodes} nodes; choose from {', '.join(map(str, sizes))}")


HEADERS = ("NAME", ">PARAMETERS", ">A TOKEN", "EXPERTS", ">CONTEXT", "NODES", "CELL")


def overview() -> list[tuple[str, ...]]:
    """A row for every recipe under `HEADERS`, as text."""
    rows: list[tuple[str, ...]] = []
    for recipe in map(load, names()):
        config, sizes = recipe.config, [size for scale in recipe.scales for size in scale.sizes]
        experts = f"{config.num_experts_per_tok} of {config.num_local_experts}" if config.num_local_experts else "dense"
        counts = (amount(config.parameters), amount(config.active_parameters))
        where = "trains here" if recipe.local else "renders for a cluster"
        context = f"{config.max_position_embeddings:,}"
        rows.append((recipe.name, *counts, experts, context, f"{min(sizes)} to {max(sizes)}", where))
    return rows


def record(name: str) -> dict[str, Any]:
    """Everything known about a recipe, ready for JSON, what is computed from it included."""
    recipe = load(name)
    computed = {"parameters": recipe.config.parameters, "active_parameters": recipe.config.active_parameters}
    scales = [
        asdict(scale)
        | {"elastic": str(scale.elastic), "sizes": scale.sizes}
        | {"micro_batches": scale.micro_batches, "state_bytes": recipe.state_bytes(scale)}
        for scale in recipe.scales
    ]
    return asdict(recipe) | computed | {"scales": scales}


def amount(number: float) -> str:
    """Return ``8.03 B`` style text for a number of parameters or tokens."""
    for unit, size in (("B", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.4g} {unit}"
    return f"{number / 1e3:.4g} k"


def names() -> list[str]:
    """The names of all recipes, the small ones first."""
    return sorted(_files(), key=lambda name: load(name).config.parameters)


def load(name: str) -> Recipe:
    """Return the recipe `name`; raises NotFound with the nearest name."""
    if name not in _files():
        near = near_matches(name, list(_files()))
        raise NotFound(f"no recipe is called {name[:60]!r}{near}; there are {', '.join(sorted(_files()))}")
    return _read(name)


@cache
def _files() -> dict[str, str]:
    data = files(__package__) / "data"
    return {path.name.removesuffix(".toml"): path.read_text() for path in data.iterdir() if path.name.endswith(".toml")}


@cache
def _read(name: str) -> Recipe:
    record: dict[str, Any] = tomllib.loads(_files()[name])
    config, optimizer = dict(record["config"]), dict(record["optimizer"])
    scaling = config.pop("rope_scaling", None)
    return Recipe(
        name=name,
        summary=record["summary"],
        sources=tuple(record["sources"]),
        config=DecoderConfig(**config, rope_scaling=RopeScaling(**scaling) if scaling else None),
        optimizer=Optimizer(**optimizer | {"betas": tuple(optimizer["betas"])}),
        scales=tuple(Scale(**scale | {"elastic": ElasticRange.parse(scale["elastic"])}) for scale in record["scales"]),
        published=dict(record.get("published", {})),
    )
