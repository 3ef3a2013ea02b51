"""The agent's process. The job's variables come before long imports, since they may make it start again."""

from __future__ import annotations

import gc
import os
import sys

from ...storage.environment import begin_with, go_on_with
from ..context import Context


def main() -> int:
    """Entry point of ``python -m jupyter_hyperpod.runtime.agent.main``; everything is in the environment."""
    context = Context.from_environment()
    go_on_with(context.job, __name__, context.node)
    gc.disable()  # importing leaves little garbage, and looking for it took a tenth of the time
    from .libraries import import_ahead_of
    from .node_agent import Agent

    import_ahead_of(context.cell)
    gc.freeze()  # a collection in a worker would copy what is shared with its agent
    gc.enable()
    return Agent(context).run()


if __name__ == "__main__":
    begun = Context.from_environment()
    begin_with(begun.job, begun.node)
    code = main()
    sys.stdout.flush()
    os._exit(code)
