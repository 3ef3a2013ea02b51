"""Every verb of the command line, on a real cluster, and what it says to bad use."""

from __future__ import annotations

import json
import os
import pty
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.cli.parser import build_parser
from jupyter_hyperpod.control import cluster, jobs
from jupyter_hyperpod.control.clusters.owner import owner_lives
from jupyter_hyperpod.notebook.arguments import VERB_HELP
from jupyter_hyperpod.storage.store import Store
from tests.cells import FILLS_A_LIST, train

Run = Callable[..., subprocess.CompletedProcess[str]]
Eventually = Callable[..., Any]


def command(store: Store, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "jupyter_hyperpod", "--store", str(store.root), *arguments]


def run(store: Store, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(store, *arguments), capture_output=True, text=True, timeout=60)


def ask(store: Store, *arguments: str, status: int = 0) -> Any:
    done = run(store, *arguments, "--json")
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def write(directory: Path, source: str, name: str = "cell.py") -> str:
    path = directory / name
    path.write_text(source)
    return str(path)


def notebook(directory: Path, *cells: str, language: str = "python") -> str:
    content = {
        "cells": [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells],
        "metadata": {"language_info": {"name": language}},
        "nbformat": 4,
    }
    return write(directory, json.dumps(content), "book.ipynb")


@pytest.fixture
def training(shared_cluster: Store, tmp_path: Path, eventually: Eventually) -> Iterator[str]:
    """The id of a job that trains on two of up to three nodes until the test is over."""
    path = write(tmp_path, train())
    job_id = ask(shared_cluster, "submit", path, "--nodes", "2", "--elastic", "1:3", "--name", "training")["id"]
    eventually(lambda: jobs.job_view(shared_cluster, job_id)["step"] >= 3, 60)
    yield job_id
    if jobs.job_view(shared_cluster, job_id)["state"] not in ("succeeded", "failed", "stopped"):
        jobs.stop(shared_cluster, job_id)
        jobs.wait(shared_cluster, job_id, timeout_s=60)


# ---- jobs ---------------------------------------------------------------------------------------------------


def test_submit_follow_prints_every_rank_and_succeeds(shared_cluster: Store, tmp_path: Path) -> None:
    path = write(tmp_path, "import os\nprint('hello', os.environ['RANK'], os.environ['GREETING'])\n")
    done = run(shared_cluster, "submit", path, "--nodes", "2", "--env", "GREETING=a=b", "--follow")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[rank 0] hello 0 a=b", "[rank 1] hello 1 a=b"]


def test_a_file_gets_its_arguments_and_its_neighbours_as_python_gives_them(
    shared_cluster: Store, tmp_path: Path
) -> None:
    code = (
        "import sys, beside\nprint(sys.argv[1:], beside.VALUE, __name__, sys.argv[0] == __file__, __file__)\nsys.argv"
    )
    folder = tmp_path / "code"
    folder.mkdir()
    path = write(folder, code, "trains.py")
    write(folder, "VALUE = 42\n", "beside.py")
    words = ["--lr", "0.1", "--", "--follow", "a b"]
    alone = subprocess.run([sys.executable, path, *words], capture_output=True, text=True, check=True).stdout
    done = run(shared_cluster, "submit", path, "--follow", "--", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout == alone
    assert "['--lr', '0.1', '--', '--follow', 'a b'] 42 __main__ True" in alone
    assert run(shared_cluster, "submit", path, "stray").returncode == 2


def test_follow_shows_a_warning_of_the_run_once(shared_cluster: Store, tmp_path: Path) -> None:
    done = run(shared_cluster, "submit", write(tmp_path, FILLS_A_LIST), "--nodes", "2", "--name", "fills", "--follow")
    assert done.returncode == 0 and done.stderr.count("warning: each member has another value of sizes") == 1
    again = run(shared_cluster, "logs", "fills", "--json")
    assert "each member" not in again.stderr, "scripts read events"


def test_submit_json_then_describe_logs_and_events(shared_cluster: Store, tmp_path: Path) -> None:
    path = write(tmp_path, "print('one')\nprint('two')\n", "My first run.py")
    job_id = ask(shared_cluster, "submit", path)["id"]
    assert job_id.startswith("My-first-run-")
    jobs.wait(shared_cluster, job_id, timeout_s=60)
    view = ask(shared_cluster, "describe", job_id)
    assert (view["id"], view["state"]) == (job_id, "succeeded")
    assert run(shared_cluster, "logs", job_id).stdout == "one\ntwo\n"
    assert run(shared_cluster, "logs", "My-first-run", "--follow").stdout == "one\ntwo\n"
    events = [json.loads(line) for line in run(shared_cluster, "events", job_id, "--json").stdout.splitlines()]
    assert [event["kind"] for event in events][0] == "job.submitted"
    assert {"writer", "seq", "time_s", "kind", "data"} == set(events[0])
    prose = run(shared_cluster, "events", job_id, "--kind", "job.state").stdout
    assert "succeeded" in prose and "job.submitted" not in prose
    described = run(shared_cluster, "describe", job_id).stdout
    assert job_id in described and "succeeded" in described


def test_audit_of_a_job_without_a_session_proves_nothing(shared_cluster: Store, tmp_path: Path) -> None:
    job_id = ask(shared_cluster, "submit", write(tmp_path, "print(1)\n"))["id"]
    jobs.wait(shared_cluster, job_id, timeout_s=60)
    done = run(shared_cluster, "audit", job_id)
    assert done.returncode == 1 and "nothing to audit" in done.stdout


def test_list_shows_newest_first_as_table_and_as_json(shared_cluster: Store, tmp_path: Path) -> None:
    path = write(tmp_path, "print(1)\n")
    ids = [ask(shared_cluster, "submit", path, "--name", name)["id"] for name in ("older", "newer")]
    listed = [view["id"] for view in ask(shared_cluster, "list")]
    assert listed.index(ids[1]) < listed.index(ids[0])
    table = run(shared_cluster, "list").stdout
    assert table.splitlines()[0].split()[:3] == ["ID", "STATE", "NODES"]
    assert "\x1b" not in table
    for job_id in ids:
        jobs.wait(shared_cluster, job_id, timeout_s=60)


def test_users_error_is_shown_with_its_line_and_is_a_failure(shared_cluster: Store, tmp_path: Path) -> None:
    path = write(tmp_path, "def f():\n    return 1 / 0\nf()\n")
    done = run(shared_cluster, "submit", path, "--follow", "--name", "divides")
    assert done.returncode == 1
    assert "line 2, in f" in done.stderr and "ZeroDivisionError: division by zero" in done.stderr
    assert "jupyter_hyperpod" not in done.stderr
    for more in ((), ("--follow",)):
        assert "ZeroDivisionError: division by zero" in run(shared_cluster, "logs", "divides", *more).stderr


def test_notebook_runs_as_its_code_cells(shared_cluster: Store, tmp_path: Path) -> None:
    path = notebook(tmp_path, "%load_ext jupyter_hyperpod\nx = 1", "", "%%hyperpod --nodes 4\nprint('x is', x)")
    done = run(shared_cluster, "submit", path, "--follow")
    assert (done.returncode, done.stdout) == (0, "x is 1\n"), done.stderr


def test_rerun_runs_the_same_code_again(shared_cluster: Store, tmp_path: Path) -> None:
    first = ask(shared_cluster, "submit", write(tmp_path, "print('again')\n"), "--seed", "7")["id"]
    jobs.wait(shared_cluster, first, timeout_s=60)
    done = run(shared_cluster, "rerun", first, "--name", "second", "--follow")
    assert (done.returncode, done.stdout) == (0, "again\n"), done.stderr
    second = next(view["id"] for view in ask(shared_cluster, "list") if view["name"] == "second")
    assert shared_cluster.job(second).spec().seed == 7


def test_scale_fault_and_stop_reach_a_running_job(shared_cluster: Store, training: str, eventually: Eventually) -> None:
    def view() -> dict[str, Any]:
        return jobs.job_view(shared_cluster, training)

    assert ask(shared_cluster, "scale", training, "3")["target"] == 3
    eventually(lambda: view()["world_size"] == 3, 60)
    done = run(shared_cluster, "fault", "kill", "--job", training, "--rank", "1", "--after-step", "5")
    assert done.returncode == 0, done.stderr
    incident = eventually(lambda: next((i for i in view()["incidents"] if i["resumed_s"]), None), 60)
    assert incident["stages"]
    assert "RESUMED IN" in run(shared_cluster, "describe", training).stdout
    audited = ask(shared_cluster, "audit", training)
    assert audited["sound"] and audited["steps"] >= 5 and audited["problems"] == []
    assert "counts exactly once" in run(shared_cluster, "audit", "training").stdout
    assert run(shared_cluster, "stop", "training").returncode == 0
    assert jobs.wait(shared_cluster, training, timeout_s=60)["state"] == "stopped"
    again = run(shared_cluster, "stop", training)
    assert again.returncode == 0 and "already ended" in again.stdout
    assert run(shared_cluster, "scale", training, "2").returncode == 2
    assert run(shared_cluster, "fault", "kill", "--job", training, "--node", "node-1").returncode == 2


def test_bad_commands_to_a_running_job_leave_it_running(shared_cluster: Store, training: str) -> None:
    for arguments, said in (
        (("scale", training, "9"), "outside the range 1:3"),
        (("fault", "kill", "--job", training, "--rank", "7"), "no rank 7"),
        (("fault", "kill", "--job", training, "--node", "node-99"), "no node 'node-99'"),
    ):
        done = run(shared_cluster, *arguments)
        assert done.returncode == 2 and said in done.stderr, done.stderr
    assert jobs.job_view(shared_cluster, training)["state"] == "running"


def test_interrupt_detaches_and_the_job_goes_on(shared_cluster: Store, training: str, eventually: Eventually) -> None:
    for verb in ("logs", "events"):
        follower = subprocess.Popen(
            command(shared_cluster, verb, training, "--follow"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # a shell's background job, which this run may be, starts everything with Ctrl-C ignored
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert follower.stdout is not None
        assert follower.stdout.readline()
        follower.send_signal(signal.SIGINT)
        _, said = follower.communicate(timeout=60)
        assert follower.returncode == 0, said
        assert "detached" in said and training in said and "Traceback" not in said
    before = jobs.job_view(shared_cluster, training)["step"]
    eventually(lambda: jobs.job_view(shared_cluster, training)["step"] > before)


def test_logs_of_one_rank(shared_cluster: Store, tmp_path: Path) -> None:
    path = write(tmp_path, "import os, sys\nprint('out', os.environ['RANK'])\nprint('err', file=sys.stderr)\n")
    job_id = ask(shared_cluster, "submit", path, "--nodes", "3")["id"]
    jobs.wait(shared_cluster, job_id, timeout_s=60)
    done = run(shared_cluster, "logs", job_id, "--rank", "2")
    assert done.stdout == "[rank 2] out 2\n" and done.stderr == "[rank 2] err\n"
    lines = run(shared_cluster, "logs", job_id, "--rank", "2", "--json").stdout.splitlines()
    assert {json.loads(line)["data"]["rank"] for line in lines} == {2}
    for more in ((), ("--follow",), ("--json",)):
        done = run(shared_cluster, "logs", job_id, "--rank", "7", *more)
        assert done.returncode == 2 and done.stdout == ""
        assert f"{job_id} has no rank 7; its ranks are 0, 1 and 2" in done.stderr


STEPS_THAT_PRINT = """
import torch, jupyter_hyperpod as hp
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.ones(2), torch.ones(1))] * 8
with hp.Session(model, optimizer, data, global_batch=4, micro_batch=2) as session:
    for step in session.steps(6):
        step.run(lambda batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1]))
        print("after step", step.number, flush=True)
print("done")
"""


def test_logs_of_some_lines(shared_cluster: Store, tmp_path: Path) -> None:
    job_id = ask(shared_cluster, "submit", write(tmp_path, STEPS_THAT_PRINT), "--nodes", "1")["id"]
    jobs.wait(shared_cluster, job_id, timeout_s=60)

    def shown(*options: str) -> list[str]:
        done = run(shared_cluster, "logs", job_id, *options)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    whole = shown()
    assert whole == [*(f"after step {number}" for number in range(1, 7)), "done"]
    assert shown("--tail", "2") == whole[-2:]
    assert shown("--follow", "--tail", "3") == whole[-3:]
    assert shown("--grep", "step [23]", "--tail", "5") == whole[1:3]
    assert shown("--since", "1d") == whole and shown("--until", "1d") == []
    assert "after step 3" in shown("--steps", "3:4") and "after step 6" not in shown("--steps", "3:4")
    (line,) = shown("--grep", "done", "--json")
    assert json.loads(line)["data"]["text"].endswith("done\n")
    for options, sentence in (
        (("--steps", "9"), "the job has computed 6 steps"),
        (("--steps", "1", "--since", "1h"), "either of time"),
        (("--follow", "--until", "1h"), "--follow shows what comes"),
        (("--tail", "0"), "--tail is 0"),
    ):
        done = run(shared_cluster, "logs", job_id, *options)
        assert done.returncode == 2 and sentence in done.stderr


# ---- the cluster --------------------------------------------------------------------------------------------


def test_a_cluster_that_is_stopped_says_which_jobs_end_with_it(
    store: Store, tmp_path: Path, eventually: Eventually
) -> None:
    ask(store, "cluster", "start", "--nodes", "1", "--spares", "0")
    done = ask(store, "submit", write(tmp_path, "pass\n"), "--nodes", "1")["id"]
    eventually(lambda: jobs.job_view(store, done)["state"] == "succeeded", 60)
    job_id = ask(store, "submit", write(tmp_path, "import time\ntime.sleep(600)\n"), "--nodes", "1")["id"]
    eventually(lambda: jobs.job_view(store, job_id)["state"] == "running", 60)
    said = run(store, "cluster", "stop").stderr
    assert f"1 job ended with it: {job_id}" in said and done not in said


def test_on_a_terminal_a_cluster_whose_jobs_run_ends_only_where_a_person_agrees(store: Store, tmp_path: Path) -> None:
    job = ask(store, "submit", write(tmp_path, "import time; time.sleep(600)"), "--nodes", "1", "--spares", "0")["id"]
    question = f"1 job has not ended: {job}. Stop the cluster, and end them? [y/N] "
    for typed in ("\n", "n\n", "stop\n"):
        shown = on_a_terminal(store, {}, "cluster", "stop", typed=typed)
        assert question in shown and "nothing was stopped" in shown, shown
    assert jobs.job_view(store, job)["state"] in ("pending", "running")
    shown = on_a_terminal(store, {}, "cluster", "stop", typed="y\n")
    assert question in shown and f"1 job ended with it: {job}" in shown, shown
    assert jobs.job_view(store, job)["state"] == "stopped"
    other = ask(store, "submit", write(tmp_path, "import time; time.sleep(600)"), "--nodes", "1", "--spares", "0")["id"]
    shown = on_a_terminal(store, {}, "cluster", "stop", "--yes", typed="n\n")
    assert "[y/N]" not in shown and f"1 job ended with it: {other}" in shown, shown
    assert run(store, "cluster", "start", "--yes").returncode == 2


def test_cluster_start_status_nodes_and_stop(store: Store) -> None:
    try:
        view = ask(store, "cluster", "start", "--nodes", "2", "--spares", "0")
        assert view["state"] == "running"
        assert [node["node"] for node in view["nodes"]] == ["node-1", "node-2"]
        assert "2 nodes up" in run(store, "cluster", "status").stdout
        assert [node["state"] for node in ask(store, "nodes")["nodes"]] == ["idle", "idle"]
        assert "node-2" in run(store, "nodes").stdout
        other = run(store, "cluster", "start", "--nodes", "3")
        assert other.returncode == 2 and "2 nodes runs already" in other.stderr
    finally:
        assert ask(store, "cluster", "stop")["state"] == "stopped"
    assert run(store, "cluster", "stop").returncode == 0
    assert ask(store, "nodes")["nodes"] == []


@pytest.mark.parametrize("end", ["signal", "stop"])
def test_a_cluster_in_the_foreground(store: Store, end: str, eventually: Eventually) -> None:
    start = command(store, "cluster", "start", "--foreground", "--nodes", "1", "--spares", "0")
    with subprocess.Popen(start, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually(lambda: cluster.connectable(store) and cluster.status(store)["state"] == "running", 60)
            cluster.wait_ready(store)
            if end == "signal":
                process.send_signal(signal.SIGTERM)
            else:
                assert ask(store, "cluster", "stop")["state"] == "stopped"
            said = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode == (75 if end == "signal" else 0), said
    assert ("SIGTERM: this host has left" if end == "signal" else "the cluster has ended") in said
    assert not cluster.connectable(store) and not owner_lives(store)


# ---- bad use ------------------------------------------------------------------------------------------------

BAD_SUBMISSIONS = {
    "unknown option": (["--nods", "3"], "unrecognized arguments: --nods"),
    "range upside down": (["--elastic", "5:2"], "elastic range 5:2 is impossible"),
    "range without colon": (["--elastic", "4"], "not of the form MIN:MAX"),
    "nodes outside the range": (["--elastic", "2:3", "--nodes", "4"], "outside the elastic range 2:3"),
    "no nodes": (["--nodes", "0"], "nodes is 0"),
    "not a number": (["--nodes", "two"], "invalid int value: 'two'"),
    "name with a path": (["--name", "../evil"], "job name '../evil' is not allowed"),
    "backend": (["--backend", "cloud"], "invalid choice: 'cloud'"),
    "backend not there": (["--backend", "nomad"], "invalid choice: 'nomad'"),
    "env without value": (["--env", "NOT_SET_AT_ALL"], "NOT_SET_AT_ALL is not set in your environment"),
    "env name": (["--env", "A-B=1"], "expected NAME=VALUE, or NAME alone"),
    "priority": (["--priority", "99999"], "priority is 99999"),
    "abbreviated option": (["--elast", "1:2"], "unrecognized arguments: --elast"),
    "argument of the file": (["--lr=3", "7"], "; the file's own arguments stand behind --"),
    "number of the file": (["7"], "unrecognized arguments: 7; the file's own arguments stand behind --"),
}


@pytest.mark.parametrize("case", BAD_SUBMISSIONS)
def test_bad_submission_is_refused_with_status_2(store: Store, tmp_path: Path, case: str) -> None:
    arguments, said = BAD_SUBMISSIONS[case]
    done = run(store, "submit", write(tmp_path, "print(1)\n"), *arguments)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
    assert store.job_ids() == []


def test_json_before_the_verb_is_explained(store: Store) -> None:
    done = run(store, "--json", "list")
    assert done.returncode == 2 and "--json (write it behind the verb, such as list --json)" in done.stderr


BAD_SOURCES = {
    "empty": ("", "cell.py is empty"),
    "spaces": ("\n  \n", "cell.py is empty"),
    "syntax": ("x = 1\nif x = 2:\n    pass\n", "line 2"),
    "null byte": ("x = '\0'\n", "null byte"),
    "magic": ("x = 1\n%matplotlib inline\n", "line 2 of cell.py is for IPython"),
    "shell": ("!ls\n", "line 1 of cell.py is for IPython"),
    "assigned magic": ("files = !ls\n", "line 1 of cell.py is for IPython"),
}


@pytest.mark.parametrize("case", BAD_SOURCES)
def test_bad_source_is_refused_with_status_2(store: Store, tmp_path: Path, case: str) -> None:
    source, said = BAD_SOURCES[case]
    done = run(store, "submit", write(tmp_path, source))
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
    assert store.job_ids() == []


def test_syntax_error_points_at_the_place(store: Store, tmp_path: Path) -> None:
    said = run(store, "submit", write(tmp_path, "a = 1\nb = (a ]\n")).stderr
    line, caret = said.splitlines()[-2:]
    assert line.strip() == "b = (a ]" and line.index("]") == caret.index("^")


BAD_NOTEBOOKS = {
    "magic": (["x = 1", "y = 2\n%time y"], "line 2 of code cell 2 of book.ipynb is for IPython"),
    "other cell magic": (["%%bash\nls"], "line 1 of code cell 1 of book.ipynb is for IPython"),
    "syntax": (["x = 1", "x ="], "code cell 2 of book.ipynb is not valid Python, line 1"),
    "nothing to run": (["", "%load_ext jupyter_hyperpod"], "book.ipynb has no code to run"),
}


@pytest.mark.parametrize("case", BAD_NOTEBOOKS)
def test_bad_notebook_names_cell_and_line(store: Store, tmp_path: Path, case: str) -> None:
    cells, said = BAD_NOTEBOOKS[case]
    done = run(store, "submit", notebook(tmp_path, *cells))
    assert done.returncode == 2 and said in done.stderr


def test_what_is_no_notebook_is_refused(store: Store, tmp_path: Path) -> None:
    for content, said in (("{", "not a notebook"), ("[]", "not a notebook"), ('{"cells": [1]}', "not a notebook")):
        done = run(store, "submit", write(tmp_path, content, "book.ipynb"))
        assert done.returncode == 2 and said in done.stderr
    done = run(store, "submit", notebook(tmp_path, "x <- 1", language="R"))
    assert done.returncode == 2 and "written in R" in done.stderr


def test_percent_in_a_string_or_an_expression_is_python(store: Store, tmp_path: Path) -> None:
    source = 'text = """\n%time\n!ls\n"""\ny = (7\n% 4)\n'
    assert run(store, "submit", write(tmp_path, source), "--dry-run").returncode == 0


def test_hundred_megabytes_are_refused_unread(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "large.py"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    done = run(store, "submit", str(path))
    assert done.returncode == 2 and "large.py is 100 MiB; the limit is 16 MiB" in done.stderr


def test_wrong_files_and_jobs(store: Store, tmp_path: Path) -> None:
    for arguments, said in (
        (("submit", str(tmp_path / "absent.py")), "No such file"),
        (("submit", str(tmp_path)), "neither a .py file nor"),
        (("submit", write(tmp_path, "x", "notes.txt")), "neither a .py file nor"),
        (("describe", "../../etc/passwd"), "is not of the form"),
        (("describe", "nobody"), "no job 'nobody'"),
        (("logs", "nobody-abcdefgh"), "no job 'nobody-abcdefgh'"),
        (("fault", "explode", "--job", "x", "--rank", "0"), "invalid choice"),
        (("fault", "kill", "--job", "x"), "expected one of --rank, --node, --target"),
        (("bench", "nothing"), "no benchmark named 'nothing'"),
        (("fault", "nan", "--job", "x", "--rnk", "0"), "unrecognized arguments: --rnk (did you mean --rank?)"),
        (("bench", "slurm-soak", "minuts=3"), "no option 'minuts'; expected one of minutes, seed, every_s, keep (did"),
        (("cluster", "status", "--nodes", "2"), "belong to `cluster start`"),
        (("cluster", "start", "--nodes", "0"), "0 nodes is impossible"),
        ((), "the following arguments are required: VERB"),
        (("lst",), "(did you mean list?)"),
        (("list", "--jsno"), "(did you mean --json?)"),
        (("metrics", "--port", "99999"), "port 99999 is impossible"),
    ):
        done = run(store, *arguments)
        assert done.returncode == 2 and said in done.stderr, (arguments, done.stderr)
        assert "Traceback" not in done.stderr


def test_the_docs_name_the_verbs_that_only_one_of_both_has() -> None:
    verbs = next(a.choices for a in build_parser([])._actions if isinstance(a.choices, dict))
    text = (Path(__file__).parents[1] / "docs/commands.md").read_text()
    only = (
        set(verbs)
        - set(VERB_HELP)
        - {"jobs", "list"}
        - {verb for verb in verbs if "cluster" in verb and verb != "cluster"}
    )
    assert only and all(f"`{verb}`" in text for verb in only), only
    assert set(VERB_HELP) - set(verbs) == {"attach"}


def test_no_arguments_at_all_show_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "run a Python file or the code cells of a notebook as a job" in capsys.readouterr().err


def test_unwritable_store_is_a_failure_not_bad_use(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(Store(tmp_path / "file" / "store"), "submit", write(tmp_path, "print(1)\n"))
    assert done.returncode == 1 and "cannot create" in done.stderr
    done = run(Store(tmp_path / "file"), "cluster", "status")
    assert (
        done.returncode == 1 and "is a file; name a directory: --store DIR, or $JUPYTER_HYPERPOD_STORE" in done.stderr
    )


# ---- manners ------------------------------------------------------------------------------------------------


def test_dry_run_shows_the_job_and_submits_nothing(store: Store, tmp_path: Path) -> None:
    path = write(tmp_path, "print(1)\n")
    spec = ask(store, "submit", path, "--elastic", "2:4", "--dry-run")["spec"]
    assert (spec["nodes"], spec["elastic"], spec["name"]) == (4, "2:4", "cell")
    secret = run(store, "submit", path, "--dry-run", "--env", "TOKEN=hush").stdout
    assert "TOKEN" in secret and "hush" not in secret
    assert "would submit cell.py" in run(store, "submit", path, "--dry-run").stdout
    assert store.job_ids() == []


def test_dry_run_says_what_would_come_of_it(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "print(1)\n")
    assert ask(store, "submit", path, "--nodes", "4", "--dry-run")["prospect"] == ""
    done = run(store, "submit", path, "--nodes", "99", "--dry-run")
    said = "it would fail: it needs at least 99 nodes, this cluster has 4 (and 1 held back as spare): submit with"
    assert done.returncode == 1 and said in done.stdout and "would submit cell.py (1 line):" in done.stdout
    assert "no queue 'mine'" in ask(store, "submit", path, "--queue", "mine", "--dry-run", status=1)["prospect"]
    assert ask(store, "submit", path, "--nodes", "9", "--elastic", "2:9", "--dry-run")["prospect"] == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    slurm = ("submit", path, "--backend", "slurm", "--nodes", "2", "--dry-run")
    assert ask(store, *slurm, status=1)["prospect"].startswith("it would be refused: `sbatch`")
    told = run(store, *slurm)
    assert told.returncode == 1 and "it would be refused: `sbatch`" in told.stdout
    assert "SLURM is asked for 3 nodes: 2 to run on and 1 spare (--spares 0 asks for none)" in told.stdout
    assert "is asked for" not in run(store, *slurm, "--spares", "0").stdout
    swept = write(tmp_path, "x = 1\nprint(x)\n", "swept.py")
    sweep = ask(store, "submit", swept, "--sweep", "x=1,2", "--backend", "slurm", "--dry-run", status=1)
    assert sweep["prospect"].startswith("it would be refused: `sbatch`") and len(sweep["trials"]) == 2


def test_dry_run_knows_the_nodes_that_are_there(shared_cluster: Store, training: str, tmp_path: Path) -> None:
    path = write(tmp_path, "print(1)\n")
    said = ask(shared_cluster, "submit", path, "--nodes", "4", "--dry-run")["prospect"]
    assert said.startswith("it would wait: ") and said.endswith("of 5 nodes are free now, and it needs 4")
    at = ("--schedule", "@yearly", "--dry-run")
    assert ask(shared_cluster, "submit", path, "--nodes", "4", *at)["prospect"] == "", "which says nothing of that time"
    impossible = ask(shared_cluster, "submit", path, "--nodes", "99", *at, status=1)["prospect"]
    assert impossible.startswith("it would fail: ")
    failed = ask(shared_cluster, "submit", path, "--nodes", "99")["id"]
    reason = jobs.wait(shared_cluster, failed, timeout_s=60)["reason"]
    dry = ask(shared_cluster, "submit", path, "--nodes", "99", "--dry-run", status=1)["prospect"]
    assert dry == f"it would fail: it {reason}", "the words are the same"


def test_store_may_stand_before_or_after_the_verb(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json", "--store", str(store.root)]) == 0
    assert main(["--store", str(store.root), "list", "--json"]) == 0
    assert capsys.readouterr().out == "[]\n[]\n"


def on_a_terminal(store: Store, environment: dict[str, str], *arguments: str, typed: str = "") -> str:
    """What is shown on a terminal where a person has typed something, if anything."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(store, *arguments),
        stdin=theirs if typed else subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | environment,
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    shown = b""
    try:
        while chunk := os.read(ours, 1 << 16):
            shown += chunk
    except OSError:
        pass
    os.close(ours)
    assert process.wait(60) == 0
    return shown.decode()


def test_colour_is_for_terminals_that_want_it(store: Store) -> None:
    plain = {"NO_COLOR": "", "TERM": "xterm"}
    assert "\x1b[" in on_a_terminal(store, plain, "list")
    assert "\x1b[" not in on_a_terminal(store, plain | {"NO_COLOR": "1"}, "list")
    assert "\x1b[" not in on_a_terminal(store, plain | {"TERM": "dumb"}, "list")


def test_start_up_loads_nothing_heavy_and_is_quick(store: Store) -> None:
    code = "import sys; from jupyter_hyperpod.cli import main; main(['list']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"torch", "numpy", "IPython", "traitlets", "jupyter_server", "nbformat", "asyncio"}
    times_s = []
    for _ in range(3):
        before_s = waited_for_s()
        run(store, "--version")
        times_s.append(waited_for_s() - before_s)
    assert 0 < min(times_s) < 1.0


def waited_for_s() -> float:
    """CPU time of the processes that were waited for: a busy machine adds little to it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
