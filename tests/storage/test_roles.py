"""Each verb of the command line, tried by each role on a shared store: who may, and how the others are refused."""

from __future__ import annotations

import argparse
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import prometheus_client.core
import pytest

from jupyter_hyperpod.cli import main, parser, terminal, verbs
from jupyter_hyperpod.control.schedules import cron_times, firing, schedule_table
from jupyter_hyperpod.control.sweeps import sweep_page
from jupyter_hyperpod.control.sweeps.plan import SweepPlan
from jupyter_hyperpod.core.member_commands import FAULTS_OF_MEMBERS
from jupyter_hyperpod.core.spec import TrialSpec
from jupyter_hyperpod.planner import face
from jupyter_hyperpod.policy.sweeps import space
from jupyter_hyperpod.runtime import audit
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import JobStore, Store
from tests.storage.people import OPERATOR, OWNER, READER, READERS, STRANGER, as_user, make_job, second

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")

# before a child becomes a user who may not read them
LOADED = (audit, cron_times, face, firing, prometheus_client.core, schedule_table, sweep_page, terminal)
FUNCTIONS, OPTIONS = [verbs.function_of(verb) for verb in verbs.VERBS], parser.build_parser()
JOURNAL = Path(__file__).parents[1] / "journals" / "happy.jsonl"
SAMPLES = ("job.state", "generation.formed", "session.opened", "step.committed")

SWEEP = "tried-aaaaaaaa"
ENDED: list[tuple[str, dict[str, Any]]] = [
    ("metric.logged", {"step": 1, "values": {"loss": 0.5}}),
    ("job.state", {"state": "succeeded", "reason": ""}),
]
MEMBERS = {OWNER, OPERATOR, READER}
OPERATORS = {OWNER, OPERATOR}
NOBODY_ELSE = set[int]()  # the owner's own verbs are tried by all others only: for the owner they have their own tests
ALL = {OWNER, OPERATOR, READER, STRANGER}

# JOB, FILE, SWEEP and NODE stand for those of the test, REPORT for a file that everybody may write, NEW for a new one
TABLE: dict[str, set[int]] = {
    **dict.fromkeys(
        (
            "list",
            "describe JOB",
            "logs JOB",
            "events JOB",
            "audit JOB",
            "report JOB -o REPORT",
            "notebook JOB -o NEW",
            "compare first second",
            "metrics",
            "nodes list",
            "nodes describe NODE",
            "cluster status",
            "serve",
            "share",
            "plan --calibrate JOB",
            "sweep list",
            "sweep show SWEEP",
            "sweep follow SWEEP",
            "sweep report SWEEP -o REPORT",
        ),
        MEMBERS,
    ),
    **dict.fromkeys(("stop JOB", "scale JOB 2", "sweep stop SWEEP"), OPERATORS),
    **dict.fromkeys(
        (f"fault {kind} --job JOB --rank 0" for kind in FAULTS_OF_MEMBERS if kind != "partition"), OPERATORS
    ),
    **dict.fromkeys(
        (
            "submit FILE",
            "rerun JOB",
            "sweep resume SWEEP",
            "sweep delete SWEEP",
            "submit FILE --schedule @daily",
            "schedule list",
            *(f"schedule {action} nightly" for action in ("show", "pause", "resume", "run", "delete")),
            "promote JOB --backend slurm --dry-run",
            "delete JOB",
            "tag JOB --add mine",
            *(f"env {action} JOB" for action in ("show", "diff", "lock", "replay")),
            "setup image JOB -o REPORT",
            "prune --older-than 0s",
            f"share {READERS}",
            "share --private",
            "fault nan --job JOB --rank 0",
            "fault flip-parameter --job JOB --rank 0",
            "cluster start",
            "cluster stop",
            "cluster heal",
            *(f"nodes {action} NODE" for action in ("drain", "reboot", "replace", "resume")),
            "nodes update NODE --reason Action:Reboot",
            "health check NODE",
            "health recovery",
            "health recovery None",
            "health inject NODE 74",
            "health agent NODE",
            "validate",
            "serve FILE --handler FILE",
            "mount list",
            "mount add data --path /tmp",
            *(
                f"mount {action} data"
                for action in ("remove", "attach", "check", "files", "import", "export", "release")
            ),
            "mount drivers",
            "umount data",
            "ls",
            "cp shared://data/a shared://data/b",
            "df",
        ),
        NOBODY_ELSE,
    ),
}
ELSEWHERE = {
    "bench": "it measures in stores that it makes",
    "doctor": "it looks at an installation; its row of the store is tried in tests/test_doctor.py",
    "setup check": "it asks a Kubernetes cluster, where it may be asked",
    "setup role": "it prints a part of the product",
    "setup eks": "it writes files that the person names",
    "setup cluster": "it is another name of `setup eks`",
    "setup chart": "it writes files that the person names",
    "setup apply": "it changes a Kubernetes cluster, where it may",
    "setup remove": "it changes a Kubernetes cluster, where it may",
    "kept list": "it asks a Kubernetes cluster, where it may be asked",
    "kept let-go": "it changes a Kubernetes cluster, where it may",
    "list-cluster": "it reads the kubeconfig, or asks AWS",
    "describe-cluster": "it asks AWS",
    "set-cluster-context": "it writes the kubeconfig of who runs it",
    "get-cluster-context": "it reads the kubeconfig",
    "recipe list": "recipes are part of the product",
    "recipe show": "recipes are part of the product",
    "recipe render": "recipes are part of the product",
    "model shard": "it reads and writes files that the person names",
    "model merge": "it reads and writes files that the person names",
    "model verify": "it reads files that the person names",
    "model manifest": "it reads and writes files that the person names",
    "model load": "it reads files that the person names",
}


@dataclass(frozen=True)
class Answer:
    """What a command line returned and printed."""

    status: int
    out: str
    err: str


def ask(uid: int, root: Path, words: Sequence[str]) -> Answer:
    """Run a command line as a user."""

    def act() -> list[Any]:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            try:
                status = main([*words, "--store", str(root)])
            except SystemExit as error:  # bad use
                status = error.code
        return [status, out.getvalue(), err.getvalue()]

    answer = as_user(uid, act)
    assert isinstance(answer, list), (uid, words, answer)
    return Answer(*answer)


def verbs_of(command: argparse.ArgumentParser) -> Iterator[str]:
    """Each verb of a command line; with its action, where it has several."""
    (choice,) = (action for action in command._actions if isinstance(action, argparse._SubParsersAction))
    for name, verb in choice.choices.items():
        actions = [action.choices for action in verb._actions if action.dest == "action"]
        yield from (f"{name} {action}" for action in actions[0] or ()) if actions else (name,)


def test_each_verb_has_a_row() -> None:
    """A new verb has to be put into the table, or among the few that have nothing to do with a store."""
    known = {verb for verb in verbs_of(parser.build_parser()) if verb not in parser.ALIASES}
    rows = {" ".join(row.split()[:count]) for row in TABLE for count in (1, 2)}
    assert "nodes drain" in known and "stop" in known
    assert known - rows - ELSEWHERE.keys() == set(), "these verbs are in no row of the table"
    assert ELSEWHERE.keys() - known == set(), "there are no such verbs any more"
    assert ELSEWHERE.keys() & rows == set(), "these are in the table: they need no excuse"


@pytest.mark.parametrize("which", ["first", "second"])
@pytest.mark.parametrize("row", TABLE)
def test_each_verb_for_each_role(shared: JobStore, which: str, row: str) -> None:
    root, may = shared.path.parent.parent, TABLE[row]
    file = root.parent / "cell.py"
    file.write_text("def load(model): ...\ndef predict(model, inputs): ...\n")
    file.chmod(0o644)
    job = shared if which == "first" else second(shared)
    as_user(OWNER, lambda: run_nowhere(root, job))
    (place := root.parent / "reports").mkdir(exist_ok=True)
    place.chmod(0o777)
    if "SWEEP" in row:
        as_user(OWNER, lambda: try_once(Store(root), ends=row.startswith("sweep follow")))
    stand_for = {"SWEEP": SWEEP, "JOB": job.id, "FILE": str(file), "NODE": "node-1", "REPORT": str(place / "run.html")}
    words = [stand_for.get(word, word) for word in row.split()]
    before = modes(root)
    for uid in (STRANGER, READER, OPERATOR, *((OWNER,) if may else ())):
        answer = ask(uid, root, [str(place / f"{uid}.ipynb") if word == "NEW" else word for word in words])
        if uid in may:
            assert answer.status == 0 and "error" not in answer.err, (uid, row, answer)
            assert answer.err == "" or row == "logs JOB", "only logs has to say that there is nothing"
        else:
            refused_in_a_sentence(answer)
    if not may:
        assert modes(root) == before


def refused_in_a_sentence(answer: Answer) -> None:
    """Without result, traceback or the number of an error; with whom the person may ask, or what the role may do."""
    assert answer.status in (1, 2) and answer.out == "", answer
    assert answer.err.startswith("error: ") and answer.err.count("\n") == 1, answer
    assert not any(word in answer.err for word in ("Traceback", "Errno", "Error:", "ermission denied")), answer
    assert f"uid-{OWNER}" in answer.err or "members of a group may" in answer.err, answer


def try_once(store: Store, ends: bool) -> None:
    """A sweep with one trial, which nobody runs; ``ends``: what its journal says if it has ended."""
    plan = SweepPlan.make(space.parse(["x=1"])).to_json()
    job = store.job(make_job(store, "tried-1", TrialSpec(SWEEP, 1, {"x": 1}, plan)))
    with event_writer(job.events, "coordinator") as journal:
        for kind, data in ENDED if ends else ():
            journal.append(kind, data)


def run_nowhere(root: Path, job: JobStore) -> None:
    """What the journals of a running job and its cluster say, while no process is there."""
    with event_writer(job.events, "coordinator") as journal:
        for line in JOURNAL.read_text().splitlines()[1:9]:
            event = json.loads(line)
            assert event["kind"] in SAMPLES
            journal.append(event["kind"], event["data"])
    with event_writer(Store(root).cluster_events, "supervisor") as journal:
        journal.append("cluster.state", {"state": "running", "reason": "", "nodes": ["node-1", "node-2"], "pid": 1})
        for name in ("node-1", "node-2"):
            state = {"node": name, "state": "busy", "reason": "", "spare": False, "slots": 1, "used": 1}
            journal.append("node.state", state | {"jobs": [job.id], "pid": 1, "incarnation": 1})


def modes(root: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_mode for path in (root, *root.rglob("*"))}


def test_a_table_without_a_verb_fails() -> None:
    """The verbs are those of the parser, also the hidden and the new ones."""
    command = argparse.ArgumentParser()
    group = command.add_subparsers()
    group.add_parser("new")
    group.add_parser("other").add_argument("action", choices=("one", "two"))
    assert list(verbs_of(command)) == ["new", "other one", "other two"]
