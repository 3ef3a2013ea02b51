"""Ask a deployment at a steady rate: ``python served.py`` starts a cluster, puts a tiny decoder at ``shared://tiny``
and says so; it asks the first deployment that answers, until its standard input ends."""

from __future__ import annotations

import sys
import threading

from benchmarks.serving.replicas import write_decoder
from jupyter_hyperpod.control import cluster, deploy
from jupyter_hyperpod.storage.store import Store
from tests.support.deployment_clients import Client, Drive

RATE, MOST_S, POLL_S = 20.0, 600.0, 0.2


def ask(store: Store, over: threading.Event) -> None:
    """Ask until `over`."""
    while not over.wait(POLL_S):
        if views := [view for view in deploy.deployments(store) if view["state"] == "running"]:
            client, body = Client.of(store, views[0]["id"]), {"max_tokens": 4}
            drive = Drive(client, "/v1/completions", lambda at: body | {"prompt": f"request {at}"}, RATE)
            threading.Thread(target=lambda: (over.wait(), drive.stop()), daemon=True).start()
            drive.run(MOST_S)
            return


def main() -> None:
    """Start, ask, leave."""
    store = Store().prepare()
    cluster.ensure_started(store, nodes=4, spares=0)
    cluster.wait_ready(store)
    if not (store.shared / "tiny").exists():  # another test of the same server has written it
        write_decoder(store.shared / "tiny", 2, 64)
    print("ready", flush=True)
    over = threading.Event()
    asking = threading.Thread(target=ask, args=(store, over))
    asking.start()
    sys.stdin.read()
    over.set()
    asking.join()


if __name__ == "__main__":
    main()
