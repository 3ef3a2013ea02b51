"""Silent data corruption: bits flipped in the memory of one member are found, the member named, the run unharmed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import SpecError, TrainingError
from jupyter_hyperpod.policy.batching import assign
from jupyter_hyperpod.runtime.program.cell_checks import number_of
from jupyter_hyperpod.runtime.session.checksum import ROW, ChecksummedTensors, DeviceWords, checksum
from jupyter_hyperpod.runtime.session.integrity import Audit, control_of, drawn
from tests.runtime.conftest import MICRO_BATCHES, TRAIN, Run, Submit

STEP = 6
# Memory is changed behind torch's back, as a fault of hardware would: once, in the middle of a step.
FLIP = """
def now(rank):
    if session.step != 6 or session.rank != rank or session.world_size != WORLD: return False
    try: os.close(os.open(f"{FLAG}-{rank}", os.O_CREAT | os.O_EXCL))
    except FileExistsError: return False
    return True

def flip(tensor):
    tensor.detach().reshape(-1).view(torch.uint8).numpy()[5] ^= 0x40

def strike():
    pass

"""
STATE = {
    "parameter": ("model[0].weight", "0.weight"),
    "optimizer": ("optimizer.state[model[4].weight]['exp_avg_sq']", "4.weight.exp_avg_sq"),
}


def flipping(flag: Path, world: int, strike: str, prepare: str = "", audit: str = "'state'") -> str:
    """`TRAIN` that runs the line ``strike`` before every micro-batch and ``prepare`` before the first step."""
    flip = FLIP.replace("WORLD", str(world)).replace("{FLAG}", str(flag)).replace("    pass", f"    {strike}")
    source = TRAIN.replace("def loss_fn(batch):\n", f"{flip}def loss_fn(batch):\n    strike()\n")
    source = source.replace("seed=3,", f"seed=3, audit={audit},")
    return source.replace("    for step in", f"    {prepare}\n    for step in") if prepare else source


def blamed(run: Run) -> list[tuple[str, int | None]]:
    return [(i["cause"], i["rank"]) for i in run.view["incidents"]]


def diagnosis(run: Run) -> str:
    return next(e.data["text"] for e in run.of_kind("incident.stage") if e.data["stage"] == "diagnosed")


@pytest.mark.parametrize(("world", "rank"), [(1, 0), (2, 0), (3, 1)])
@pytest.mark.parametrize("what", ["parameter", "optimizer"])
def test_a_flipped_bit_of_the_state(
    job: Submit, reference: Run, tmp_path: Path, what: str, world: int, rank: int
) -> None:
    tensor, name = STATE[what]
    run = job(flipping(tmp_path / "done", world, f"if now({rank}): flip({tensor})"), nodes=world)
    run.finish()
    assert blamed(run) == [("silent data corruption", rank)], run.story()
    assert f"the state of rank {rank} " in diagnosis(run) and f"during step {STEP + 1}," in diagnosis(run)
    assert f"({name})" in diagnosis(run)
    assert {"fenced", "resumed"} <= {e.data["stage"] for e in run.of_kind("incident.stage")}
    run.same_as(reference)


def test_a_wrong_update_is_outvoted(job: Submit, reference: Run, tmp_path: Path) -> None:
    """The optimizer itself writes a wrong value: only the others can tell."""
    prepare = "optimizer.register_step_post_hook(lambda *_: now(2) and flip(model[1].bias))"
    run = job(flipping(tmp_path / "done", 3, "pass", prepare), nodes=3)
    run.finish()
    assert blamed(run) == [("silent data corruption", 2)], run.story()
    assert "the state after step 7 of rank 2" in diagnosis(run) and "(1.bias)" in diagnosis(run)
    run.same_as(reference)


def test_two_that_differ_stop(job: Submit, tmp_path: Path) -> None:
    """Nobody can be proven right, and programs make members differ far more often than hardware does."""
    prepare = "optimizer.register_step_post_hook(lambda *_: now(1) and flip(model[1].bias))"
    run = job(flipping(tmp_path / "done", 2, "pass", prepare), nodes=2)
    reason = run.finish("failed")["reason"]
    assert [cause for cause, _ in blamed(run)] == ["program not reproducible"]
    assert diagnosis(run) == reason
    assert "2 members differ in the state after step 7 (1.bias) and none can be proven right" in reason
    assert "no node is fenced and nothing starts again" in reason


@pytest.mark.parametrize(("world", "rank"), [(2, 1), (3, 0)])
def test_a_reduced_gradient_that_one_member_has_otherwise(
    job: Submit, reference: Run, tmp_path: Path, world: int, rank: int
) -> None:
    prepare = (
        "run = session._execution; reduce = run._reduce; "
        f"run._reduce = lambda: (r := reduce(), now({rank}) and flip(r.flats[0]))[0]"
    )
    run = job(flipping(tmp_path / "done", world, "pass", prepare), nodes=world)
    run.finish()
    assert blamed(run) == [("silent data corruption", rank)], run.story()
    assert "reduced gradient of step 7" in diagnosis(run)
    run.same_as(reference)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_wrong_gradient_is_found_by_executing_it_again(
    job: Submit, reference: Run, tmp_path: Path, world: int
) -> None:
    leaf = drawn(3, STEP, 1.0, MICRO_BATCHES)
    rank = next(rank for rank, share in enumerate(assign(MICRO_BATCHES, world)) if leaf in share)
    held = f"next(b for (low, high), b in session._gradients.finished.nodes.items() if low <= {leaf} < high).flats[0]"
    prepare = (
        "run = session._execution; compute = run._compute; "
        f"run._compute = lambda f: (compute(f), now({rank}) and flip({held}))"
    )
    run = job(flipping(tmp_path / "done", world, "pass", prepare, audit="1.0"), nodes=world)
    run.finish()
    assert blamed(run) == [("silent data corruption", rank)], run.story()
    assert f"rank {rank} " in diagnosis(run) and "computed a wrong gradient in step 7" in diagnosis(run)
    run.same_as(reference)


def test_corruption_and_a_kill_in_the_same_step(job: Submit, reference: Run, tmp_path: Path) -> None:
    tensor, _ = STATE["parameter"]
    strike = f"now(0) and flip({tensor}); now(2) and os.kill(os.getpid(), 9)"
    run = job(flipping(tmp_path / "done", 3, strike), nodes=3)
    run.finish()
    assert ("silent data corruption", 0) in blamed(run), run.story()
    run.same_as(reference)


def test_a_loss_function_that_is_not_repeatable_is_told_so(job: Submit) -> None:
    source = TRAIN.replace("seed=3,", "seed=3, audit=1,").replace("def loss_fn(batch):", "def other(batch):")
    noise = "noisy = lambda b: other(b) * (1 + int.from_bytes(os.urandom(2), 'big') / 2**16)\n\n"
    run = job(source.replace("with hp", f"{noise}with hp").replace("run(loss_fn)", "run(noisy)"), nodes=2)
    view = run.finish("failed")
    assert "the loss function gave different gradients for the same micro-batch" in view["reason"]


# ---- without a cluster -----------------------------------------------------------------------------------------


def session(audit: Audit) -> tuple[hp.Session, nn.Linear]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    data = [torch.ones(4)] * 8
    return hp.Session(
        model, torch.optim.AdamW(model.parameters()), data, global_batch=4, micro_batch=1, audit=audit
    ), model


def flip(tensor: torch.Tensor, place: int = 3) -> None:
    tensor.detach().reshape(-1).view(torch.uint8).numpy()[place] ^= 1


@pytest.mark.parametrize("audit", ["state", 1.0, None])
def test_alone_there_is_nobody_to_recover_from(audit: Audit) -> None:
    training, model = session(audit)
    flipped: list[bool] = []

    def corrupted(batch: torch.Tensor) -> torch.Tensor:
        if not flipped:
            flip(model.weight)
            flipped.append(True)
        return model(batch).sum()

    with training:
        steps = training.steps(3)
        next(steps).run(lambda batch: model(batch).sum())
        if audit is None:
            next(steps).run(corrupted)
            return
        with pytest.raises(TrainingError, match=r"silent data corruption: the state of rank 0 changed .* \(weight\)"):
            next(steps).run(corrupted)
        training._resync.plan = None  # it is not to be finished


def test_what_the_program_writes_is_no_corruption() -> None:
    training, model = session(1.0)

    def clamped(batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            model.weight.clamp_(-1, 1)
        return model(batch).sum()

    with training:
        for step in training.steps(4):
            model.weight.data.mul_(0.5)  # between the steps a program may do what it likes
            step.run(clamped)


@pytest.mark.parametrize("audit", [0, 1.5, -1, "on", True])
def test_an_audit_that_is_none(audit: Audit) -> None:
    with pytest.raises(SpecError, match="expected None, 'state' or the probability"):
        session(audit)


@given(seed=st.integers(0, 2**32), rate=st.floats(0.0, 1.0))
def test_drawn_as_often_as_asked(seed: int, rate: float) -> None:
    found = [drawn(seed, step, rate, 7) for step in range(1000)]
    assert abs(sum(leaf is not None for leaf in found) - 1000 * rate) < 120
    assert all(leaf is None or 0 <= leaf < 7 for leaf in found)


@given(octets=st.integers(1, 60_000), place=st.integers(0), change=st.integers(1, 255), shift=st.integers(0, 7))
@settings(max_examples=50)
def test_every_changed_octet_is_seen(octets: int, place: int, change: int, shift: int) -> None:
    content = torch.arange(octets + shift).to(torch.uint8)[shift:]
    watched = ChecksummedTensors([content, content[:1]])
    before = watched.checksums()
    again, copy = watched.checksums(), ChecksummedTensors([content.clone(), content[:1].clone()]).checksums()
    assert (before == again).all() and (before == copy).all()
    content[place % octets] ^= change
    assert watched.checksums()[0] != before[0]


@given(first=st.integers(0), second=st.integers(0))
@settings(max_examples=50)
def test_words_that_changed_places_are_seen_unless_they_stand_in_one_row(first: int, second: int) -> None:
    content = torch.arange(5 * ROW + 3)
    watched, before = ChecksummedTensors([content]), checksum([content])
    numbers = watched.checksums().tolist()
    one, other = first % len(content), second % len(content)
    content[one], content[other] = content[other].item(), content[one].item()
    alike = one // ROW == other // ROW < 5
    assert (watched.checksums().tolist() == numbers) == (alike or one == other)
    assert (checksum([content]) == before) == (one == other)


@given(places=st.sets(st.integers(0, 2 * ROW - 1), min_size=1, max_size=9), bit=st.integers(0, 58))
def test_bits_that_are_only_set_are_seen(places: set[int], bit: int) -> None:
    content = torch.zeros(2 * ROW, dtype=torch.int64)
    before = checksum([content])
    content[sorted(places)] = 1 << bit
    assert checksum([content]) != before


def test_a_tensor_that_moved_is_looked_at_where_it_is_now() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    watched = ChecksummedTensors([parameter])
    before = watched.checksums()
    parameter.data = torch.zeros(3000)
    assert watched.checksums() != before
    parameter.data = torch.ones(3)
    assert watched.checksums() == before


@given(sizes=st.lists(st.integers(0, 40_000), min_size=1, max_size=5), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_the_words_of_a_gpu_are_those_of_the_cpu(sizes: list[int], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    views = [torch.randint(0, 256, (size,), dtype=torch.uint8, generator=draw) for size in sizes]
    for ordered in (False, True):
        there = DeviceWords(views, ordered)  # its kernels run on any device
        for _ in range(2):
            assert there.checksums().tolist() == ChecksummedTensors(views, ordered).checksums().tolist()
            views[0].add_(1)


def test_any_layout_of_memory_has_a_checksum() -> None:
    tensor = torch.randn(3, 4, 5)
    strided = ChecksummedTensors([tensor.transpose(0, 2)])
    before = strided.checksums()
    flip(tensor)
    assert strided.checksums() != before
    assert checksum([]) == checksum([torch.empty(0)]) == 0
    assert checksum([tensor, tensor + 1]) != checksum([tensor + 1, tensor])


@pytest.mark.parametrize(
    ("holdings", "accused", "node", "control"),
    [
        ([[(0, 4)], [(4, 8)]], 0, (0, 4), (1, (4, 8))),
        ([[(0, 2), (2, 4)], [(4, 8)]], 0, (2, 4), (1, (4, 8))),
        ([[(0, 2), (2, 4)], [(4, 8)]], 1, (4, 8), (0, (0, 2))),
        ([[(0, 4)], [], [(4, 8)]], 2, (4, 8), (0, (0, 4))),
        ([[(0, 4), (4, 6)]], 0, (4, 6), (0, (0, 4))),
        ([[(0, 8)]], 0, (0, 8), None),
    ],
)
def test_whether_the_program_can_be_repeated_is_seen_on_another_member(
    holdings: list[list[tuple[int, int]]], accused: int, node: tuple[int, int], control: object
) -> None:
    assert control_of(holdings, accused, node) == control


FIRST_CALL = """
    inputs, targets = batch
    first = session.step >= 9 and session.step not in seen
    seen.add(session.step)
"""


def test_a_loss_function_that_knows_its_first_call_late_names_the_program_and_no_node(job: Submit) -> None:
    """From step 10 on a member's first micro-batch differs from all later executions, which agree with each other."""
    source = TRAIN.replace("def loss_fn", "seen = set()\n\ndef loss_fn", 1)
    source = source.replace("\n    inputs, targets = batch\n", FIRST_CALL)
    source = source.replace("targets)\n", "targets) * (1.5 if first else 1)\n")
    source = source.replace("max_grad_norm=1.0", "audit=1.0")
    run = job(source)
    run.until_step(4)
    run.kill(1)
    reason = str(run.finish("failed")["reason"])
    assert "gave other gradients, where hardware fails on one member" in reason
    corrupt = [e for e in run.of_kind("member.lost") if e.data["cause"] == "silent data corruption"]
    assert not corrupt, run.story()


def test_equal_settings_have_equal_numbers() -> None:
    one = [{"lr": 1.0, "weight_decay": 0.0, "betas": (0.9, 1.0), "nesterov": False, "fused": None}]
    other = [{"fused": None, "nesterov": 0, "betas": [0.9, 1], "weight_decay": -0.0, "lr": 1}]
    assert number_of(one) == number_of(other)
    assert len({number_of([{"lr": value}]) for value in (1.0, 1.0000000000000002, None, "1.0", 1e300)}) == 5
