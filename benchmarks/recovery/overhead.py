"""What resilience costs while nothing fails: our step against that of plain DDP, same work, same machine.

Both train at the same time on the same machine, but only one may move: blocks of steps alternate, and each block is
compared with the one beside it.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arms import Arm, Ours, rotation, scratch
from benchmarks.rivals.systems import DEFAULTS, PlainDdp, Rival, Torchft
from jupyter_hyperpod.bench.laboratory import LANGUAGE_MODEL, laboratory, language_model_env, progress, submit
from jupyter_hyperpod.bench.report import bar, report, row
from jupyter_hyperpod.bench.stalls import step_times
from jupyter_hyperpod.control import jobs

EVEN, UNEVEN = (2, 4), (3,)
WARM_UP, BLOCK = 6, 16
EVEN_LIMIT, UNEVEN_LIMIT, GROUP_LIMIT = 1.05, 1.15, 1.10
OURS, AUDITED, PLAIN = "jupyter_hyperpod without audit", "jupyter_hyperpod", "DDP"
AUDITS = {OURS: "", AUDITED: "state"}


@dataclass(frozen=True, slots=True)
class Block:
    """Median time and CPU time of a step, in seconds."""

    step_s: float
    cpu_s: float


def run(
    runs: int | None = None,
    pairs: int = 12,
    members: int | None = None,
    peers: str = "none",
    collectives: str = "auto",
) -> dict[str, Any]:
    """Measure ``pairs`` (or ``runs``) pairs of blocks at 2, 3 and 4 members, or only at ``members``.

    ``peers`` may be torchft or all: its nightly then takes turns too. torchrun is DDP while nothing fails.
    ``collectives``: how our members exchange gradients, as of ``submit --collectives``; gloo has a bar of its own.
    """
    pairs = runs or pairs
    sizes = (members,) if members else tuple(sorted(EVEN + UNEVEN))
    rows, ratios = [], {}
    for size in sizes:
        blocks = _measure(size, pairs, peers in ("torchft", "all"), collectives)
        found, ratios[size] = _compare(blocks, size)
        rows += found
    bars = []
    if even := [ratios[size] for size in sizes if size not in UNEVEN]:
        bars.append(bar("step_ratio_even", max(even), GROUP_LIMIT if collectives == "gloo" else EVEN_LIMIT))
    if uneven := [ratios[size] for size in sizes if size in UNEVEN]:
        bars.append(bar("step_ratio_uneven", max(uneven), UNEVEN_LIMIT))
    return report("overhead", rows, bars)


def _measure(members: int, pairs: int, torchft: bool, collectives: str) -> dict[str, list[Block]]:
    """Blocks of every arm, in rounds."""
    with ExitStack() as stack:
        directory = stack.enter_context(scratch())
        arms = _arms(stack, directory, members, torchft, collectives)
        for arm in arms.values():
            _block(arm, WARM_UP, members)
        blocks: dict[str, list[Block]] = {name: [] for name in arms}
        for number, order in enumerate(rotation(list(arms), pairs)):
            for name in order:
                blocks[name].append(_block(arms[name], BLOCK, members))
            times = ", ".join(f"{name} {blocks[name][-1].step_s * 1000:.1f} ms" for name in arms)
            progress(f"{members} members, round {number + 1} of {pairs}: {times}")
        return blocks


def _arms(stack: ExitStack, directory: Path, members: int, torchft: bool, collectives: str) -> dict[str, Arm]:
    ours = [Ours(directory, name) for name in AUDITS]
    stores = []
    for mine in ours:
        with mine.carrying():
            stores.append(stack.enter_context(laboratory(members, spares=0)))
    environment = language_model_env(stores[0], steps=1_000_000)
    rivals: list[Rival] = [PlainDdp(directory, environment, members)]
    if torchft:
        rivals.append(Torchft(directory, environment, members, "torchft-nightly", DEFAULTS))
    arms: list[Arm] = [*ours, *rivals]
    for arm in arms:
        arm.permit(0)
    for rival in rivals:
        stack.callback(rival.stop)
        rival.begin()
    for mine, store in zip(ours, stores, strict=True):
        own = environment | {"LM_TURN": str(mine.turn), "LM_AUDIT": AUDITS[mine.name]}
        fields = {"name": "overhead", "nodes": members, "spares": 0, "env": own, "collectives": collectives}
        mine.watch = submit(store, LANGUAGE_MODEL.read_text(), fields)
        stack.callback(jobs.stop, store, mine.watch.job_id)
    return {arm.name: arm for arm in arms}


def _block(arm: Arm, steps: int, members: int) -> Block:
    """Let one arm take ``steps`` steps; the first is not counted, it began with waiting for the turn."""
    done = max((commit.step for commit in arm.commits()), default=0)
    cpu_s = arm.cpu_s()
    arm.permit(done + steps)
    arm.until_step(done + steps, 1 if isinstance(arm, Ours) else members)
    cpu_s = arm.cpu_s() - cpu_s
    times = step_times(arm.commits())
    gaps = [times[step + 1] - times[step] for step in range(done + 1, done + steps)]
    return Block(statistics.median(gaps), cpu_s / steps)


def _compare(blocks: dict[str, list[Block]], members: int) -> tuple[list[dict[str, Any]], float]:
    """Rows of all arms, and the ratio of our step to DDP's."""
    case = f"{members} members, {'uneven' if members in UNEVEN else 'even'} shares"
    rows = [row(name, case, "step", "s", [block.step_s for block in found]) for name, found in blocks.items()]
    ratio = 0.0
    for name, found in blocks.items():
        if name == PLAIN:
            continue
        pairs = list(zip(found, blocks[PLAIN], strict=True))
        steps = row(name, case, "step against DDP", "ratio", [one.step_s / other.step_s for one, other in pairs])
        rows.append(steps)
        rows.append(row(name, case, "CPU against DDP", "ratio", [one.cpu_s / other.cpu_s for one, other in pairs]))
        if name == OURS:
            ratio = steps["median"]
    return rows, ratio
