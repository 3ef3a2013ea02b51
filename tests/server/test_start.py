"""The start of a Jupyter server: what the extension imports before anybody asks for anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from jupyter_hyperpod.storage.store import ENVIRONMENT_VARIABLE, Store

# A module more is paid for by each start of each person's server: rather import it in the function that needs it.
MAY = {
    "": "backends control core server storage system",
    "control": "cluster clusters clusters.owner clusters.shape remote remote.followed schedules schedules.waking",
    "core": "backend_options backends elastic env_references errors events incidents kept member_commands mount_spec "
    "names options people rules spec units views vocabulary",
    "server": "base contents contract drive errors extension garbage handlers listing retention run_handlers "
    "schedule_handlers services stream tailer topic uploads",
    "storage": "access folded host_lease journal member_files room segments sharing store",
    "system": "json_lines locks portable users variables",
}
HEAVY = {"torch", "numpy", "fsspec", "botocore", "cryptography", "jupyter_scheduler"}
START = """
import asyncio, sys
from jupyter_server.serverapp import ServerApp

async def main():
    extensions = {"jupyter_hyperpod": True}
    app = ServerApp(open_browser=False, token="t", allow_root=True, port=0, jpserver_extensions=extensions)
    app.initialize(argv=[], find_extensions=False, new_httpserver=True)
    await app.extension_manager.start_all_extensions()
    extension = app.extension_manager.extension_points["jupyter_hyperpod"].app
    extension.requests.shutdown(wait=True)
    print("imported", *sys.modules)
    extension.tailer.stop()
    app.http_server.stop()

asyncio.run(main())
"""


def test_the_server_imports_little_at_its_start(store: Store, tmp_path: Path) -> None:
    places = {name: str(tmp_path) for name in ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR")}
    surroundings = {**os.environ, **places, ENVIRONMENT_VARIABLE: str(store.root)}
    command = [sys.executable, "-c", START]
    done = subprocess.run(command, env=surroundings, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    imported = {*next(line for line in done.stdout.splitlines() if line.startswith("imported")).split()[1:]}
    name = "jupyter_hyperpod"
    may = {name, *(".".join(filter(None, (name, part, one))) for part, names in MAY.items() for one in names.split())}
    assert {one for one in imported if one.partition(".")[0] == name} == may
    assert imported & HEAVY == set()
