"""Copies of what a program keeps: they own their memory, and go back into the same objects."""

from __future__ import annotations

import copy
import random
from collections import Counter, deque
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given
from torch import nn

from jupyter_hyperpod.runtime.comm import state_codec
from jupyter_hyperpod.runtime.program.copies.copier import Copier
from jupyter_hyperpod.runtime.program.copies.forms import SKIPPED
from jupyter_hyperpod.runtime.program.copies.keys import own_ids
from jupyter_hyperpod.runtime.program.value_kinds import LONG, State, Unfit
from tests.runtime.test_state import same, states


class Ema:
    """Keeps a module, numbers, a function and a generator."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.shadow = {name: value.detach().clone() for name, value in model.named_parameters()}
        self.updates = 0
        self.decay = lambda: 0.9
        self.generator = torch.Generator().manual_seed(1)

    def update(self) -> None:
        self.updates += 1
        for value in self.shadow.values():
            value.add_(torch.rand(value.shape, generator=self.generator))


def travelled(value: Any) -> Any:
    """The value as another process gets it."""
    skeleton, sent = state_codec.pack(value)
    return state_codec.unpack(state_codec.decode(state_codec.encode(skeleton)), [tensor.clone() for tensor in sent])


@given(states)
def test_a_copy_is_the_same_and_owns_its_memory(state: Any) -> None:
    taken = Copier().copied(state)
    assert same(Copier().merged(None, travelled(taken)), state)


def test_an_object_of_the_program_is_copied_by_attributes() -> None:
    model = nn.Linear(2, 2)
    copier = Copier(own={id(model)})
    here, there = Ema(model), Ema(model)
    here.update()
    taken = copier.copied(here)
    here.update()
    assert copier.merged(there, travelled(taken)) is there
    assert there.updates == 1 and there.model is model and there.decay() == 0.9
    there.update()
    assert all(torch.equal(here.shadow[name], there.shadow[name]) for name in here.shadow)


def test_what_can_be_changed_in_place_is_the_same_object_afterwards() -> None:
    kept: list[Any] = [
        [1, [2]],
        {"a": torch.zeros(2), "b": Counter("ab")},
        deque([1, 2], 5),
        {1, 2},
        np.zeros(3),
        nn.Linear(2, 2),
        State(a=1),
        random.Random(1),
        np.random.default_rng(1),
        torch.Generator(),
    ]
    copier = Copier()
    for target in kept:
        taken = travelled(copier.copied(target))
        assert copier.merged(target, taken) is target


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6.0).view(2, 3).t(),
        torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1),
    ],
)
def test_a_copy_lies_in_memory_as_it_did(value: Any) -> None:
    """Sums and products over another order have other bits."""
    copier = Copier()
    taken = copier.copied(value, copier.copied(value.reshape(value.shape[::-1]).T if value.ndim == 2 else value))
    there = copier.merged(None, travelled(taken))
    assert (there == value).all() and type(there) is type(value)
    expected = (value.stride(), there.stride()) if isinstance(value, torch.Tensor) else (value.strides, there.strides)
    assert expected[0] == expected[1]
    whole = value.contiguous() if isinstance(value, torch.Tensor) else np.ascontiguousarray(value)
    assert state_codec.digest(value) == state_codec.digest(whole)


def test_a_data_frame_lies_in_memory_as_it_did() -> None:
    """What pandas adds up over another layout has other bits."""
    rows = np.random.default_rng(2).random((99, 3))
    grown = pandas.DataFrame({name: pandas.Series(dtype=float) for name in "ab"})
    for row in rows:
        grown.loc[len(grown)] = row[:2]
    frames = [
        grown,
        pandas.DataFrame(rows),
        pandas.DataFrame(rows.T.copy()),
        pandas.DataFrame({"a": rows[:, 0], "b": 1}),
    ]
    for frame in frames:
        taken = travelled(Copier().copied(frame))
        there = Copier().merged(None, taken)
        pandas.testing.assert_frame_equal(there, frame, check_exact=True, check_freq=True)
        assert _strides(there) == _strides(frame) and (there.mean() == frame.mean()).all()
        before = pandas.DataFrame({"other": ["x"]})
        assert Copier().merged(before, taken) is before and (before.mean() == frame.mean()).all()


def _strides(frame: pandas.DataFrame) -> list[tuple[int, ...]]:
    return [frame.iloc[:, place].to_numpy().strides for place in range(frame.shape[1])]


def test_columns_of_many_types_travel() -> None:
    frame = pandas.DataFrame(
        {
            "whole": pandas.Series([1, None], dtype="Int64"),
            "text": pandas.Series(["a", None], dtype="string"),
            "kind": pandas.Categorical(["x", "y"], categories=["y", "x"], ordered=True),
            "moment": pandas.to_datetime(["2026-01-01", None]).tz_localize("Europe/Berlin"),
            "any": pandas.Series([1.5, ("a", 2)], dtype=object),
        },
        index=pandas.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["name", None]),
    )
    pandas.testing.assert_frame_equal(Copier().merged(None, travelled(Copier().copied(frame))), frame)
    series = frame["whole"].rename("x")
    pandas.testing.assert_series_equal(Copier().merged(None, travelled(Copier().copied(series))), series)


def test_what_of_a_data_frame_cannot_travel_is_refused() -> None:
    class Kept(pandas.DataFrame):
        pass

    named, mixed = pandas.DataFrame({"a": [1.0]}), pandas.DataFrame({name: pandas.Series(dtype=float) for name in "ab"})
    named.attrs["unit"] = "s"
    for row in range(3):
        mixed.loc[len(mixed)] = [row + 0.5, row]
    mixed["text"] = "x"  # beside columns that do not lie one after the other
    for value in (Kept({"a": [1.0]}), named, mixed, pandas.DataFrame({"a": [object()]})):
        with pytest.raises(Unfit):
            Copier().copied(value)


def test_parts_of_the_model_are_keys() -> None:
    here, there = (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for _ in range(2))
    own_here, own_there = own_ids(object(), here), own_ids(object(), there)
    kept = {here[0].weight: torch.ones(2), here[1]: 3.5, (here[1].running_mean, "a"): [1], 4: "four"}
    taken = travelled(Copier(own_here).copied(kept))
    found = Copier(own_there).merged(None, taken)
    assert list(found) == [there[0].weight, there[1], (there[1].running_mean, "a"), 4]
    before = {there[1]: 1.0}
    assert Copier(own_there).merged(before, taken) is before and before[there[1]] == 3.5 and len(before) == 4
    with pytest.raises(Unfit):
        Copier(own_here).copied({torch.ones(2): 1})
    with pytest.raises(Unfit):
        Copier(own_ids(object(), nn.Linear(2, 2))).merged(None, taken)
    del here[1]
    with pytest.raises(Unfit):
        Copier(own_here).copied(kept)


def test_a_leaf_gets_gradients_there_too() -> None:
    copier, value = Copier(), torch.ones(2, requires_grad=True)
    taken = copier.copied(value, copier.copied(value))
    assert copier.merged(None, travelled(taken)).requires_grad
    assert not copier.copied(value.detach(), taken).requires_grad and not (value * 2).detach().requires_grad
    assert state_codec.digest(value) == state_codec.digest(value.detach())


def test_a_generator_goes_on_with_its_next_child() -> None:
    for make in (np.random.default_rng, np.random.SeedSequence):
        here = make(3)
        here.spawn(2)
        for children in (1, 9):
            there = make(3)
            there.spawn(children)
            Copier().merged(there, travelled(Copier().copied(here)))
            one, other = (np.random.default_rng(made.spawn(1)[0]).random() for made in (here, there))
            assert one == other


def test_generators_go_on_where_they_were() -> None:
    for make in (random.Random, np.random.default_rng, np.random.RandomState):
        here, there = make(3), make(4)
        here.random()
        Copier().merged(there, travelled(Copier().copied(here)))
        assert here.random() == there.random()


def test_a_history_is_copied_anew_where_it_was_changed() -> None:
    history = [float(number) for number in range(3 * LONG)]
    copier = Copier()
    first = copier.copied(history)
    history.append(1.5)
    second = copier.copied(history, first)
    assert second == history and second is not history
    history[5] = -1.0
    assert copier.copied(history, second) == history
    del history[-10:]
    assert copier.copied(history, second) == history


@pytest.mark.parametrize("value", [iter([1]), (n for n in range(2)), object(), [open]])
def test_what_cannot_travel(value: Any) -> None:
    try:
        taken = Copier().copied(value)
    except Unfit:
        return
    assert taken is SKIPPED or taken == SKIPPED


def test_an_object_does_not_turn_into_a_dictionary() -> None:
    taken = Copier().copied(nn.Linear(1, 1))
    with pytest.raises(Unfit):
        Copier().merged(None, taken)
    assert copy.deepcopy(taken).keys() == taken.keys()


def test_a_range_is_a_plain_value() -> None:
    assert travelled({"indices": range(1, 9, 2)}) == {"indices": range(1, 9, 2)}
    assert Copier().copied([range(3)]) == [range(3)]
