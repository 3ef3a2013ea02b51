"""What a micro-batch leaves besides its gradient: weighted losses, metrics, lanes and vectors, in one process."""

from __future__ import annotations

import math
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import TrainingError
from jupyter_hyperpod.runtime.data.order import sample_indices
from jupyter_hyperpod.runtime.micro_batch.lanes import LaneStore

IGNORED = -100
GLOBAL = 8


def tokens() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Sequences with targets of which many are masked: all of them in some samples."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for sample in range(24):
        targets = torch.randint(0, 5, (6,), generator=generator)
        targets[sample % 7 :] = IGNORED
        found.append((torch.randn(6, 4, generator=generator), targets))
    return found


def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 5)


def opened(made: nn.Module, micro_batch: int = 2, data: Any = None, **settings: Any) -> hp.Session:
    optimizer = torch.optim.SGD(made.parameters(), lr=0.5)
    return hp.Session(made, optimizer, data or tokens(), global_batch=GLOBAL, micro_batch=micro_batch, **settings)


def summed(made: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    loss = nn.functional.cross_entropy(made(batch[0]).flatten(0, 1), batch[1].flatten(), reduction="sum")
    return loss, (batch[1] != IGNORED).sum()


def trained(micro_batch: int, steps: int = 3) -> tuple[nn.Linear, list[float], list[dict[str, float]]]:
    made = model()
    session = opened(made, micro_batch, max_grad_norm=0.7)

    def loss_fn(batch: Any) -> Any:
        right = (made(batch[0]).argmax(-1) == batch[1]).sum()
        return *summed(made, batch), {"accuracy": right, "tokens": (batch[1] != IGNORED).sum().item()}

    metrics, losses = [], []
    with session:
        for step in session.steps(steps):
            losses.append(step.run(loss_fn))
            metrics.append(step.metrics)
            assert session.loss == losses[-1]
    return made, losses, metrics


def test_a_weighted_loss_is_the_mean_of_the_global_batch_whatever_the_micro_batch() -> None:
    plain, samples = model(), tokens()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    expected, shares = [], []
    for step in range(3):
        chosen = [i for leaf in range(4) for i in sample_indices(0, step, leaf, 2, GLOBAL, len(samples))]
        batch = torch.utils.data.default_collate([samples[i] for i in chosen])
        loss, count = summed(plain, batch)
        shares.append(float((plain(batch[0]).argmax(-1) == batch[1]).sum() / count))
        optimizer.zero_grad()
        (loss / count).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.7)
        optimizer.step()
        expected.append((loss / count).item())
    for micro_batch in (1, 2, 4, 8):
        made, losses, metrics = trained(micro_batch)
        assert losses == pytest.approx(expected, rel=1e-5)
        assert torch.allclose(made.weight, plain.weight, atol=1e-6)
        assert [found["accuracy"] for found in metrics] == pytest.approx(shares)
        assert [found["tokens"] for found in metrics] == [1.0] * 3


def test_equal_weights_give_the_bits_of_a_mean() -> None:
    weights, numbers = [], []
    for weight in (None, 1, torch.tensor(1.0)):
        made = model()
        session = opened(made, data=[(x, x.sum().long() % 5) for x in torch.randn(9, 4)])
        for step in session.steps(2):
            loss = step.run(
                lambda batch, made=made, weight=weight: (
                    nn.functional.cross_entropy(made(batch[0]), batch[1]),
                    *([] if weight is None else [weight]),
                    {"half": 0.5},
                )
            )
        assert step.metrics == {"half": 0.5}
        numbers.append(loss)
        weights.append(made.weight)
        torch.manual_seed(0)
    assert torch.equal(weights[1], weights[2]) and numbers[1] == numbers[2]


def test_metrics_beside_a_mean_are_means_over_the_micro_batches() -> None:
    made = model()
    session = opened(made)
    seen = iter([1.0, 2.0, 4.0, 8.0, *[1.0] * 9])
    for step in session.steps(1):
        with pytest.raises(TrainingError, match="metrics of step 1 are read where step 0 is the last one"):
            _ = step.metrics
        step.run(lambda batch: (summed(made, batch)[0], {"b": torch.tensor(3), "a": next(seen)}))
    assert list(step.metrics.items()) == [("a", 3.75), ("b", 3.0)]


def test_a_micro_batch_without_weight_does_not_count() -> None:
    """Its loss may be anything: the mean over no target is 0/0."""
    results = []
    for nothing in (0.0, math.nan):
        made = model()

        def loss_fn(batch: Any, made: nn.Module = made, nothing: float = nothing) -> Any:
            loss, count = summed(made, batch)
            return (loss, count, {"x": 1.0}) if count > 5 else (loss * nothing, 0, {"x": nothing})

        session = opened(made, guard=hp.Guard())
        for step in session.steps(2):
            step.run(loss_fn)
        results.append((made.weight, step.metrics))
    assert torch.equal(results[0][0], results[1][0]) and results[0][1] == results[1][1]
    assert math.isfinite(results[0][1]["x"]) and not torch.equal(results[0][0], model().weight)


def test_metrics_that_are_taken_for_weights_are_noticed() -> None:
    made = model()
    session = opened(made)
    with pytest.warns(
        RuntimeWarning, match="largest of a step is 0.9. If it is a metric, return it by name: loss"
    ) as told:
        for step in session.steps(2):
            step.run(lambda batch: (summed(made, batch)[0], 0.9))
    assert len(told) == 1


def test_a_step_in_which_nothing_counts_is_refused() -> None:
    made = model()
    with pytest.raises(TrainingError, match="all micro-batches of the step have weight 0"):
        next(opened(made).steps(1)).run(lambda batch: (summed(made, batch)[0], 0))
    assert torch.equal(made.weight, model().weight)


def test_the_guard_reads_the_mean_of_each_micro_batch() -> None:
    """A sum over one token is judged as the loss of that token; a micro-batch without weight has no part in it."""
    made = model()
    sums, weights = [10.0, 8.0, 7.0, 999.0], [10, 1, 7, 0]
    place = iter([*range(4), 0, 0])

    def loss_fn(batch: Any) -> Any:
        turn = next(place)
        loss = summed(made, batch)[0]
        return loss * 0 + sums[turn], weights[turn]

    session = opened(made)
    for step in session.steps(1):
        step.run(loss_fn)
        reading = session._gradients.reading(session._gradients.kept[0], 1)
    assert reading.losses == (1.0, 8.0, 1.0, session.loss) and session.loss == 25 / 18


TURN = {"is": 0}


def by_turn(batch: Any, made: nn.Module) -> Any:
    TURN["is"] += 1
    return summed(made, batch) if TURN["is"] % 4 == 3 else summed(made, batch)[0]


@pytest.mark.parametrize(
    ("loss_fn", "words"),
    [
        (by_turn, "returned other values for micro-batch 2 than for micro-batch 0"),
        (lambda b, m: (summed(m, b)[0], -1.0), "weight of the loss is -1; expected a number"),
        (lambda b, m: (summed(m, b)[0], math.nan), "weight of the loss is nan"),
        (lambda b, m: (summed(m, b)[0], torch.ones(3)), r"weight of the loss is a tensor of shape \(3,\)"),
        (lambda b, m: (summed(m, b)[0], m.weight.sum().abs()), "depends on the model, and it gets no gradient"),
        (lambda b, m: (summed(m, b)[0], "many"), "weight of the loss is a str"),
        (lambda b, m: (*summed(m, b), 1, 2), "returned 4 values; return loss, or loss, metrics, or"),
        (lambda b, m: (1.0, 2), "returned a float; expected a scalar tensor that depends on the model"),
        (lambda b, m: (summed(m, b)[0], {"a": torch.ones(2)}), "the metric 'a' is a tensor of shape"),
        (lambda b, m: (summed(m, b)[0], {"a": None}), "the metric 'a' is a NoneType; expected numbers"),
        (lambda b, m: (summed(m, b)[0], dict.fromkeys(range(2), 1.0)), "the metric 0 is a float"),
        (lambda b, m: (summed(m, b)[0], {f"m{i}": 1.0 for i in range(65)}), "65 metrics; expected at most 64"),
    ],
)
def test_what_cannot_be_a_loss_is_refused_before_the_step(loss_fn: Callable[..., Any], words: str) -> None:
    made = model()
    TURN["is"] = 0
    with pytest.raises(TrainingError, match=words):
        next(opened(made).steps(1)).run(lambda batch: loss_fn(batch, made))
    assert torch.equal(made.weight, model().weight)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        out, state = self.lstm(x, state)
        return self.head(out), state


def text() -> torch.Tensor:
    """Four streams of numbers, one per lane: (lanes, streams of a lane, length, 3)."""
    return torch.randn(4, 2, 40, 3, generator=torch.Generator().manual_seed(2))


def loss_of(made: nn.Module, x: torch.Tensor, state: Any) -> Any:
    out, state = made(x, state)
    return nn.functional.mse_loss(out.squeeze(-1), x.sum(-1).sin()), state


def test_hidden_states_are_carried_per_lane_as_in_a_plain_loop() -> None:
    torch.manual_seed(0)
    made, plain = Recurrent(), Recurrent()
    plain.load_state_dict(made.state_dict())
    streams = text()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    hidden = [(torch.zeros(1, 2, 4), torch.zeros(1, 2, 4))] * 4
    losses = []
    for turn in range(5):
        optimizer.zero_grad()
        total = 0.0
        for lane in range(4):
            loss, state = loss_of(plain, streams[lane, :, turn * 8 : turn * 8 + 8], hidden[lane])
            hidden[lane] = tuple(part.detach() for part in state)
            (loss / 4).backward()
            total += loss.item() / 4
        optimizer.step()
        losses.append(total)
    session = opened(made, audit=1.0)
    lanes = session.lanes(h=torch.zeros(1, 2, 4), c=torch.zeros(1, 2, 4))

    def loss_fn(batch: Any) -> Any:
        begin = session.step * 8
        loss, (h, c) = loss_of(made, streams[lanes.index, :, begin : begin + 8], (lanes.h, lanes.c))
        lanes.h, lanes.c = h.detach(), c
        return loss

    before = session.digest()
    found = [step.run(loss_fn) for step in session.steps(5)]
    assert found == pytest.approx(losses, rel=1e-5)
    assert len(lanes) == 4 and session.digest() != before
    for lane, (h, c) in zip(lanes, hidden, strict=True):
        assert torch.allclose(lane.h, h, atol=1e-5) and torch.allclose(lane.c, c, atol=1e-5)
    held = session.digest()
    lanes.reset()
    assert not lanes[3].h.any() and session.digest() != held


def test_lanes_keep_every_bit_of_every_type() -> None:
    store = LaneStore(3)
    first = {
        "nan": torch.tensor([math.nan, -0.0, 1e-42, math.inf]),
        "large": torch.tensor(-(2**63) + 1),
        "half": torch.full((3, 5), -0.0, dtype=torch.bfloat16),
        "flags": torch.tensor([True, False, True]),
        "complex": torch.full((3,), complex(1.5, -0.0), dtype=torch.complex128),
    }
    store.declare({name: torch.zeros_like(value) for name, value in first.items()})
    rows = []
    for leaf in range(3):
        with store.open(leaf):
            for name, value in first.items():
                store.set(name, value)
        rows.append(store.left())
    store.apply(torch.stack(rows))
    for name, value in first.items():
        for kept in store.kept[name]:
            assert kept.dtype == value.dtype
            assert torch.equal(kept.reshape(-1).view(torch.uint8), value.reshape(-1).view(torch.uint8)), name


def test_a_skipped_step_leaves_the_lanes_alone() -> None:
    made = model()
    session = opened(made, guard=hp.Guard(non_finite="skip"))
    lanes = session.lanes(seen=torch.zeros(2, dtype=torch.int64))

    def loss_fn(batch: Any) -> Any:
        lanes.seen += lanes.index + 1
        return summed(made, batch)[0] * (math.nan if session.step == 1 else 1)

    found = []
    for step in session.steps(3):
        step.run(loss_fn)
        found.append([int(lane.seen[1]) for lane in lanes])
    assert found == [[1, 2, 3, 4], [1, 2, 3, 4], [2, 4, 6, 8]]


def steps_with_lanes(place: Path | None, steps: int, width: int = 4) -> tuple[str, list[torch.Tensor]]:
    """Train up to ``steps``; the digest, and the lanes."""
    torch.manual_seed(0)
    made = Recurrent()
    session = opened(made, checkpoint=hp.Checkpoint(str(place), every_steps=2) if place else None)
    lanes = session.lanes(h=torch.randn(1, 2, width), seen=torch.zeros((), dtype=torch.int64))

    def loss_fn(batch: Any) -> Any:
        loss, (h, _) = loss_of(made, text()[lanes.index, :, :8], (lanes.h, torch.zeros(1, 2, 4)))
        lanes.h, lanes.seen = h.detach(), lanes.seen + 1
        return loss, 3.0, {"seen": lanes.seen * 3}

    with session:
        for step in session.steps(steps):
            step.run(loss_fn)
            if step.number == 1:
                lanes.reset()
            assert step.metrics == {"seen": max(1, step.number - 1)}
        return session.digest(), [lane.h for lane in lanes]


def test_checkpoints_hold_the_lanes(tmp_path: Path) -> None:
    expected, held = steps_with_lanes(None, 6)
    steps_with_lanes(tmp_path, 4)
    digest, lanes = steps_with_lanes(tmp_path, 6)
    assert digest == expected and all(map(torch.equal, lanes, held))
    with pytest.raises(TrainingError, match=r"the state holds lanes .*'h': \(4, 1, 2, 4\).* give it the same names"):
        steps_with_lanes(tmp_path, 6, width=5)


def test_keys_of_all_lanes_fill_a_queue_in_order() -> None:
    made = model()
    session = opened(made)
    lanes = session.lanes(keys=torch.zeros(2, 5))
    queue = torch.randn(16, 5, generator=torch.Generator().manual_seed(3))
    for step in session.steps(3):

        def loss_fn(batch: Any, queue: torch.Tensor = queue) -> Any:
            queries = made(batch[0][:, 0])
            lanes.keys = nn.functional.normalize(queries.detach(), dim=1)
            return (queries @ queue.T).logsumexp(1).mean()

        step.run(loss_fn)
        queue = torch.cat([queue, *(lane.keys for lane in lanes)])[-16:]
    assert torch.equal(queue[-2:], lanes[3].keys) and torch.allclose(queue[-8:].norm(dim=1), torch.ones(8))


def with_checkpoint(lanes: Any, made: nn.Module, batch: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    out = checkpoint(lambda x: made(x + lanes.h.sum()), batch[0], use_reentrant=False)
    lanes.h = lanes.h + 1
    return out.sum()


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda lanes, m, b: setattr(lanes, "h", torch.ones(3)), r"set to torch.float32 of shape \(3,\); expected"),
        (lambda lanes, m, b: setattr(lanes, "h", 1.0), "lanes.h was set to a float; expected torch.float32 of shape"),
        (lambda lanes, m, b: lanes[0].h, r"lanes\[0\] is read inside the loss function"),
        (lambda lanes, m, b: lanes.reset(), r"lanes.reset\(\) was called inside the loss function"),
        (with_checkpoint, "or while backward runs"),
    ],
)
def test_lanes_that_are_not_used_as_meant_are_refused(use: Callable[..., Any], words: str) -> None:
    made = model()
    session = opened(made)
    lanes = session.lanes(h=torch.zeros(2, 2))
    with pytest.raises(TrainingError, match=r"lanes.h is used outside the loss function.* write lanes\[i\].h"):
        _ = lanes.h
    with pytest.raises(TrainingError, match="session.lanes.. is called once"):
        session.lanes(other=torch.zeros(1))

    def loss_fn(batch: Any) -> Any:
        found = use(lanes, made, batch)
        return summed(made, batch)[0] if found is None else found

    with pytest.raises(TrainingError, match=words):
        next(session.steps(1)).run(loss_fn)


def test_a_flipped_bit_in_a_lane_is_found_before_the_step_is_applied() -> None:
    made = model()
    session = opened(made)
    lanes = session.lanes(h=torch.zeros(2, 2))
    with session, pytest.raises(TrainingError, match=r"silent data corruption: .*\(lanes.h\)"):
        for step in session.steps(2):
            step.run(lambda batch: summed(made, batch))
            session._state.lanes.kept["h"].data[1] = 1.0
            session._integrity.seal()
            session._state.lanes.kept["h"].data[1] = 2.0
            assert not lanes[0].h.any()
            session._integrity.verify(session._resync.plan, session._gradients.kept[0], lambda leaf, nodes: None)


def test_lanes_after_the_first_step_are_refused() -> None:
    made = model()
    session = opened(made)
    for step in session.steps(1):
        step.run(lambda batch: summed(made, batch))
    with pytest.raises(TrainingError, match="session.lanes.. was called after the first step"):
        session.lanes(h=torch.zeros(1))


def test_a_variable_carried_from_micro_batch_to_micro_batch_is_refused_with_the_way_out() -> None:
    made, hidden = model(), torch.zeros(5)

    def loss_fn(batch: Any) -> torch.Tensor:
        nonlocal hidden
        out = made(batch[0]) + hidden
        hidden = out.detach().mean((0, 1)).tanh()
        loss: torch.Tensor = out.pow(2).mean()
        return loss

    with pytest.raises(
        TrainingError, match=r"because of hidden \(line \d+\): .* goes into a lane: lanes = session.lanes"
    ):
        next(opened(made).steps(1)).run(loss_fn)


@pytest.mark.parametrize("wrap", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_the_vectors_of_spectral_norm_are_those_of_the_last_micro_batch(wrap: Callable[..., Any]) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        made = nn.Sequential(wrap(nn.Linear(4, 3)), nn.ReLU(), wrap(nn.Linear(3, 1)))
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(torch.randn_like(parameter))  # so that the vectors have not converged
        return made

    made, plain = make(), make()
    samples = tokens()
    session = opened(made, audit=1.0, data=[x.mean(0) for x, _ in samples])
    for step in session.steps(1):
        step.run(lambda batch: made(batch).pow(2).mean())
    plain(torch.stack([x.mean(0) for x, _ in samples]))
    ours, theirs = dict(made.named_buffers()), dict(plain.named_buffers())
    assert len(ours) == 4
    for name, vector in theirs.items():
        assert torch.allclose(ours[name], vector, atol=1e-6), name
    assert not all(map(torch.equal, made.buffers(), make().buffers()))
    session = opened(made, data=[x.mean(0) for x, _ in samples])
    made.eval()
    before = [vector.clone() for vector in made.buffers()]
    for step in session.steps(1):
        step.run(lambda batch: made(batch).pow(2).mean())
    assert all(map(torch.equal, before, made.buffers())), "evaluation changes nothing"


@pytest.mark.parametrize("momentum", [0.1, 1.0])
def test_running_statistics_of_instances_are_those_of_all_micro_batches_in_order(momentum: float) -> None:
    def make() -> nn.InstanceNorm1d:
        torch.manual_seed(0)
        return nn.InstanceNorm1d(6, momentum=momentum, affine=True, track_running_stats=True)

    made, plain, samples = make(), make(), tokens()
    for step in opened(made, data=[x for x, _ in samples]).steps(1):
        step.run(lambda batch: made(batch).pow(2).mean())
    for leaf in range(4):
        plain(torch.stack([samples[i][0] for i in sample_indices(0, 0, leaf, 2, GLOBAL, len(samples))]))
    for ours, theirs in zip(made.buffers(), plain.buffers(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6), (ours, theirs)


class WithActivation(nn.BatchNorm1d):
    """As timm has them: torch's function, then an activation and dropout."""

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return nn.functional.dropout(super().forward(x).relu() * scale, 0.5)


class Renormalised(nn.BatchNorm1d):
    """Normalises by its running statistics in training, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal = super().forward(x)
        assert self.running_mean is not None
        return normal + 0.1 * self.running_mean


def normalised(kind: Callable[[int], nn.Module]) -> tuple[nn.Module, list[float]]:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 3), kind(3), nn.Linear(3, 1))
    session = opened(made, data=[x.mean(0) for x, _ in tokens()])
    return made, [step.run(lambda batch: made(batch).pow(2).mean()) for step in session.steps(2)]


def test_a_batch_norm_of_another_class_has_the_same_statistics() -> None:
    ours, theirs = normalised(WithActivation), normalised(nn.BatchNorm1d)
    assert int(ours[0][1].num_batches_tracked) == 8 and not ours[0][1]._forward_hooks
    assert not torch.equal(ours[0][1].running_mean, torch.zeros(3)) and ours[1] != theirs[1]
    assert normalised(WithActivation)[1] == ours[1]


def test_a_layer_that_uses_its_running_statistics_in_training_is_refused() -> None:
    with pytest.raises(TrainingError, match="a Renormalised uses its running statistics in training, .* use BatchNorm"):
        normalised(Renormalised)


GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "losses.md").read_text()


@pytest.mark.parametrize(
    ("place", "printed"),
    [
        (0, r"loss \d\.\d+, accuracy 0\.\d+"),
        (1, r"loss \d\.\d+, hidden \d\.\d+"),
        (2, r"loss \d\.\d+, queue -?\d+\.\d+"),
    ],
)
def test_the_guide(place: int, printed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(blocks) == 3
    (tmp_path / "cell.py").write_text(blocks[place])
    runpy.run_path(str(tmp_path / "cell.py"), run_name="__main__")
    assert re.fullmatch(printed + "\n", capsys.readouterr().out)
