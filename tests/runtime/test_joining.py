"""A newcomer loads a snapshot while the others train, and enters at a step's end with the very same bits."""

from __future__ import annotations

import hashlib
import mmap
import os
import resource
import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.policy.recovery import RecoveryPlan, at_once
from jupyter_hyperpod.runtime.comm import state_codec
from jupyter_hyperpod.runtime.comm.reduction import as_bytes
from jupyter_hyperpod.runtime.comm.shared_memory import Token
from jupyter_hyperpod.runtime.comm.snapshot import PreparedMemory, StripeMemory, parse, read
from jupyter_hyperpod.runtime.comm.transfer import StateTransfer
from jupyter_hyperpod.runtime.protocol.orders import OfferState

from .conftest import Run, Submit


def test_a_member_that_is_added_joins_at_a_steps_end(job: Submit, reference: Run) -> None:
    run = job(nodes=2, elastic="1:3", env={"PAUSE_S": "0.02"})
    run.until_step(4)
    run.scale(3)
    run.until_world(3)
    run.finish()
    plans = [e.data["reason"] for e in run.of_kind("decision.made") if e.data["policy"] == "recovery"]
    assert "the members meet when step" in run.story()
    assert "newcomer" not in plans[-1], "it came with the state"
    run.same_as(reference)


def test_a_donor_that_is_killed_during_an_approach_changes_nothing(job: Submit, reference: Run) -> None:
    run = job(nodes=2, elastic="1:3", env={"PAUSE_S": "0.02"})
    run.until_step(3)
    run.scale(3)
    run.until_event("member.ready")
    run.kill(1)
    run.finish()
    run.same_as(reference)


def test_a_newcomer_that_is_killed_before_it_enters_changes_nothing(job: Submit, reference: Run) -> None:
    run = job(nodes=2, elastic="1:3", env={"PAUSE_S": "0.03"})
    run.until_step(3)
    run.scale(3)
    run.until_event("member.ready")
    member = run.of_kind("member.ready")[-1].data["member"]
    os.kill(int(member.rpartition(".")[2]), signal.SIGKILL)
    run.finish()
    run.same_as(reference)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=5), st.integers(1, 4))
def test_stripes_put_together_are_the_state(lengths: list[int], parts: int) -> None:
    tensors = [torch.randn(length) for length in lengths]
    stripes = [StripeMemory() for _ in range(parts)]
    tokens = [stripe.write(tensors, part, parts) for part, stripe in enumerate(stripes)]
    copies = [torch.empty_like(tensor) for tensor in tensors]
    read(copies, tokens)
    assert all(torch.equal(a, b) for a, b in zip(copies, tensors, strict=True))
    one_by_one = [torch.empty_like(tensor) for tensor in tensors]
    for part, token in enumerate(tokens):
        read(one_by_one, [token], part, parts)
    assert all(torch.equal(a, b) for a, b in zip(one_by_one, tensors, strict=True))


def test_what_may_still_be_read_is_not_overwritten() -> None:
    stripe = StripeMemory()
    first = stripe.write([torch.ones(100)], 0, 1)
    second = stripe.write([torch.zeros(100)], 0, 1)
    assert first != second
    stripe.reuse()
    third = stripe.write([torch.full((100,), 2.0)], 0, 1)
    assert third == second, "touched memory is used again"
    copy = torch.empty(100)
    read([copy], [third])
    assert hashlib.sha256(as_bytes(copy)).digest() == hashlib.sha256(as_bytes(torch.full((100,), 2.0))).digest()


def test_memory_that_is_gone_leaves_the_newcomer_as_it_was() -> None:
    token = StripeMemory().write([torch.ones(100)], 0, 1)
    kept = torch.zeros(100)
    with pytest.raises(OSError):
        read([kept], [token])
    assert not kept.any()
    stripe = StripeMemory()
    stripe.write([torch.ones(100)], 0, 1)
    shown = stripe.token_text()
    parse(shown)
    other_host = shown[:-2] + ("00" if shown[-2:] != "00" else "01")
    with pytest.raises(OSError, match="another host"):
        parse(other_host)
    for text in ("xyz", "00"):
        with pytest.raises(OSError, match="token"):
            parse(text)


def test_room_is_given_once_and_never_runs_out() -> None:
    prepared = PreparedMemory([torch.nn.Parameter(torch.zeros(3, 4))], copies=2)
    taken = [prepared.take([3, 4], torch.float32) for _ in range(3)] + [prepared.take([2], torch.int64)]
    assert len({tensor.data_ptr() for tensor in taken}) == 4
    assert [tuple(tensor.shape) for tensor in taken] == [(3, 4)] * 3 + [(2,)]
    assert not any(tensor._is_view() for tensor in taken), "it would travel as a view when the next member joins"
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in taken), "it is saved alone"


def test_room_is_touched_before_it_is_needed() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((900, 900), (0,), (900, 900), ())]
    prepared = PreparedMemory(parameters, copies=2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for parameter in parameters:
        prepared.take(parameter.shape, parameter.dtype).fill_(1)
    pages = sum(p.numel() * p.element_size() for p in parameters) // mmap.PAGESIZE
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < pages // 4


def test_newcomers_enter_at_once_only_where_that_is_quick_and_somebody_is_missing() -> None:
    assert at_once(1, 100_000_000, 0.35).value
    assert not at_once(0, 100_000_000, 0.35).value
    assert not at_once(1, 10_000_000_000, 4.0).value
    assert "10.00 s" in at_once(1, 10_000_000_000, 4.0).reason


def test_an_offer_to_newcomers_outside_leaves_what_members_still_read() -> None:
    """Members that could not read their stripe form a new generation, where the next offer would come in between."""
    tensors: list[torch.Tensor] = [torch.arange(100)]
    sent: list[Any] = []
    offered: list[Any] = []
    group = SimpleNamespace(
        near=[1],
        replica=1,
        exchange=lambda sends, receives: sent.extend(sends),
        send=offered.append,
    )
    state = SimpleNamespace(step=3, pack=lambda on_device=False: state_codec.pack(tensors))
    gradients = SimpleNamespace(depth=1, collectives=SimpleNamespace(pair=None))
    transfer = StateTransfer(cast(Any, group), cast(Any, state), cast(Any, gradients))
    plan = ordinary_plan(donors=(0,), fresh=(1,))
    transfer.share(plan)
    transfer.offer(OfferState(generation=2, part=0, parts=1))
    token = Token.unpack(bytes(sent[-1][1]))
    found = [torch.zeros(100, dtype=torch.int64)]
    read(found, [token])
    assert found[0].tolist() == tensors[0].tolist()
    read(found, [parse(offered[0].token[0].split()[0])])
    transfer.newcomers_arrived()
    transfer.release()
    with pytest.raises(OSError, match="closed|No such file"):
        read(found, [token])


def ordinary_plan(donors: tuple[int, ...], fresh: tuple[int, ...]) -> RecoveryPlan:
    return RecoveryPlan(3, donors, (), fresh, ((), ()), ((0,), (1,)), ((), ()))
