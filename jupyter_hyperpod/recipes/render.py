"""Renders the cell, or the script, that trains a recipe.

The cell holds every number, so later changes of a recipe change no rendered cell. The model is imported, or with
``inline`` written out in the cell, so that a person can change it there.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from importlib.resources import files
from string import Template
from textwrap import wrap

from ..core.backends import BACKENDS, CLUSTER_BACKEND, DEFAULT_BACKEND
from ..core.errors import SpecError
from .catalogue import Recipe, Scale, amount
from .config import DecoderConfig

_BODY = Template('''\
$header
$imports
config = $config
STEPS, WARMUP, FINAL, SEQUENCE = $steps, $warmup, $final, $sequence


def schedule(step):
    """Part of the learning rate: a linear warm-up, then a cosine down to FINAL."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    progress = min((step - WARMUP) / max(STEPS - WARMUP, 1), 1.0)
    return FINAL + (1 - FINAL) * (1 + math.cos(math.pi * progress)) / 2


$model
optimizer = torch.optim.AdamW(model.parameters(), lr=$rate, betas=$betas, weight_decay=$decay)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
$data


def loss_fn(batch):
    """Mean cross-entropy of the next token."""
    inputs, targets = $batch
    return F.cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten())


settings = dict(global_batch=$global_batch, micro_batch=$micro_batch, max_grad_norm=$norm, scheduler=scheduler)
with hp.Session(model, optimizer, data, seed=0, **settings) as session:
    for step in session.steps(STEPS):
        loss = step.run(loss_fn)
        session.log(loss=loss, learning_rate=scheduler.get_last_lr()[0])
    if session.rank == 0:
        print(f"$name: loss {loss:.3f} after step {session.step}")
$end''')

_WHOLE = """\
torch.manual_seed(0)
model = Decoder(config)"""

# every rank of a replica fills its own shards, so each needs a seed of its own; all replicas get the same
_SHARDED = """\
dist.init_process_group()  # the ranks of this replica: gloo for CPU tensors, NCCL for CUDA tensors
device, precision = torch.device("cpu"), MixedPrecisionPolicy()
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
with torch.device("meta"):
    model = Decoder(config, recompute=True)
for part in (*model.blocks, model):
    fully_shard(part, mp_policy=precision)
model.to_empty(device=device)
torch.manual_seed(dist.get_rank())
model.initialize()"""


def cell(recipe: Recipe, nodes: int | None = None, *, backend: str | None = None, inline: bool = False) -> str:
    """Return a ``%%hyperpod`` cell for this many nodes, or for the number that the recipe's first scale names.

    Raises SpecError where the recipe has no settings for that number.
    """
    return f"%%hyperpod {options(recipe, nodes, backend)}\n{source(recipe, nodes, inline=inline)}"


def script(
    recipe: Recipe, filename: str, nodes: int | None = None, *, backend: str | None = None, inline: bool = False
) -> str:
    """Return the same as a Python file called `filename`, which says in its first line how to submit it."""
    submit = f"# jupyter hyperpod submit {filename} {options(recipe, nodes, backend)}"
    return f"{submit}\n{source(recipe, nodes, inline=inline)}"


def options(recipe: Recipe, nodes: int | None = None, backend: str | None = None) -> str:
    """Return the options of a submission, as they stand behind ``%%hyperpod`` and ``jupyter hyperpod submit``."""
    scale, count = recipe.scale(nodes)
    chosen = backend or (DEFAULT_BACKEND if recipe.local else CLUSTER_BACKEND)
    if chosen not in BACKENDS:
        raise SpecError(f"backend {chosen!r} is unknown; expected one of {', '.join(BACKENDS)}")
    words = f"--nodes {count} --elastic {scale.elastic} --name {recipe.job_name}"
    words += f" --replica {scale.replica}" if scale.replica > 1 and scale.nodes_a_replica == 1 else ""
    return words if chosen == DEFAULT_BACKEND else f"{words} --backend {chosen}"


def source(recipe: Recipe, nodes: int | None = None, *, inline: bool = False) -> str:
    """Return the Python that every rank runs."""
    scale, _ = recipe.scale(nodes)
    optimizer, sharded = recipe.optimizer, scale.replica > 1
    return _BODY.substitute(
        header=_header(recipe, scale),
        imports=_imports(recipe.local, sharded, inline),
        config=_literal(recipe.config),
        steps=scale.steps,
        warmup=optimizer.warmup_steps,
        final=optimizer.min_learning_rate_ratio,
        sequence=scale.sequence_length,
        model=_SHARDED if sharded else _WHOLE,
        batch="(part.to(device) for part in batch)" if sharded else "batch",
        end="dist.destroy_process_group()\n" if sharded else "",
        rate=scale.learning_rate,
        betas=optimizer.betas,
        decay=optimizer.weight_decay,
        data=_data(recipe),
        global_batch=scale.global_batch,
        micro_batch=scale.micro_batch,
        norm=optimizer.max_grad_norm,
        name=recipe.name,
    )


def _header(recipe: Recipe, scale: Scale) -> str:
    tokens = amount(scale.global_batch * scale.sequence_length)
    step = f"{scale.global_batch} sequences ({tokens} tokens) in {scale.micro_batches} micro-batches"
    lines = [
        f"{recipe.name}: {recipe.summary}. {recipe.config.parameters:,} parameters.",
        f"On any number of nodes ({scale.elastic}, {scale.instance}) a step is the same {step}, so the learning rate "
        "is the same too.",
        *(f"Figures: {one}" for one in recipe.sources),
    ]
    if not recipe.local:
        lines.insert(2, "Not verified on GPUs: rendered from published figures, never trained at this size by us.")
    if scale.nodes_a_replica > 1:
        lines.insert(
            3,
            f"One replica is {scale.replica} ranks on {scale.nodes_a_replica} nodes; hp.Session holds a replica on one "
            "node so far, so this cell is a starting point and does not run yet.",
        )
    return "\n".join(
        f"# {line}" for text in lines for line in wrap(text, 116, break_long_words=False, break_on_hyphens=False)
    )


def _imports(local: bool, sharded: bool, inline: bool) -> str:
    standard = ["math", *(["os"] if sharded else []), *(["typing"] if local else [])]
    packages = ["import torch", "from torch.nn import functional as F"]
    if sharded:
        packages.insert(1, "from torch import distributed as dist")
        packages.insert(2, "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard")
    ours = ["import jupyter_hyperpod as hp"]
    if not inline:
        ours += ["from jupyter_hyperpod.recipes.config import DecoderConfig, RopeScaling"]
        ours += ["from jupyter_hyperpod.recipes.decoder import Decoder"]
    text = "\n".join([*(f"import {name}" for name in standard), "", *packages, "", *ours]) + "\n"
    if inline:
        text = f"from __future__ import annotations\n\n{text}\n{_code('config.py')}\n\n{_code('decoder.py')}\n\n"
    return text


def _code(name: str) -> str:
    """The source of a module of this package, without its docstring and its own imports."""
    text = files(__package__).joinpath(name).read_text()
    text = re.sub(r'\A"""(.|\n)*?"""\n', "", text)
    return re.sub(r"^from (__future__|\.\w+) import .*\n", "", text, flags=re.MULTILINE).strip()


def _literal(config: DecoderConfig) -> str:
    """The call that makes this configuration, one argument per line, defaults included."""
    lines = [f"    {name}={value}," for name, value in asdict(config).items() if name != "rope_scaling"]
    if config.rope_scaling is not None:
        settings = config.rope_scaling.settings()
        lines += ["    rope_scaling=RopeScaling(", f'        rope_type="{settings.pop("rope_type")}",']
        lines += [f"        {name}={value}," for name, value in settings.items()]
        lines += ["    ),"]
    return "\n".join(["DecoderConfig(", *lines, ")"])


def _data(recipe: Recipe) -> str:
    if recipe.local:
        return "data = hp.TokenDataset(typing.__file__, SEQUENCE)  # any file: one byte is one token"
    return (
        'data = hp.TokenDataset("shared://tokens.bin", SEQUENCE, token_bytes=4)  '
        "# the tokenizer's ids, one int32 after the other"
    )
