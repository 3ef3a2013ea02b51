"""Spaces of sweeps as people write them, their points, and how a value gets into the code."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.policy.sweeps import assignments, samplers, settled_values, space
from jupyter_hyperpod.policy.sweeps.space import Choices, NumberRange

names = st.sampled_from(["lr", "batch", "width", "optimizer", "amp"])
plain = st.one_of(
    st.booleans(),
    st.none(),
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_characters="'\"", exclude_categories=["Cs"]), max_size=8),
)
choices = st.lists(plain, min_size=1, max_size=5, unique_by=lambda one: (type(one).__name__, repr(one))).map(
    lambda found: Choices(tuple(found))
)
spans = st.one_of(
    st.tuples(st.floats(1e-6, 1.0), st.floats(1.5, 1e6), st.booleans()).map(lambda one: NumberRange(*one)),
    st.tuples(st.integers(1, 50), st.integers(51, 500), st.booleans()).map(lambda one: NumberRange(*one, whole=True)),
)
spaces = st.dictionaries(names, st.one_of(choices, spans), min_size=1, max_size=4)


@given(spaces)
def test_what_is_written_is_read_again(tried: space.Space) -> None:
    assert space.parse([f"{name}={axis}" for name, axis in tried.items()]) == tried
    assert space.from_json(space.to_json(tried)) == tried


@given(st.lists(st.text(max_size=20), max_size=3))
def test_any_text_is_a_space_or_refused(texts: list[str]) -> None:
    try:
        found = space.parse(texts)
    except SpecError as error:
        assert str(error)
    else:
        assert all(name.isidentifier() for name in found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr=", "there are no values"),
        ("lr", "has no values"),
        ("lr=1,,2", "empty value between"),
        ("lr=1,1", "there twice"),
        ("1x=2", "cannot be the name of a variable"),
        ("if=2", "cannot be the name of a variable"),
        ("lr=2..1", "its first number must be smaller"),
        ("lr=0..1:log", "begins above 0"),
        ("lr=1..2:lgo", "ends with 'lgo'"),
        ("lr=1..x", "not a range of two numbers"),
        ("lr=1..2,3", "not a range of two numbers"),
        ("lr=nan", "not a finite number"),
        ("lr='a", "not closed"),
        ("lr=1...3", "has three points"),
        ("betas=(0.9,0.99),(0.8,0.9)", "has a tuple, a list or a dictionary"),
        ("layers=[64],[64,64]", "has a tuple, a list or a dictionary"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        space.parse([text])


def test_words_are_values_of_their_kinds() -> None:
    (axis,) = space.parse(["x=1,1.5,1e-4,-2,true,None,adam,'1','a,b'"]).values()
    assert isinstance(axis, Choices)
    assert axis.values == (1, 1.5, 1e-4, -2, True, None, "adam", "1", "a,b")
    assert space.parse(["n=1..8"])["n"] == NumberRange(1, 8, whole=True)


@given(spaces, st.integers(0, 10**6), st.integers(1, 30))
def test_random_points_are_in_the_space_and_depend_on_seed_and_number_alone(
    tried: space.Space, seed: int, count: int
) -> None:
    most = space.size(tried)
    found = list(samplers.points(tried, samplers.RANDOM, min(count, most or count), seed))
    assert found == list(samplers.points(tried, samplers.RANDOM, len(found) + 0, seed))
    assert found[:3] == list(samplers.points(tried, samplers.RANDOM, min(3, len(found)), seed))
    if most is not None:
        assert len({repr(point) for point in found}) == len(found), "no point of lists comes twice"
    for point in found:
        for name, axis in tried.items():
            value: Any = point[name]
            if isinstance(axis, Choices):
                assert any(value is one or repr(value) == repr(one) for one in axis.values)
            else:
                assert axis.low <= value <= axis.high and (not axis.whole or type(value) is int)


def test_known_random_points_stay_the_same() -> None:
    """A sweep that was begun with an earlier version goes on with the points that it had."""
    tried = space.parse(["lr=1e-4..1e-1:log", "layers=1..8", "kind=a,b,c"])
    assert list(samplers.points(tried, samplers.RANDOM, 3, 0)) == [
        {"lr": 0.00739764, "layers": 6, "kind": "c"},
        {"lr": 0.0051832, "layers": 6, "kind": "c"},
        {"lr": 0.000401108, "layers": 7, "kind": "b"},
    ]


def test_a_grid_has_each_point_once_and_its_last_name_changes_fastest() -> None:
    tried = space.parse(["lr=1,2", "batch=8,16,32"])
    assert samplers.choose(tried, None, None).value == (samplers.GRID, 6)
    found = [tuple(point.values()) for point in samplers.points(tried, samplers.GRID, 6, 0)]
    assert found == [(1, 8), (1, 16), (1, 32), (2, 8), (2, 16), (2, 32)]


def test_spaces_that_fit_no_sampler_are_refused() -> None:
    thousand = ",".join(map(str, range(1000)))
    huge = space.parse([f"{name}={thousand}" for name in ("a", "b", "c")])
    with pytest.raises(SpecError, match="1,000,000,000 points.*--trials N"):
        samplers.choose(huge, None, None)
    assert samplers.choose(huge, None, 20).value == (samplers.RANDOM, 20)
    assert len(list(samplers.points(huge, samplers.RANDOM, 20, 0))) == 20
    with pytest.raises(SpecError, match="lr is a range; say how many"):
        samplers.choose(space.parse(["lr=1..2"]), None, None)
    with pytest.raises(SpecError, match="a grid needs lists"):
        samplers.choose(space.parse(["lr=1..2"]), samplers.GRID, None)
    with pytest.raises(SpecError, match="only 2 different points"):
        samplers.choose(space.parse(["lr=1,2"]), None, 3)
    with pytest.raises(SpecError, match="expected 1 to 1,000"):
        samplers.choose(space.parse(["lr=1..2"]), None, 0)


CELL = """
lr = max(
    1e-3,  # a comment
    2e-3,
)
batch: int = 32; kind = "é"
def train(): return lr * batch, kind
print(train())
"""


@given(
    st.lists(
        st.fixed_dictionaries({"lr": st.floats(1e-9, 10), "batch": st.integers(-5, 99), "kind": plain}),
        min_size=1,
        max_size=3,
    )
)
def test_values_replace_values_and_lines_keep_their_numbers(trials: list[dict[str, Any]]) -> None:
    """Whatever was in the code before: one trial's code can be made of another's."""
    code = CELL
    for values in trials:
        code = assignments.with_values(code, values, own=False)
        assert code == assignments.with_values(CELL, values)
        assert code.split("\n")[5:] == assignments.with_values(CELL, values).split("\n")[5:]
        assert [node.lineno for node in ast.parse(code).body] == [node.lineno for node in ast.parse(CELL).body]
        space_of_code: dict[str, Any] = {}
        exec(code.replace("print(", "found = ("), space_of_code)
        assert space_of_code["found"] == (values["lr"] * values["batch"], values["kind"])


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = 1\nprint(x)", "assigns no lr at its top level"),
        ("lrr = 1\nprint(lrr)", "did you mean lrr"),
        ("lr = 1", "never uses it"),
        ("lr = 1\nprint(lr)\nlr *= 2", "again by an assignment in line 3"),
        ("lr = 1\nfor lr in [2]: print(lr)", "again by an assignment in line 2"),
        ("lr = 1\nif lr: lr = 3", "again by an assignment in line 2"),
        ("lr = 1\nprint([lr := 2])", "again by an assignment in line 2"),
        ("lr = 1\nprint([(lr := y) for y in (1,)])", "again by `:=` in line 2"),
        ("lr = 1\ndef f():\n    global lr\n    lr = 3\nprint(lr)", "again by the function f in line 4"),
        ("lr = 1\nprint(lr)\ndel lr", "again by `del` in line 3"),
        ("lr = 1\nimport lr\nprint(lr)", "again by an import in line 2"),
        ("lr = 1\nfrom os import *\nprint(lr)", "import of everything in line 2"),
        ("if True:\n    lr = 2\nprint(lr)", "not inside a block"),
        ("a, lr = 1, 2\nprint(lr)", "one plain line"),
        ("a = lr = 2\nprint(lr)", "one plain line"),
        ("def f():\n    lr = 1\n    return lr", "assigns no lr at its top level"),
        ("class A:\n    lr = 1\nprint(A.lr)", "assigns no lr at its top level"),
        ("lr: float\nprint(lr)", "one plain line"),
        ("def lr(): ...\nprint(lr)", "one plain line"),
        ("lr = 1\ndef f(lr): return lr\nf(2)", "never uses it"),
        ("lr = 1\ndef f():\n    lr = 2\n    return lr\nf()", "never uses it"),
        ("lr = 1\nclass A:\n    lr = 2\nprint(A.lr)", "never uses it"),
        ("lr = 1\nprint([lr for lr in (4,)])", "never uses it"),
        ("lr = 1\nf = lambda lr: lr", "never uses it"),
        ("lr = 1\nglobals()['lr'] = 2\nprint(lr)", r"again by `globals\(\)\['lr'\]` in line 2"),
        ("lr = 1\nlocals().update(lr=3)\nprint(lr)", r"again by `locals\(\).update` in line 2"),
        ("lr = 1\nglobals().update({'lr': 3})\nprint(lr)", r"again by `globals\(\).update` in line 2"),
        ("lr = 1\nexec('lr = 4')\nprint(lr)", "again by `exec` in line 2"),
        ("lr = 1\nimport sys\nsetattr(sys.modules['__main__'], 'lr', 5)\nprint(lr)", "again by `setattr` in line 3"),
        ("try: ...\nexcept OSError as lr: print(lr)", "by an exception in line 2"),
    ],
)
def test_a_value_that_could_be_lost_is_refused(code: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        assignments.with_values(code, {"lr": 0.5})


@pytest.mark.parametrize(
    "code",
    [
        "lr = 1\ndef f(): return lr",
        "lr = 1\nclass A:\n    rate = lr",
        "lr = 1\nclass A:\n    lr = lr",
        "lr = 1\nprint([lr for y in (1,)])",
        "lr = 1\nexec(open('more.py').read())",
        "lr = 1\nasync def f():\n    def g(x=lr): ...",
    ],
)
def test_a_value_that_is_used_somewhere_is_taken(code: str) -> None:
    assert assignments.with_values(code, {"lr": 2}) == code.replace("lr = 1", "lr = 2")


def test_text_where_the_code_has_a_number_is_refused() -> None:
    with pytest.raises(SpecError, match="is text, and the code has a number"):
        assignments.with_values("lr = -1.0\nprint(lr)", {"lr": "1e-"})


@pytest.mark.parametrize(
    ("code", "text", "values"),
    [
        ("x = 'base'", "x=1,2", ("1", "2")),
        ("x = 'adam'", "x=1e-3,adam,none,true", ("1e-3", "adam", "none", "true")),
        ("x = 3", "x=3.0,1e2", (3, 100)),
        ("x: int = 3", "x=4,none", (4, None)),
        ("x = 0.1", "x=1,2,1e-3", (1.0, 2.0, 1e-3)),
        ("x: float = 1", "x=1,2", (1.0, 2.0)),
        ("x: str | None = None", "x=1,none", ("1", None)),
        ("x = True", "x=TRUE,false", (True, False)),
        ("x = -1", "x=-2,3", (-2, 3)),
        ("x = None", "x=1,1.5,a,true", (1, 1.5, "a", True)),
        ("x = f()", "x=1,a", (1, "a")),
    ],
)
def test_values_have_the_kind_that_the_code_has(code: str, text: str, values: tuple[Any, ...]) -> None:
    (axis,) = settled_values.settled(code, space.parse([text])).values()
    assert isinstance(axis, Choices) and repr(axis.values) == repr(values)
    assert settled_values.settled(code, space.from_json(space.to_json({"x": axis}))) == {"x": axis}


@pytest.mark.parametrize(
    ("code", "text", "said"),
    [
        ("x: int = 3", "x=1.5,2", "'1.5' has a fraction, and the code has `x: int` in line 1"),
        ("x = 3", "x=true", "'true' is no number, and the code has a whole number, 3, in line 1"),
        ("x = 3", "x=1,1.0", "the value 1 is there twice"),
        ("x = 3", "x=0.5..2", "has fractions, and the code has a whole number"),
        ("x = 'a'", "x=1,'1'", "the value '1' is there twice"),
        ("x = 'a'", "x=1..2", "is a range of numbers, and the code has text, 'a', in line 1"),
        ("x = True", "x=1,2", "'1' is neither true nor false, and the code has True or False"),
        ("x = True", "x=TRUE,no", "'no' is neither true nor false"),
        ("x = 0.1", "x=1,1.0", "the value 1.0 is there twice"),
        ("x = 0.1", "x=1,0.l", "'0.l' is text, and the code has a number, 0.1"),
        ("x = (0.9, 0.99)", "x=1,2", "the code has a tuple in line 1"),
        ("x = [64]", "x=1,2", "the code has a list in line 1"),
    ],
)
def test_values_of_another_kind_are_refused(code: str, text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        settled_values.settled(code, space.parse([text]))


def test_a_range_has_the_kind_that_the_code_has() -> None:
    assert settled_values.settled("x = 0.1", space.parse(["x=0..1"])) == {"x": NumberRange(0.0, 1.0)}
    assert settled_values.settled("x = 2", space.parse(["x=1.0..8.0"])) == {"x": NumberRange(1, 8, whole=True)}
    assert settled_values.settled("x = 0.1", space.parse(["x=0..1"]), ["x"]) == {"x": NumberRange(0, 1, whole=True)}


def test_whole_numbers_of_a_range_do_not_repeat() -> None:
    tried = space.parse(["layers=1..6", "kind=a,b"])
    found = list(samplers.points(tried, samplers.RANDOM, 12, 0))
    assert len({repr(point) for point in found}) == 12
    with pytest.raises(SpecError, match="lists and ranges of whole numbers have only 12 different points; ask for 12"):
        samplers.check_enough(tried, samplers.RANDOM, 13)
    assert len(list(samplers.points(tried, samplers.RANDOM, 13, 0))) == 13, "a sweep of an earlier version goes on"
    assert samplers.choose(space.parse(["x=1"]), None, None).reason == "tries the one point of the grid"


def test_names_inside_functions_and_classes_are_other_names() -> None:
    code = "lr = 1\ndef f(lr=lr):\n    lr = 2\n    return lr\nclass A:\n    lr = 3\nprint([lr for lr in (4,)], lr)"
    assert assignments.with_values(code, {"lr": 5}) == code.replace("lr = 1", "lr = 5", 1)
