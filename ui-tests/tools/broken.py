"""Write one job for every part of the screen, each with one event, or a snapshot, that this part cannot draw.

``python broken.py STORE``

The events have the right names and the wrong types, as those of another version may have. Prints the jobs' ids by part.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from jupyter_hyperpod.core.events import decode_event
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.folded import FoldedJournal
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import Store

JOURNAL = Path(__file__).parents[2] / "tests" / "journals" / "kill.jsonl"
STRANGE = {"no": "text"}
WHERE = {"member": "node-1.a", "node": "node-1", "rank": 0}
ERROR = WHERE | {"type": "ValueError", "message": "no", "traceback": ["ValueError: no"]}
RULE = {"rule": "loss", "state": "HEALTHY", "member": "", "rank": None, "value": None, "text": "fine"}
STAGE = {"incident": 2, "stage": "detected", "node": "node-2", "rank": 1, "rung": None, "text": "gone"}
# part -> the event that it cannot draw
BREAKS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("warning.raised", {"text": "nothing is wrong with this one"}),
    "head": ("job.submitted", {"id": "", "spec": {"name": STRANGE, "backend": "local", "nodes": 4}}),
    "error": ("user.error", ERROR | {"type": STRANGE}),
    "figures": ("warning.raised", {"text": "no event breaks them"}),  # a snapshot does
    "incidents": ("incident.stage", STAGE | {"cause": STRANGE}),
    "rules": ("rule.state", RULE | {"text": STRANGE}),
    "decisions": ("decision.made", {"policy": "scaling", "value": 1, "reason": STRANGE}),
    "output": ("output.written", WHERE | {"stream": "stdout", "text": 5}),
}


def main() -> None:
    store = Store(Path(sys.argv[1])).prepare()
    ids = {}
    for part, (kind, data) in BREAKS.items():
        spec = JobSpec(f"broken-{part}", store.put_cell("# recorded\n"), nodes=4)
        job = store.create_job(spec)
        with event_writer(job.events, "control") as journal:
            journal.append("job.submitted", {"id": job.id, "spec": spec.to_json()})
            for line in JOURNAL.read_bytes().splitlines():
                event = decode_event(line)
                if event.kind not in ("job.submitted", "session.closed") and event.data.get("state") != "succeeded":
                    journal.append(event.kind, dict(event.data))
            journal.append("output.written", WHERE | {"stream": "stdout", "text": "hello\n"})
            journal.append("rule.state", RULE)
            if part != "error":
                journal.append("user.error", ERROR)
            journal.append(kind, data)
            journal.append("job.state", {"state": "failed", "reason": "ValueError"})
        if part == "figures":
            folded = FoldedJournal(job)
            folded.catch_up()["loss"] = "2.0"
            folded.save()
        ids[part] = job.id
    print(json.dumps(ids))


if __name__ == "__main__":
    main()
