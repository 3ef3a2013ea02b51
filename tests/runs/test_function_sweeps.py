"""`hp.sweep`: what travels of a function, what is refused, and its trials on a real cluster."""

from __future__ import annotations

import collections
import functools
import heapq
import importlib
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import jupyter_hyperpod as hp
from jupyter_hyperpod.control.sweeps.function_source import cell_of
from jupyter_hyperpod.control.sweeps.plan import space_of
from jupyter_hyperpod.control.sweeps.same_values import equal
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.notebook.function_sweeps import FunctionSweep
from jupyter_hyperpod.storage.store import Store
from tests.test_magics import make_shell, run

SHIFT = [3, 4]
HANDLE = object()


class Bowl:
    """A thing of this file that a function uses."""

    def depth(self, x: float) -> float:
        return (x - SHIFT[0]) ** 2


def shifted(x: float) -> float:
    return Bowl().depth(x)


def objective(x: float, y: int = 1, mode: str | None = None) -> float:
    if mode == "fails":
        raise ValueError(Path("here").name)
    return shifted(x) + math.sqrt(y)


def uses_a_handle(x: float) -> object:
    return HANDLE, x


def names_collide(SHIFT: float) -> float:
    return shifted(SHIFT)


def returned(function: Callable[..., Any], **space: Any) -> str:
    return cell_of(function, space_of(space))


def test_the_cell_of_a_function_stands_alone() -> None:
    cell = returned(objective, x=[1.5], y="1..4")
    found: dict[str, Any] = {}
    exec(cell.replace("x = None", "x = 5.0").replace("y = None", "y = 4"), found)
    assert found["result"] == 6.0
    assert "import math" in cell and "from pathlib import Path" in cell and "SHIFT = [3, 4]" in cell


@pytest.mark.parametrize(
    ("function", "space", "said"),
    [
        (lambda x: x, {"x": [1]}, "not a function with a name"),
        (objective, {"z": [1]}, "takes no z"),
        (objective, {"y": [1]}, "needs x"),
        (objective, {"x": 3}, "neither a list"),
        (objective, {"x": []}, "is empty"),
        (objective, {"x": [[1]]}, "expected numbers, text"),
        (uses_a_handle, {"x": [1]}, "uses HANDLE, a object that exists only here"),
        (names_collide, {"SHIFT": [1]}, "rename one of them"),
        (math.sqrt, {"x": [1]}, "not a function with a name"),
    ],
)
def test_what_cannot_travel_is_refused(function: Any, space: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        returned(function, **space)


WEIGHTS = [1.0, 2.0]


def with_default(x: float, n: float = WEIGHTS[0], *, kind: object = Path, more: list[float] = WEIGHTS) -> float:
    return x * n + len(more)


def with_handle(x: float, thing: object = HANDLE) -> float:
    return x


def reads_modules(x: float) -> float:
    return x * math.pi + sys.maxsize


def test_defaults_travel_as_they_are_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.WEIGHTS", [100.0])  # the default is still what it was
    cell = returned(with_default, x=[1.0])
    found: dict[str, Any] = {}
    exec(cell.replace("x = None", "x = 2.0"), found)
    assert found["result"] == with_default(2.0) == 4.0
    with pytest.raises(SpecError, match="uses HANDLE, a object that exists only here"):
        returned(with_handle, x=[1])
    monkeypatch.setattr(f"{__name__}.HANDLE", Path)
    with pytest.raises(SpecError, match="has the default thing=HANDLE, a object that exists only here"):
        returned(with_handle, x=[1])


def keeps(x: float, seen: list[float] = [], more: collections.deque[float] = collections.deque([1.0])) -> float:  # noqa: B006
    seen += [x]
    more.append(x)
    return min(seen) + min(more)


def hands_on(x: float, seen: list[float] = []) -> None:  # noqa: B006
    heapq.heappush(seen, x)


def test_a_default_that_calls_change_is_as_new_in_a_trial() -> None:
    keeps(-3.0)
    found: dict[str, Any] = {}
    exec(returned(keeps, x=[1.0]).replace("x = None", "x = 2.0"), found)
    assert found["result"] == 3.0
    assert returned(hands_on, x=[1])
    hands_on(2.0)
    with pytest.raises(SpecError, match=r"default seen of hands_on is \[2\.0\] here, and \[\] in its source"):
        returned(hands_on, x=[1])


def with_objects(
    x: float,
    act: nn.Module = nn.Dropout(0.5),  # noqa: B008
    criterion: nn.Module = nn.CrossEntropyLoss(label_smoothing=0.1),  # noqa: B008
    norm: Callable[..., nn.Module] = functools.partial(nn.LayerNorm, eps=1e-6),  # noqa: B008
    bag: Any = collections.defaultdict(list),  # noqa: B006
) -> tuple[float, float]:
    return criterion.label_smoothing, norm(3).eps  # type: ignore[return-value]


def with_weights(x: float, layer: nn.Module = nn.Linear(2, 2)) -> object:  # noqa: B008
    return layer(x)


def test_a_default_that_its_text_makes_again_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}
    exec(returned(with_objects, x=[1]), found)
    assert found["result"] == (0.1, 1e-6)
    state = torch.random.get_rng_state()
    with pytest.raises(SpecError, match="has the default layer=nn.Linear"):
        returned(with_weights, x=[1])
    assert torch.equal(state, torch.random.get_rng_state())
    act, criterion = (with_objects.__defaults__ or ())[:2]
    for thing, name, value in ((criterion, "label_smoothing", 0.5), (act, "p", 0.1)):
        with monkeypatch.context() as patch, pytest.raises(SpecError, match="that exists only here"):
            patch.setattr(thing, name, value)
            returned(with_objects, x=[1])
    with monkeypatch.context() as patch, pytest.raises(SpecError, match="that exists only here"):
        patch.setitem((with_objects.__defaults__ or ())[2].keywords, "eps", 0.1)
        returned(with_objects, x=[1])


def test_a_value_is_the_same_as_itself() -> None:
    several = torch.ones(2)
    assert equal(several, several) and not equal(several, torch.ones(2))


def test_what_was_read_of_a_module_is_as_an_import_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "import math" in returned(reads_modules, x=[1])
    monkeypatch.setattr(math, "pi", 3)
    with pytest.raises(SpecError, match=r"math\.pi is 3 here, and 3\.14.* where a trial imports math anew"):
        returned(reads_modules, x=[1])


SETTINGS = """
import time
from deeper import DEPTH
SCALE = 2
TWICE = 2 * SCALE
CONFIG = {"lr": 0.1}
CACHE = {}
COUNT = 0
START = time.time()
class Net:
    width = 8
    made = 0
    def __init__(self):
        Net.made += 1
    def forward(self, x):
        return x * self.width
def helper(x):
    global COUNT
    COUNT += 1
    CACHE[x] = Net().forward(x) * TWICE
    return CACHE[x] + DEPTH
"""
STUDY = """
import math
import numpy as np
import torch
import settings
from settings import helper as called
SIZE = 4
class Here:
    rate = 0.1 * SIZE
    def half(self, x): return x / 2
class Twice:
    width = 4
    half = width / 2
    width *= 2
def twice(x): return Twice.width, Twice.half
def other(x): return x
def train(x, best=math.inf, kind=torch.float32, act=lambda v: v, limit=2 * SIZE):
    np.random.default_rng(0)
    return torch.tensor(settings.helper(x), dtype=kind) * Here.rate * act(limit)
def wraps(x): return called(x)
def sets(x):
    settings.SCALE = x
    settings.CONFIG["lr"] = x
    return settings.helper(x)
def seeds(x):
    torch.set_default_dtype(torch.float64)
    return called(x)
def precise(x):
    torch.set_float32_matmul_precision("high")
    return called(x)
def faster(x):
    torch.backends.cuda.matmul.allow_tf32 = True
    return called(x)
def after(x): return x
after.__wrapped__ = other
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, text in {"settings": SETTINGS, "study": STUDY, "deeper": "DEPTH = 1\n"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("study")
    for name in ("study", "settings", "deeper"):
        sys.modules.pop(name, None)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, str]], None]]:
    """Writes modules, name -> text, and imports them; they are gone after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded: list[str] = []

    def write(texts: dict[str, str]) -> None:
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
            loaded.append(name)
            importlib.import_module(name)

    yield write
    for name in loaded:
        sys.modules.pop(name, None)


def test_what_a_module_changes_by_itself_is_no_setting(study: Any) -> None:
    before = returned(study.train, x=[1])
    study.train(3)
    study.SIZE, study.Here.rate = 5, 0.7
    cell = returned(study.train, x=[1])
    assert "rate = 0.1 * SIZE" in before and "rate = 0.7" in cell and "limit=8" in cell and "best=float('inf')" in cell
    assert "from settings import helper" in returned(study.wraps, x=[1])
    study.sets(9)
    assert "settings.SCALE = x" in returned(study.sets, x=[1])


def test_an_attribute_that_a_class_binds_twice_stays_as_its_source_says(study: Any) -> None:
    found: dict[str, Any] = {}
    exec(returned(study.twice, x=[1]), found)
    assert found["result"] == (8, 2)
    study.Twice.width = 16
    with pytest.raises(SpecError, match=r"Twice\.width is 16 here, and 8 in the source of the class"):
        returned(study.twice, x=[1])


def test_a_class_of_a_cell_travels_as_it_is_here(store: Store) -> None:
    shell = make_shell()
    run(shell, "import functools\n@functools.total_ordering\nclass Other:\n    def __lt__(self, other): return True")
    run(shell, "class Own:\n    depth = 2\n    def half(self, x):\n        return x / self.depth\n")
    run(shell, "def f(x):\n    return Own().half(x), Other()\nOwn.depth = 8")
    run(
        shell, "import dataclasses\n@dataclasses.dataclass\nclass Sizes:\n    width: int = 3\ndef g(x): return Sizes(x)"
    )
    with pytest.raises(SpecError, match="the source of Sizes cannot be found; give it a method, or write it in a file"):
        returned(shell.user_ns["g"], x=[1])
    cell = returned(shell.user_ns["f"], x=[1])
    assert "    depth = 8\n" in cell and "@functools.total_ordering\nclass Other" in cell


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("study.settings.SCALE = 3", r"settings\.SCALE is 3 here, and 2 in settings\.py"),
        ("study.settings.TWICE = 3", r"settings\.TWICE is 3 here, and 4 in"),
        ("study.settings.CONFIG['lr'] = 0.3", r"settings\.CONFIG is {'lr': 0\.3} here"),
        ("study.settings.DEPTH = 9", r"settings\.DEPTH is 9 here, and 1 in deeper\.py"),
        ("sys.modules['deeper'].DEPTH = 9", r"deeper\.DEPTH is 9 here, and 1 in deeper\.py"),
        ("study.settings.helper = study.other", "helper was replaced here by other"),
        ("study.settings.helper = functools.wraps(study.settings.helper)(study.other)", "helper was replaced here by"),
        ("study.settings.Net.width = 64", r"settings\.Net\.width is 64 here"),
        ("study.settings.Net.forward = study.other", r"Net\.forward was replaced here by other"),
        ("study.Here.half = study.other", r"Here\.half was replaced here by other"),
        ("study.Here.rate = object()", r"Here\.rate is <object.* and 0\.4 in the source of the class"),
        (
            "monkeypatch.setattr(study.np.random, 'default_rng', study.other)",
            r"default_rng, which was replaced here by",
        ),
        ("study.train.__defaults__ = (1, 2, 3, 4, 5)", "other default arguments here than in its source"),
        ("study.train = study.after", "was wrapped in another function here"),
        ("study.torch.set_default_dtype(study.torch.float64)", r"is torch\.float64 here, and torch\.float32 where a"),
    ],
)
def test_what_was_changed_here_is_refused(study: Any, monkeypatch: pytest.MonkeyPatch, change: str, said: str) -> None:
    assert returned(study.train, x=[1])
    try:
        exec(change, {"study": study, "sys": sys, "functools": functools, "monkeypatch": monkeypatch})
        with pytest.raises(SpecError, match=said):
            returned(study.train, x=[1])
        if "dtype" in change:
            assert returned(study.seeds, x=[1])
    finally:
        study.torch.set_default_dtype(study.torch.float32)


def test_what_another_module_or_the_function_changes_is_no_setting(load: Callable[[dict[str, str]], None]) -> None:
    texts = {
        "shelf": "MODELS = {}\nFIRST = []\nCONFIG = {'lr': 1}\n",
        "models": "import shelf\nfrom shelf import FIRST as first\nshelf.MODELS['a'] = 1\nfirst.append(2)\n",
        "starts": "import models, shelf\ndef f(x):\n    shelf.CONFIG.update(lr=x)\n    return models, shelf\n"
        "def g(x): return models, shelf\n",
    }
    load(texts)
    module: Any = sys.modules["starts"]
    assert returned(module.g, x=[1])
    module.f(3)
    assert returned(module.f, x=[1])
    with pytest.raises(SpecError, match=r"shelf\.CONFIG is {'lr': 3} here"):
        returned(module.g, x=[1])


def test_a_module_that_was_loaded_again_is_the_same(
    load: Callable[[dict[str, str]], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = (
        "import enum\nclass Kind(enum.Enum):\n    A = 1\n"
        "class Net:\n    width = 4\n    def __init__(self): super().__init__()\n"
        "    @property\n    def half(self): return self.width\ndef helper(x, k=(1,)): return x\n"
    )
    texts = {"again": base, "takes": "from again import helper, Net, Kind\ndef f(x): return helper(Net(), Kind)\n"}
    texts["main_of_it"] = "import takes\nfrom again import Net, helper\ndef f(x): return takes.f(x), Net(), helper\n"
    load(texts)
    importlib.reload(sys.modules["again"])
    module: Any = sys.modules["main_of_it"]
    assert "from again import Net" in returned(module.f, x=[1])
    with monkeypatch.context() as patch, pytest.raises(SpecError, match=r"takes\.Net is .* here"):
        patch.setattr(sys.modules["takes"].Net, "width", 5)
        module.Net = sys.modules["again"].Net
        returned(module.f, x=[1])
    (tmp_path / "again.py").write_text(base.replace("return x", "return 2 * x  # another"))
    importlib.reload(sys.modules["again"])
    with pytest.raises(SpecError, match="takes.helper is .* here|uses helper, a function that exists only here"):
        returned(module.f, x=[1])


def test_either_setter_of_the_precision_does(study: Any) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        study.precise(1)
        assert returned(study.precise, x=[1]) and returned(study.faster, x=[1])
        with pytest.raises(SpecError, match=r"call torch\.set_float32_matmul_precision in wraps"):
            returned(study.wraps, x=[1])
    finally:
        torch.set_float32_matmul_precision(before)


WRAPPED = """
from sklearn.base import BaseEstimator, TransformerMixin
ADDED, width, unused = 2, object(), object()
class Shifted(TransformerMixin, BaseEstimator):
    width = 3
    twice = [2 * unused for unused in range(width)]
    def fit(self, X): return self
    def transform(self, X): return [x + ADDED for x in X]
    @property
    def both(self): return ADDED, self.twice
def train(x): return Shifted().transform([x]), Shifted().both
"""


def test_methods_that_a_base_class_wraps_travel(load: Callable[[dict[str, str]], None]) -> None:
    load({"wrapped": WRAPPED, "user_of_it": "import wrapped\ndef train(x): return wrapped.train(x)"})
    cell = returned(sys.modules["wrapped"].train, x=[1])
    found: dict[str, Any] = {}
    exec(cell.replace("x = None", "x = 1"), found)
    assert found["result"] == ([3], (2, [0, 2, 4])), "and names that the class binds are not those of its module"
    user: Any = sys.modules["user_of_it"]
    assert returned(user.train, x=[1])
    user.wrapped.Shifted.transform = functools.wraps(user.wrapped.Shifted.transform)(lambda self, X: X)
    with pytest.raises(SpecError, match=r"Shifted\.transform was replaced here"):
        returned(user.train, x=[1])


def test_a_function_inside_another_is_refused() -> None:
    outer = 3

    def inner(x: float) -> float:
        return x + outer

    with pytest.raises(SpecError, match="inner uses outer of the function around it"):
        returned(inner, x=[1])


def test_an_argument_that_nobody_knows_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"'metrc' is no argument of sweep\(\) .*did you mean metric"):
        hp.sweep(objective, {"x": [1]}, metrc="x", store=str(tmp_path))
    with pytest.raises(SpecError, match=r"or trials=N of hp.sweep"):
        hp.sweep(objective, {"x": "1..9"}, store=str(tmp_path))


@pytest.mark.timeout(300)
def test_a_sweep_of_a_function(shared_cluster: Store, capfd: Any, tmp_path: Path) -> None:
    place = str(shared_cluster.root)
    sweep = hp.sweep(objective, {"x": [1, 3, 5], "mode": ["plain", "fails"]}, store=place)
    assert [trial.state for trial in sweep.trials] == ["succeeded", "failed"] * 3
    assert [trial.value for trial in sweep.trials[::2]] == [5.0, 1.0, 5.0]
    assert sweep.best is not None and sweep.best.values == {"x": 3, "mode": "plain"} and sweep.best.value == 1.0
    assert len(sweep.jobs) == 6 and sweep.best.job == sweep.jobs[2]
    assert "best" in sweep.table().render() and "<table>" in sweep.table()._repr_html_()
    assert "the best so far" in capfd.readouterr().out
    assert Path(sweep.report(str(tmp_path / "page.html"))).exists()
    later = FunctionSweep.of(sweep.id, place)
    assert later.best == sweep.best and later.jobs == sweep.jobs and later.stop() == []
