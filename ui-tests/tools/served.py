"""Serve a tiny decoder and ask it at a steady rate: ``python served.py`` prints the deployment's id, and goes on asking
until its standard input ends."""

from __future__ import annotations

import sys
import threading

from jupyter_hyperpod.bench.clients import Client, Drive
from jupyter_hyperpod.bench.serving import write_decoder
from jupyter_hyperpod.control import cluster, deploy
from jupyter_hyperpod.storage.store import Store

RATE, MOST_S = 20.0, 600.0


def main() -> None:
    """Serve, ask, leave."""
    store = Store().prepare()
    cluster.ensure_started(store, nodes=4, spares=0)
    cluster.wait_ready(store)
    model = write_decoder(store, "tiny", 2, 64)
    job_id = deploy.serve(store, str(model), name="chat", replicas="2:4")
    deploy.wait_ready(store, job_id)
    print(job_id, flush=True)
    body = {"max_tokens": 4}
    drive = Drive(Client.of(store, job_id), "/v1/completions", lambda at: body | {"prompt": f"request {at}"}, RATE)
    asking = threading.Thread(target=drive.run, args=(MOST_S,))
    asking.start()
    sys.stdin.read()
    drive.stop()
    asking.join()


if __name__ == "__main__":
    main()
