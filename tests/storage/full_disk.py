"""Run code in a process whose files may not grow beyond a limit: every write past it fails, as on a full disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PRELUDE = """
import resource, signal, sys
from pathlib import Path
from jupyter_hyperpod.core.errors import StoreError
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import Store, write_private
here = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
"""


def run(code: str, directory: Path, limit_bytes: int) -> list[str]:
    """Run `code`, with `directory` as ``here``, and return the lines it prints. Fails where it raises."""
    # without byte code: an import after the limit is set would cache half of it
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", PRELUDE + code, str(directory), str(limit_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
