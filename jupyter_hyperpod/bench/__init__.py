"""Benchmarks: real clusters, real faults, an observer outside. Each returns its report as JSON.

Here is what a person measures on their own machine. The project's other benchmarks compare with other systems or need
rigs: they are found beside the package in a checkout, and an installed package does without them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

from ..control.option_parser import near_matches
from ..core.errors import SpecError

HERE = {
    # a second cell on a warm cluster: submit to the first line of its own output
    "latency": ".latency",
    # a node is killed: the survivors' stall, and the time until a spare is at full strength
    "recovery": ".recovery",
    # a node is cut off the network: the survivors' stall, and whether it ever commits a step (root)
    "partition": ".partition",
}
IN_A_CHECKOUT = (
    *("overhead", "elastic", "abuse", "chaos", "corruption", "soak", "components"),
    *("serving", "health", "slurm", "slurm-soak", "plan", "loading"),
)
CHECKOUT, BESIDE = Path(__file__).resolve().parents[2], "benchmarks"


def run(name: str, **options: Any) -> dict[str, Any]:
    """Run one benchmark and return its report (see `bench.report`). Raises SpecError for an unknown name or option."""
    module = _module(name)
    known = list(signature(module.run).parameters)
    for option in options.keys() - set(known):
        expected = f"expected one of {', '.join(known)}" if known else "it has none"
        raise SpecError(f"bench {name}: no option {option!r}; {expected}{near_matches(option, known)}")
    report: dict[str, Any] = module.run(**options)
    return report


def _module(name: str) -> ModuleType:
    """The module of a benchmark: one beside this package, else one of this package."""
    beside = _beside()
    if name in beside:
        return import_module(beside[name])
    if name in HERE:
        return import_module(HERE[name], __name__)
    if name in IN_A_CHECKOUT:
        raise SpecError(
            f"bench {name} is not part of an installed package, which has {', '.join(HERE)}: it is in the project's "
            "source, in the folder benchmarks/; get the source and run `make install` there"
        )
    raise SpecError(f"no benchmark named {name!r}; expected one of {', '.join(HERE | beside)}")


def _beside() -> dict[str, str]:
    """The benchmarks of a checkout, name -> module; none where this package is installed."""
    if not (CHECKOUT / BESIDE / "__init__.py").exists():
        return {}
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))
    modules: dict[str, str] = import_module(BESIDE).MODULES
    return modules
