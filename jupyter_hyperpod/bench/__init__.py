"""Benchmarks that users run on their own machines, on a private cluster, with real faults and an outside observer.

Each benchmark returns its report as JSON. The project's other benchmarks compare with other systems or need rigs: they
are in the folder `benchmarks` beside this package in a checkout, and an installed package does without them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

from ..core.errors import HyperpodError, SpecError
from ..core.options import near_matches

HERE = {
    # a second cell on a warm cluster: submit to the first line of its own output
    "latency": ".latency",
    # a node is killed: the survivors' stall, and the time until a spare is at full strength
    "recovery": ".recovery",
    # a model of your own, from where it is into memory
    "model": ".model",
}
IN_A_CHECKOUT = (
    *("partition", "overhead", "elastic", "abuse", "chaos", "adoption", "corruption", "soak", "components"),
    *("serving", "health", "slurm", "slurm-soak", "takeover", "kubernetes", "kubernetes-soak", "plan", "loading"),
    *("journals", "printed", "scale", "strangers", "browsers", "browser", "data"),
)
CHECKOUT, BESIDE = Path(__file__).resolve().parents[2], "benchmarks"
ELSEWHERE = f"in the folder {BESIDE}/ of the project's source: get the source, run `make install` there and try again"


def run(name: str, **options: Any) -> dict[str, Any]:
    """Run one benchmark and return its report (see `bench.report`).

    Raises SpecError for an unknown name or option, HyperpodError where PyTorch is missing.
    """
    module = _module(name)
    known = list(signature(module.run).parameters)
    for option in options.keys() - set(known):
        if option == "peers" and not _beside():
            raise SpecError(f"bench {name}: what measures other systems is not installed; it is {ELSEWHERE}")
        expected = f"expected one of {', '.join(known)}" if known else "it has none"
        raise SpecError(f"bench {name}: no option {option!r}; {expected}{near_matches(option, known)}")
    report: dict[str, Any] = module.run(**options)
    return report


def _module(name: str) -> ModuleType:
    """The module of a benchmark: one beside this package, else one of this package."""
    places = HERE | _beside()
    if name not in places:
        if name in IN_A_CHECKOUT:
            raise SpecError(f"bench {name} is not installed, only {', '.join(HERE)}; it is {ELSEWHERE}")
        raise SpecError(f"no benchmark named {name!r}; expected one of {', '.join(places)}")
    if find_spec("torch") is None:
        raise HyperpodError("the benchmarks need torch: pip install 'jupyter_hyperpod[train]'")
    return import_module(places[name], __name__)


def _beside() -> dict[str, str]:
    """The benchmarks of a checkout, name -> module; none where this package is installed."""
    if not (CHECKOUT / BESIDE / "recovery" / "comparison.py").exists():  # another package may have that name
        return {}
    if sys.path[0] != str(CHECKOUT):
        sys.path.insert(0, str(CHECKOUT))  # before a package of the same name that somebody else has installed
    modules: dict[str, str] = import_module(BESIDE).MODULES
    return modules
