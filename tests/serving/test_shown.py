"""What people are told of a deployment: its range, its address, why it waits, what its replicas have printed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.cli.serve import _until_it_answers
from jupyter_hyperpod.cli.terminal import Terminal
from jupyter_hyperpod.control import jobs, report, served, watch
from jupyter_hyperpod.control.engines import replica_logs
from jupyter_hyperpod.core.elastic import ElasticRange
from jupyter_hyperpod.core.errors import Conflict, SpecError
from jupyter_hyperpod.core.spec import JobSpec, ServeSpec
from jupyter_hyperpod.policy.scaling import Claim, impossible
from jupyter_hyperpod.storage.journal import event_writer, follow_commands
from jupyter_hyperpod.storage.output.output_choice import OutputChoice
from jupyter_hyperpod.storage.store import JobStore, Store
from jupyter_hyperpod.system.addresses import this_loopback

Said = pytest.CaptureFixture[str]


@pytest.fixture
def chat(store: Store) -> JobStore:
    """A deployment of no to two replicas; nobody has started it."""
    serve = ServeSpec("/model", minimum=0)
    spec = JobSpec("chat", store.put_cell(""), elastic=ElasticRange(1, 2), spares=0, serve=serve)
    job = store.create_job(spec)
    say(job, "job.submitted", id=job.id, spec=spec.to_json())
    return job


def say(job: JobStore, kind: str, **data: object) -> None:
    with event_writer(job.events, "gateway") as journal:
        journal.append(kind, data)


def form(job: JobStore, ready: int) -> None:
    members = [{"member": f"m{at}", "node": f"node-{at}", "rank": at, "pid": 1, "host": "h"} for at in range(ready)]
    reason = f"{ready} of 2 replicas answer"
    say(job, "generation.formed", generation=ready, members=members, spares=[], target=2, reason=reason)


def test_a_range_from_none_stays_one_and_its_errors_name_replicas(store: Store, chat: JobStore) -> None:
    with pytest.raises(Conflict, match="has not answered yet; scale it to 0"):
        jobs.scale(store, chat.id, 0)
    say(chat, "job.state", state="running", reason="1 of 1 replicas answer")
    assert jobs.job_view(store, chat.id)["minimum"] == 0
    jobs.scale(store, chat.id, 0)
    assert [command.data["target"] for command in follow_commands(chat.commands).poll()] == [0]
    with pytest.raises(SpecError, match="^3 replicas is outside the range 0:2 of chat-.*a wider --replicas MIN:MAX$"):
        jobs.scale(store, chat.id, 3)
    never = impossible(Claim("chat", 0, 0.0, 5, 5, serves=True), 4, 0, {})
    assert "serve with --replicas MIN:MAX where MIN is at most 4" in never and "--elastic" not in never
    with pytest.raises(SpecError, match="^the port is 99999; expected a number from 1 to 65535, or 0"):
        ServeSpec("/model", port=99999)


def test_it_is_described_as_it_is_now(store: Store, chat: JobStore) -> None:
    opened = {"url": "http://127.0.0.1:8000", "model": "/model", "task": "completions", "host": "h"}
    say(chat, "deployment.opened", **opened, loopback=this_loopback())
    form(chat, 1)
    say(chat, "job.state", state="running", reason="1 of 2 replicas answer")
    form(chat, 2)
    view = jobs.job_view(store, chat.id)
    assert view["reason"] == "2 of 2 replicas answer"
    described = " ".join(report.describe_lines(view).split())
    assert (
        "url http://127.0.0.1:8000 replicas 2 ready, 2 wanted, 0 to 2 allowed: the load decides, also after `scale`"
        in described
    )


def test_scale_says_that_the_load_decides_again(store: Store, chat: JobStore, capsys: Said) -> None:
    say(chat, "job.state", state="running", reason="1 of 1 replicas answer")
    said = {}
    for target in range(3):
        assert main(["--store", str(store.root), "scale", chat.id, str(target)]) == 0
        said[target] = capsys.readouterr().out
    assert said[1].startswith(
        f"asked {chat.id} for 1 replica. Then its load decides again, within 0:2: more once over 2 requests a "
        "replica are outstanding, fewer once they were not needed for 30 s. "
    )
    assert "within 0:2: fewer once" in said[2] and "serve with --replicas 2" in said[2]
    assert "within 0:2: more once over 2 requests a replica are outstanding. A number" in said[0]
    fixed = JobSpec("fixed", store.put_cell(""), nodes=2, serve=ServeSpec("/model", minimum=2))
    job = store.create_job(fixed)
    say(job, "job.submitted", id=job.id, spec=fixed.to_json())
    assert main(["--store", str(store.root), "scale", job.id, "2"]) == 0
    assert capsys.readouterr().out == f"asked {job.id} for 2 replicas\n"


def test_where_the_gateway_is_on_another_host_no_command_sends_the_token_to_this_one(
    store: Store, chat: JobStore, capsys: Said
) -> None:
    opened = {"url": "http://127.0.0.1:8000", "model": "/model", "task": "completions", "host": "login 1"}
    say(chat, "deployment.opened", **opened, loopback="boot-1:4026531840")
    say(chat, "job.state", state="running", reason="1 of 1 replicas answer")
    view, reach = jobs.job_view(store, chat.id), "ssh -o ExitOnForwardFailure=yes -N -L 8000:127.0.0.1:8000 'login 1'"
    told = "\n".join(served.how_to_ask(view, "/token"))
    assert "answers at http://127.0.0.1:8000/v1/completions on login 1\n" in told and reach in told
    assert "curl" not in told and "/token" in told
    described = " ".join(report.describe_lines(view).split())
    assert f"url http://127.0.0.1:8000 on login 1 from here {reach} " in described
    assert main(["serve"]) == 0 and "http://127.0.0.1:8000 on login 1" in capsys.readouterr().out
    say(chat, "deployment.opened", **opened, loopback=this_loopback())
    assert "curl" in "\n".join(served.how_to_ask(jobs.job_view(store, chat.id), "/token"))
    say(chat, "deployment.opened", **{name: text for name, text in opened.items() if name != "host"})
    unknown = "\n".join(served.how_to_ask(jobs.job_view(store, chat.id), "/token"))
    assert "curl" not in unknown and "127.0.0.1:8000 HOST" in unknown, "nothing is known of an older gateway's host"


def test_why_it_waits_is_said_once_without_a_terminal(
    store: Store, chat: JobStore, eventually: Callable[..., object]
) -> None:
    terminal = Terminal()
    terminal.err = err = io.StringIO()
    say(chat, "job.state", state="pending", reason="waits until a node is free")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(_until_it_answers, watch.JobWatch(store, chat.id), terminal)
        try:
            eventually(lambda: "waits until a node is free" in err.getvalue())
        finally:
            say(chat, "job.state", state="running", reason="1 of 1 replicas answer")
        waiting.result(timeout=60)
    assert err.getvalue().count("waits") == 1


def test_what_replicas_have_printed_is_shown(store: Store, chat: JobStore, capsys: Said) -> None:
    def logs(*options: str) -> tuple[list[str], str]:
        assert main(["logs", "chat", *options]) == 0
        out, err = capsys.readouterr()
        return out.splitlines(), err

    (folder := chat.path / "logs").mkdir(exist_ok=True)
    assert logs()[1].strip().endswith(f"print is in the files of {folder}; there is nothing so far")
    (folder / "node-1.log").write_text("one\ntwo\nhalf")
    (folder / "head.log").write_text("of the gateway\n")
    assert logs() == (["one", "two", "half"], "")
    (folder / "node-2.log").write_text("other\n")
    assert logs("--tail", "1")[0] == ["[node-1] half", "[node-2] other"]
    (folder / "node-2.log").write_text("other\nERROR it failed\n  and why\n")
    assert logs("--level", "error")[0] == ["ERROR it failed", "  and why"]
    (folder / "node-2.log").write_text("other\n")
    assert logs("--node", "head")[0] == ["of the gateway"]
    assert json.loads(logs("--grep", "oth", "--json")[0][0]) == {"node": "node-2", "log": "node-2", "text": "other"}
    say(chat, "job.state", state="stopped", reason="stopped by ann")
    assert logs("--follow", "--node", "node-2")[0] == ["[node-2] other"]
    assert "matches --grep nothing; all of it is in" in logs("--grep", "nothing")[1]
    (folder / "node-2.log").write_bytes(b"x" * (2 << 20) + b"\nlast\n")
    out, err = logs("--node", "node-2")
    assert out == ["last"] and f"all of it is in {folder}/node-2.log" in err
    assert (
        main(["logs", "chat", "--node", "node-9"]) == 2 and "there are those of head, node-1" in capsys.readouterr().err
    )
    assert main(["logs", "chat", "--rank", "0"]) == 2 and "no ranks, times and steps" in capsys.readouterr().err


def test_logs_of_a_scheduler_s_elements_are_chosen_by_the_nodes_on_which_they_ran(chat: JobStore, capsys: Said) -> None:
    def allocate(element: str, node: str) -> None:
        state = "RUNNING" if node else "PENDING"
        say(chat, "allocation.changed", scheduler="SLURM", element=element, part=0, state=state, node=node, reason="")

    def logs(*options: str) -> tuple[list[str], str]:
        assert main(["logs", "chat", *options]) == 0
        out, err = capsys.readouterr()
        return out.splitlines(), err

    (folder := chat.path / "logs").mkdir(exist_ok=True)
    for name in ("slurm-12-0", "slurm-12-1", "hp-3-0"):
        (folder / f"{name}.log").write_text(f"of {name}\n")
    for element, node in (("12_0", ""), ("12_0", "ip-1"), ("12_1", "ip-2"), ("12_1", ""), ("hp-3-0", "ip-4")):
        allocate(element, node)
    assert logs()[0] == ["[ip-4] of hp-3-0", "[ip-1] of slurm-12-0", "[ip-2] of slurm-12-1"]
    for name in ("ip-1", "12_0", "slurm-12-0", "ip-1.12-0"):
        assert logs("--node", name) == (["of slurm-12-0"], "")
    assert main(["logs", "chat", "--node", "ip-9"]) == 2 and "those of ip-4, ip-1, ip-2" in capsys.readouterr().err
    allocate("12_1", "ip-3")
    out, err = logs("--node", "ip-3", "--json")
    assert json.loads(out[0]) == {"node": None, "log": "slurm-12-1", "text": "of slurm-12-1"}
    assert "slurm-12-1 is of several nodes, one after the other: ip-2, ip-3" in err


def test_nothing_of_a_log_is_lost_or_said_twice_while_it_is_followed(
    chat: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_logs, "KEPT_BYTES", 8)
    (folder := chat.path / "logs").mkdir(exist_ok=True)
    path = folder / "node-1.log"
    path.write_bytes("gr\u00fc".encode()[:-1])
    logs = replica_logs.ReplicaLogs(chat, OutputChoice())
    assert logs.poll() == []
    with path.open("ab") as file:
        file.write("\u00fc\u00dfe\nmore than eight\nend".encode()[1:])
    texts = [line.text for line in logs.poll(ends=True)]
    while logs.behind:
        texts += [line.text for line in logs.poll(ends=True)]
    assert texts == ["gr\u00fc\u00dfe", "more than eight", "end"]
    path.unlink()
    assert [logs.poll(), logs.poll()] == [[], []]
    assert len(logs.notes) == 1 and "cannot be read: No such file" in logs.notes[0]
