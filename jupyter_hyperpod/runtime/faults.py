"""Faults that can be injected: the same injector serves tests, benchmarks, `%hyperpod fault` and demos."""

from __future__ import annotations

import signal

SIGNALS = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP}
