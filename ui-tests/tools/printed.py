"""Write the journal of a job whose two ranks have printed 30,000 lines: ``python printed.py STORE``. Prints its id.

The output is written by the product's own writer, most of it beside the journal. Nothing trains here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.journal_writer import JournalWriter
from jupyter_hyperpod.storage.output.output_relay import SHARE_VARIABLE, OutputRelay, StepLabel
from jupyter_hyperpod.storage.store import Store

LINES = 15_000  # of each rank


def main() -> None:
    """Write them, the workers' share of the journal is small."""
    os.environ[SHARE_VARIABLE] = "0.2"
    store = Store(Path(sys.argv[1])).prepare()
    job = store.create_job(JobSpec(name="printed", cell_digest=store.put_cell("print()\n"), nodes=2))
    with event_writer(job.events, "control") as events:
        events.append("job.submitted", {"id": job.id, "spec": job.spec().to_json()})
        events.append("job.state", {"state": "running", "reason": "2 of 2 nodes are ready"})
        journals = [JournalWriter(job.events, f"agent-node-{rank}") for rank in range(2)]
        relays = [OutputRelay(job, f"node-{rank}", journal) for rank, journal in enumerate(journals)]
        for number in range(LINES):
            for rank, relay in enumerate(relays):
                text = f"step {number:05} loss {8 / (number + 1):.4f} of rank {rank}\n"
                label = StepLabel(1, number + 1)
                relay.write(f"node-{rank}.a.7", rank, "stderr" if number % 500 == 7 else "stdout", text, label)
        for relay, journal in zip(relays, journals, strict=True):
            relay.close()
            journal.close()
        events.append("job.state", {"state": "succeeded", "reason": "the cell has ended on all ranks"})
    print(job.id)


if __name__ == "__main__":
    main()
