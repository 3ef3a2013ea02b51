"""A session outside a job: the same trajectory, and everything that is refused before it can go wrong."""

from __future__ import annotations

import gc
import math
import os
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import SpecError, TrainingError
from jupyter_hyperpod.runtime.data.order import sample_indices
from jupyter_hyperpod.runtime.session.loop import Loop, Step

Loss = Callable[[Any], torch.Tensor]


def data(count: int = 20) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(4, generator=generator), torch.randn(1, generator=generator)) for _ in range(count)]


def parts(model: nn.Module | None = None, rate: float = 0.1) -> tuple[nn.Module, torch.optim.Optimizer, Loss]:
    torch.manual_seed(0)
    made = model or nn.Linear(4, 1)
    return made, torch.optim.SGD(made.parameters(), lr=rate), lambda b: nn.functional.mse_loss(made(b[0]), b[1])


def train(steps: int = 3, model: nn.Module | None = None, **settings: Any) -> tuple[list[float], nn.Module]:
    model, optimizer, loss_fn = parts(model)
    with hp.Session(model, optimizer, data(), **({"global_batch": 8, "micro_batch": 2} | settings)) as session:
        losses = [step.run(loss_fn) for step in session.steps(steps)]
        assert session.step == steps and session.rank == 0 and session.world_size == 1
    return losses, model


def test_the_gradient_is_that_of_the_global_batch() -> None:
    model, optimizer, loss_fn = parts()
    samples = data()
    session = hp.Session(model, optimizer, samples, global_batch=8, micro_batch=2)
    chosen = [i for leaf in range(4) for i in sample_indices(0, 0, leaf, 2, 8, len(samples))]
    whole = torch.utils.data.default_collate([samples[i] for i in chosen])
    expected = loss_fn(whole)
    (gradient,) = torch.autograd.grad(expected, [model.weight])
    before = model.weight.detach().clone()
    step = next(session.steps(1))
    assert step.run(loss_fn) == pytest.approx(expected.item(), rel=1e-6)
    assert torch.allclose(model.weight.detach(), before - 0.1 * gradient, atol=1e-7)


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    model = lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))  # noqa: E731
    torch.manual_seed(5)
    one = train(model=model(), seed=1)[0]
    torch.manual_seed(5)
    assert train(model=model(), seed=1)[0] == one
    torch.manual_seed(5)
    assert train(model=model(), seed=2)[0] != one


@pytest.mark.parametrize("draw", [lambda: torch.rand(()).item(), random.random, lambda: numpy.random.rand()])
def test_every_random_generator_depends_on_the_micro_batch_alone(draw: Callable[[], float]) -> None:
    model, optimizer, loss_fn = parts()
    seen: list[float] = []

    def noisy(batch: Any) -> torch.Tensor:
        seen.append(draw())
        return loss_fn(batch)

    session = hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2, seed=7)
    outside = draw()
    for step in session.steps(2):
        step.run(noisy)
        outside = draw()
    assert len(set(seen)) == 4
    first, seen[:] = list(seen), []
    again = hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2, seed=7)
    for step in again.steps(2):
        step.run(noisy)
        draw()
    assert seen == first
    assert outside not in seen


def test_random_generators_outside_the_loss_go_on_undisturbed() -> None:
    torch.manual_seed(3)
    expected = [torch.rand(()).item(), torch.rand(()).item()]
    model, optimizer, loss_fn = parts()
    session = hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2)
    torch.manual_seed(3)
    found = []
    for step in session.steps(2):
        step.run(loss_fn)
        found.append(torch.rand(()).item())
    assert found == expected


def test_parameters_without_a_gradient_have_none() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    model = Half()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    before = model.unused.weight.detach().clone()
    session = hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2)
    for step in session.steps(2):
        step.run(lambda b: nn.functional.mse_loss(model(b[0]), b[1]))
        assert model.unused.weight.grad is None and model.used.weight.grad is not None
    assert torch.equal(model.unused.weight, before), "no gradient, no weight decay either"


def test_clipping_and_scheduler() -> None:
    model, optimizer, loss_fn = parts(rate=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    settings = {"global_batch": 4, "micro_batch": 2, "max_grad_norm": 1e-3, "scheduler": scheduler}
    session = hp.Session(model, optimizer, data(), **settings)
    for step, rate in zip(session.steps(3), (1.0, 0.5, 0.25), strict=True):
        before = torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])
        step.run(loss_fn)
        after = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        assert float((after - before).norm()) == pytest.approx(1e-3 * rate, rel=1e-3)
    assert scheduler.last_epoch == 3


def test_the_digest_follows_the_state() -> None:
    model, optimizer, loss_fn = parts()
    session = hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2)
    digests = [session.digest()]
    for step in session.steps(2):
        step.run(loss_fn)
        digests.append(session.digest())
    assert len(set(digests)) == 3 and all(len(d) == 64 for d in digests)


def test_steps_go_on_where_they_stopped() -> None:
    model, optimizer, loss_fn = parts()
    session = hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2)
    numbers = [step.number for step in session.steps(2) if step.run(loss_fn) >= 0]
    numbers += [step.number for step in session.steps(2) if step.run(loss_fn) >= 0]
    assert numbers == [1, 2, 3, 4]


def test_an_iterator_that_outlives_its_session_does_nothing_when_it_is_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, optimizer, loss_fn = parts()
    with (
        pytest.raises(ZeroDivisionError),
        hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2) as session,
    ):
        steps = session.steps(3)
        next(steps).run(loss_fn)
        raise ZeroDivisionError
    left: list[object] = []
    monkeypatch.setattr(Loop, "_leave", left.append)
    del steps
    gc.collect()
    assert left == []


def test_a_step_that_was_not_run_is_an_error() -> None:
    model, optimizer, _ = parts()
    session = hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2)
    with pytest.raises(TrainingError, match=r"step 1 was not run: call step.run"):
        for _ in session.steps(2):
            pass


def test_a_loss_that_is_not_finite_is_returned_as_it_is_to_who_asks_for_it() -> None:
    model, optimizer, _ = parts()
    guard = hp.Guard(non_finite="ignore")
    session = hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2, guard=guard)
    step = next(session.steps(1))
    assert math.isnan(step.run(lambda b: (model(b[0]) * math.nan).mean()))


@pytest.mark.parametrize(("batch", "micro"), [(8, 3), (2, 4), (8, 0), (0, 0), (-4, 2)])
def test_batch_sizes_that_do_not_fit(batch: int, micro: int) -> None:
    model, optimizer, _ = parts()
    with pytest.raises(SpecError, match=f"global_batch is {batch} and micro_batch {micro}"):
        hp.Session(model, optimizer, data(), global_batch=batch, micro_batch=micro)


def test_empty_data_is_refused() -> None:
    model, optimizer, _ = parts()
    with pytest.raises(SpecError, match="data is empty"):
        hp.Session(model, optimizer, [], global_batch=4, micro_batch=2)


@pytest.mark.parametrize("what", ["steps", "epochs"])
def test_a_loop_without_a_count_says_what_is_expected(what: str) -> None:
    model, optimizer, _ = parts()
    with hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2) as session:
        ask = getattr(session, what)
        for given, got in [((), "no number"), ((None,), "no number"), (("10",), "a str"), ((data(),), "a list")]:
            with pytest.raises(SpecError, match=rf"{got}; expected how many {what}, such as session\.{what}\(1"):
                ask(*given)
        assert sum(1 for _ in session.epochs(numpy.int64(2))) == 2


@pytest.mark.parametrize("result", [lambda b: 1.0, lambda b: b[0], lambda b: b[0].sum(), lambda b: None])
def test_a_loss_that_is_no_scalar_of_the_model_is_refused(result: Loss) -> None:
    model, optimizer, _ = parts()
    session = hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2)
    step = next(session.steps(1))
    with pytest.raises(TrainingError, match="expected a scalar tensor that depends on the model"):
        step.run(result)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_are_those_of_all_micro_batches_in_order(momentum: float | None) -> None:
    def make() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=momentum), nn.Linear(3, 1))

    _, trained = train(steps=1, model=make())
    plain, samples = make(), data()
    with torch.no_grad():
        for leaf in range(4):
            chosen = [samples[i] for i in sample_indices(0, 0, leaf, 2, 8, len(samples))]
            plain(torch.utils.data.default_collate(chosen)[0])
    for ours, theirs in zip(trained[1].buffers(), plain[1].buffers(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6), (ours, theirs)
    assert int(trained[1].num_batches_tracked) == 4


def test_a_layer_in_evaluation_mode_keeps_its_statistics_and_uses_them() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    model[1].running_mean.fill_(5.0)
    model[1].eval()
    used: list[float] = []
    model[1].register_forward_hook(lambda layer, inputs, output: used.append(layer.running_mean[0].item()))
    train(model=model)
    assert set(used) == {5.0} and int(model[1].num_batches_tracked) == 0


def test_an_embedding_that_scales_its_weights_in_forward_is_refused() -> None:
    model, optimizer, _ = parts(nn.Sequential(nn.Embedding(4, 2, max_norm=1.0), nn.Linear(2, 1)))
    with pytest.raises(TrainingError, match=r"^0 is an Embedding with max_norm=1.0, .*weight.renorm_\(2, 0, 1.0\)`"):
        hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2)


def test_normalisation_over_all_processes_is_refused() -> None:
    model, optimizer, _ = parts(nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4)))
    with pytest.raises(TrainingError, match="1 is a SyncBatchNorm, which .* use BatchNorm, which normalises over its"):
        hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2)


def test_batch_norm_without_running_statistics_is_allowed() -> None:
    train(model=nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 1)))


class Counting(nn.Module):
    """A buffer that a forward pass changes, as spectral norm and moving averages do."""

    def __init__(self, persistent: bool, in_place: bool) -> None:
        super().__init__()
        self.linear, self.in_place = nn.Linear(4, 1), in_place
        self.register_buffer("calls", torch.zeros(()), persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.in_place:
            self.calls += 1
        else:
            self.calls = self.calls + 1
        out: torch.Tensor = self.linear(x)
        return out


@pytest.mark.parametrize("in_place", [True, False])
def test_a_buffer_that_a_micro_batch_changes_is_refused(in_place: bool) -> None:
    with pytest.raises(TrainingError, match="buffer 'calls' was changed by a micro-batch, .* lanes = session.lanes"):
        train(model=Counting(persistent=True, in_place=in_place))


def test_a_cache_that_is_no_state_may_change() -> None:
    train(model=Counting(persistent=False, in_place=True))


def test_an_optimizer_with_foreign_parameters_is_refused() -> None:
    model, head = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    with pytest.raises(SpecError, match="holds 2 parameter"):
        hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2)
    other = torch.optim.SGD(head.parameters(), lr=0.1)
    with pytest.raises(SpecError, match="holds no parameter of the model"):
        hp.Session(model, other, data(), global_batch=4, micro_batch=2)


def test_a_step_of_the_optimizer_in_the_loop_is_refused() -> None:
    model, optimizer, loss_fn = parts()
    with hp.Session(model, optimizer, data(), global_batch=8, micro_batch=2) as session:
        for step in session.steps(2):
            step.run(loss_fn)
            with pytest.raises(
                TrainingError, match=r"SGD.step\(\) was called in the loop, and step.run\(\) had stepped"
            ):
                optimizer.step()
    optimizer.step()  # the session has ended


def test_a_second_run_in_a_step_is_refused() -> None:
    model, optimizer, loss_fn = parts()
    with opened(optimizer, model) as session:
        for step in session.steps(2):
            step.run(loss_fn)
            with pytest.raises(TrainingError, match=rf"step {step.number} was run already: call .* once in the loop"):
                step.run(loss_fn)
        assert session.step == 2


def scaler_of_fsdp(**settings: Any) -> Any:
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    return ShardedGradScaler("cpu", **settings)


@pytest.mark.parametrize("make", [lambda **s: torch.amp.GradScaler("cpu", **s), scaler_of_fsdp])
def test_a_scaled_loss_is_refused_before_it_is_applied(make: Callable[..., Any]) -> None:
    model, optimizer, loss_fn = parts()
    enabled, disabled = make(), make(enabled=False)
    scale = vars(type(enabled))["scale"]
    with opened(optimizer, model) as session:
        step, other = session.steps(2), model.weight.detach().clone()
        with pytest.raises(TrainingError, match="scales its loss with a .*GradScaler.* return the loss as it is"):
            next(step).run(lambda batch: enabled.scale(loss_fn(batch)) / 2)
        assert torch.equal(other, model.weight)
        expected = Step(session._execution, 1).run(lambda batch: disabled.scale(loss_fn(batch)))
        assert expected > 0 and session.step == 1
        session._loop._planned = 1
    assert vars(type(enabled))["scale"] is scale, "whoever uses one elsewhere finds it as it was"
    enabled.scale(torch.ones(()))


def test_backward_in_a_loss_function_is_refused() -> None:
    model, optimizer, loss_fn = parts()

    def twice(batch: Any) -> torch.Tensor:
        loss = loss_fn(batch)
        loss.backward(retain_graph=True)
        return loss

    with pytest.raises(TrainingError, match="called backward\\(\\), .* would count twice"):
        next(opened(optimizer, model).steps(1)).run(twice)


def test_gradients_that_are_changed_after_the_step_are_refused() -> None:
    """As a clipping line after it does, which would have no effect; reading them, or zeroing them, is fine."""
    model, optimizer, loss_fn = parts()
    with opened(optimizer, model) as session:
        steps = session.steps(5)
        for zero in (True, False):
            next(steps).run(loss_fn)
            assert all(torch.isfinite(parameter.grad.norm()) for parameter in model.parameters())
            optimizer.zero_grad(set_to_none=zero)
        next(steps).run(loss_fn)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with pytest.raises(TrainingError, match="after step.run.* write hp.Session\\(..., max_grad_norm=1.0\\)"):
            next(steps).run(loss_fn)
        session._loop._planned = 3


def opened(optimizer: Any, model: nn.Module, scheduler: Any = None) -> hp.Session:
    return hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2, scheduler=scheduler)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda p: torch.optim.LBFGS(p),
            "an LBFGS with max_iter=20, .* Make it with max_iter=1 .* \\[optimizer\\] \\* n",
        ),
        (
            lambda p: torch.optim.LBFGS(p, max_iter=1, line_search_fn="strong_wolfe"),
            "an LBFGS with line_search_fn='strong_wolfe', which computes the loss several times",
        ),
        (
            lambda p: torch.optim.SparseAdam(p),
            "optimizer is a SparseAdam: .* dense tensors, .* Pass torch.optim.Adam, which also .* SGD without momentum",
        ),
        (lambda p: {"sgd": 1}, "optimizer is a dict; expected a torch.optim.Optimizer, or a list of them"),
        (lambda p: Closing(p, {}), "optimizer is a Closing, whose step\\(\\) needs closure; hp.Session calls"),
    ],
)
def test_an_optimizer_that_needs_an_argument_is_refused_when_the_session_opens(
    make: Callable[[Any], Any], words: str
) -> None:
    model = nn.Linear(4, 1)
    with pytest.raises(SpecError, match=words):
        opened(make(list(model.parameters())), model)


class Closing(torch.optim.Optimizer):
    def step(self, closure: Callable[[], float]) -> float:  # type: ignore[override]
        return closure()


class PerEpoch:
    """Stands in for the schedulers of timm 1.0: ``step(epoch, metric=None)``."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.last_epoch = optimizer, 0

    def step(self, epoch: int, metric: float | None = None) -> None:
        self.last_epoch = epoch

    def state_dict(self) -> dict[str, int]:
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.last_epoch = state["last_epoch"]


class PerUpdate(PerEpoch):
    def step_update(self, num_updates: int, metric: float | None = None) -> None:
        self.last_epoch = num_updates


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, mode="max"),
            "a ReduceLROnPlateau with mode='max', .* which is to fall: .* scheduler_metric='accuracy', or",
        ),
        (PerUpdate, "a PerUpdate, .* then scheduler.step_update\\(step.number\\), and after an epoch scheduler.step"),
        (PerEpoch, "a PerEpoch, whose step\\(\\) needs epoch; hp.Session calls .* such as CosineAnnealingLR"),
        (lambda _: lambda step: 0.1, "a function without step\\(\\); expected a scheduler"),
        (lambda o: [object()], "a object without step\\(\\)"),
    ],
)
def test_a_scheduler_that_needs_an_argument_is_refused_when_the_session_opens(
    make: Callable[[Any], Any], words: str
) -> None:
    model, optimizer, _ = parts()
    with pytest.raises(SpecError, match=f"scheduler is {words}"):
        opened(optimizer, model, make(optimizer))


def plateau(optimizer: Any, **settings: Any) -> torch.optim.lr_scheduler.ReduceLROnPlateau:
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5, **settings)


@pytest.mark.parametrize("metric", [None, "size"])
def test_a_plateau_is_stepped_with_the_loss_or_with_a_metric(metric: str | None) -> None:
    model, optimizer, loss_fn = parts()
    settings = {"scheduler": plateau(optimizer, mode="max" if metric else "min"), "scheduler_metric": metric}
    theirs = plateau(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1), mode=settings["scheduler"].mode)
    rates = []
    with hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2, **settings) as session:
        for step in session.steps(8):
            loss = step.run(lambda batch: (loss_fn(batch), {"size": batch[0].abs().mean()}))
            theirs.step(step.metrics["size"] if metric else loss)
            rates.append((optimizer.param_groups[0]["lr"], theirs.optimizer.param_groups[0]["lr"]))
    assert all(ours == other for ours, other in rates) and len(set(rates)) > 2


def test_each_plateau_sees_the_loss_of_its_optimizer() -> None:
    model = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    schedulers = [plateau(one) for one in optimizers]
    with opened(optimizers, model, schedulers) as session:
        for step in session.steps(3):
            losses = [step.run(lambda b, p=part, s=step: p(b[0]).mean() * 0 + 1 + s.number) for part in model]
            assert losses == [1 + step.number] * 2
        best = [one.best for one in schedulers]
    assert best == [2.0, 2.0] and [one.param_groups[0]["lr"] for one in optimizers] == [0.025, 0.025]


def test_a_metric_for_no_plateau_and_one_that_is_not_returned() -> None:
    model, optimizer, loss_fn = parts()
    settings = {"global_batch": 4, "micro_batch": 2, "scheduler_metric": "accuracy"}
    with pytest.raises(SpecError, match="scheduler_metric is 'accuracy', and no scheduler is a ReduceLROnPlateau"):
        hp.Session(model, optimizer, data(), **settings)
    session = hp.Session(model, optimizer, data(), **settings, scheduler=plateau(optimizer))
    with pytest.raises(TrainingError, match="returned no metrics: return it beside .* {'accuracy': value}"):
        next(session.steps(1)).run(loss_fn)


def test_extra_is_registered() -> None:
    digests = set()
    for early in (True, False):
        model, optimizer, loss_fn = parts()
        kept = hp.State(turns=0)
        session = hp.Session(
            model, optimizer, data(), global_batch=4, micro_batch=2, extra={"kept": kept} if early else None
        )
        if not early:
            session.register(kept=kept)
        with session:
            for step in session.steps(2):
                step.run(loss_fn)
                kept.turns += 1
        digests.add(session.digest())
    assert len(digests) == 1 and train(2, global_batch=4)[0]
    with pytest.raises(SpecError, match="extra is a list; expected a dictionary"):
        hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2, extra=[kept])  # type: ignore[arg-type]


def test_a_scheduler_of_another_optimizer_is_refused() -> None:
    model, optimizer, _ = parts()
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(SpecError, match=r"StepLR of another optimizer .* StepLR\(optimizer, \.\.\.\)"):
        opened(optimizer, model, torch.optim.lr_scheduler.StepLR(other, 1))


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=50),
        lambda o: torch.optim.lr_scheduler.ChainedScheduler([torch.optim.lr_scheduler.StepLR(o, 2)]),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [torch.optim.lr_scheduler.ConstantLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
            milestones=[1],
        ),
    ],
)
def test_schedulers_that_need_nothing_step(make: Callable[[Any], Any]) -> None:
    model, optimizer, loss_fn = parts()
    scheduler = make(optimizer)
    with opened(optimizer, model, scheduler) as session:
        for step in session.steps(3):
            step.run(loss_fn)
    assert getattr(scheduler, "last_epoch", 3) == 3


@pytest.mark.parametrize(
    ("make", "replayable"),
    [
        (lambda p: torch.optim.AdamW(p), True),
        (lambda p: torch.optim.AdamW(p, fused=True), True),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), True),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True), False),
    ],
    ids=["adamw", "fused", "nesterov", "nesterov foreach"],
)
def test_a_gradient_that_the_optimizer_overwrote_is_not_replayed(
    make: Callable[[Any], torch.optim.Optimizer], replayable: bool
) -> None:
    model, _, loss_fn = parts()
    optimizer = make(model.parameters())
    session = hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2)
    for step in session.steps(2):
        step.run(loss_fn)
    assert session._resync.held().history == replayable
    optimizer.zero_grad(set_to_none=False)
    assert session._resync.held().history == 0, "what a person zeroes is no longer what was applied"


def test_the_number_of_threads_is_given_back() -> None:
    before = torch.get_num_threads()
    train()
    assert torch.get_num_threads() == before


def test_memory_is_given_back_when_a_session_is_over() -> None:
    gc.collect()
    before = _gradient_segments()
    _, model = train()
    assert _gradient_segments() == before
    assert all(p.grad is None for p in model.parameters())


def test_a_session_that_was_never_opened_gives_its_memory_back_at_once() -> None:
    gc.collect()
    gc.disable()
    try:
        before = _gradient_segments()
        model, optimizer, _ = parts()
        session = hp.Session(model, optimizer, data(), global_batch=4, micro_batch=2)
        assert _gradient_segments() > before
        del session
        assert _gradient_segments() == before
    finally:
        gc.enable()


def _gradient_segments() -> int:
    """Open descriptors of gradient memory in this process."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum("hyperpod-gradients" in link for link in links)


def test_parameters_on_a_device_that_is_not_supported_are_refused() -> None:
    model = nn.Linear(2, 1, device="meta")
    with pytest.raises(TrainingError, match="on meta; expected all on the CPU, or all on one CUDA device"):
        hp.Session(model, torch.optim.SGD(model.parameters(), lr=0.1), data(), global_batch=4, micro_batch=2)
