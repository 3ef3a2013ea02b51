"""Replicas that die, hang, come with the load and go without it; a gateway that dies. Real processes, real requests."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control import cluster, jobs
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.events import REPLICA_STAGES
from jupyter_hyperpod.core.spec import JobSpec, ServeSpec
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.supervisor.entry import JobEntry
from jupyter_hyperpod.supervisor.reconcile import ProcessFailures
from jupyter_hyperpod.system.users import own_name
from tests.serving.conftest import Deployment, Serve, write_decoder
from tests.support.deployment_clients import Drive

Wait = Callable[..., object]


def ready(deployment: Deployment, replicas: int) -> Callable[[], bool]:
    return lambda: deployment.health().get("ready") == replicas


def test_replicas_are_killed_under_load_and_no_accepted_request_is_lost(
    serve: Serve, decoder: Path, eventually: Wait
) -> None:
    found = serve(decoder, replicas="2", name="killed")
    drive = Drive(found.client, "/v1/completions", lambda at: {"prompt": f"request {at}", "max_tokens": 4}, rate=50)
    replies = []
    with ThreadPoolExecutor(1) as threads:
        for kills in range(1, 4):
            eventually(lambda: ready(found, 2)() and [alive(pid) for pid in found.pids()] == [True, True])
            before = found.health()["accepted"]
            driving = threads.submit(drive.run, 2.0)
            eventually(lambda before=before: found.health()["accepted"] > before + 10)
            os.kill(found.pids()[0], signal.SIGKILL)
            eventually(lambda kills=kills: len(found.view["incidents"]) >= kills)
            replies += driving.result()  # all of them: one that met two kills would be blamed for them
    assert len(replies) == 300
    assert {reply.status for reply in replies} == {200}, "an accepted request was lost"
    health = found.health()
    assert health["accepted"] == health["answered"] >= 300 and health["failed"] == 0
    eventually(lambda: all(i["resumed_s"] for i in found.view["incidents"]))
    stages = [stage["stage"] for stage in found.view["incidents"][0]["stages"]]
    assert stages[0] == "detected" and {"resumed", "replaced"} <= set(stages)
    assert all(i["detection_s"] is not None and i["recovery_s"] >= i["detection_s"] for i in found.view["incidents"])


def test_a_request_that_kills_its_replicas_takes_nobody_with_it(
    serve: Serve, number: tuple[Path, Path], tmp_path: Path, eventually: Wait
) -> None:
    found = serve(number[0], handler=number[1], replicas="2", name="deadly")
    eventually(ready(found, 2))
    deadly = {"inputs": {"die": True}}
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(found.predict_until, x, tmp_path / "go") for x in range(2)]
        eventually(lambda: found.health()["outstanding"] == 2)
        dies = threads.submit(found.client.ask, "/predict", deadly)
        eventually(lambda: dies.done() or found.health()["outstanding"] == 3)
        asked += [threads.submit(found.predict, x, 0.1) for x in range(2, 7)]
        (tmp_path / "go").touch()  # the deadly one waits behind those that wait for it
        assert [one.result().json()["outputs"]["y"] for one in asked] == [2.5 * x for x in range(7)]
        refused = dies.result()
    assert refused.status == 502 and "refused for the next 60 s" in refused.json()["error"]["message"]
    eventually(ready(found, 2))
    lost = len(found.view["incidents"])
    assert lost in (2, 3)
    assert found.client.ask("/predict", deadly).status == 502 and len(found.view["incidents"]) == lost
    said = [warning["text"] for warning in found.view["warnings"] if "they answered this request" in warning["text"]]
    assert len(said) == 1 and f"{lost} replicas ended or broke off while" in said[0]


def test_the_only_replica_is_killed_while_it_answers_and_the_next_one_goes_on(
    serve: Serve, decoder: Path, eventually: Wait
) -> None:
    """A stream goes on where it stopped: what the client had is compared with what the other replica says."""
    found = serve(decoder, name="alone")
    body = {"prompt": "long", "max_tokens": 800, "seed": 9, "stream": True}
    undisturbed = found.client.ask("/v1/completions", body, request_id="twin").content
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(found.client.ask, "/v1/completions", body, request_id="twin")
        eventually(lambda: found.health()["outstanding"] == 1)
        os.kill(found.pids()[0], signal.SIGKILL)
        disturbed = asked.result()
    assert disturbed.status == 200
    assert strip_created(disturbed.content) == strip_created(undisturbed)
    assert found.health()["retried"] >= 1


def test_a_replica_that_loads_another_model_than_the_first_one_is_told(
    serve: Serve, tmp_path: Path, eventually: Wait
) -> None:
    """A training saves again where a deployment's model is; a later replica would answer otherwise, unseen."""
    found = serve(write_decoder(tmp_path), name="retrained")
    eventually(ready(found, 1))
    weights = next(tmp_path.rglob("*.safetensors"))
    saved = bytearray(weights.read_bytes())
    saved[-2:] = b"\x3f\x3f"
    (tmp_path / "new").write_bytes(saved)
    (tmp_path / "new").replace(weights)
    os.kill(found.pids()[0], signal.SIGKILL)

    def told() -> list[str]:
        return [said["text"] for said in found.view["warnings"] if "has loaded another model than" in said["text"]]

    eventually(told)
    assert len(told()) == 1 and str(tmp_path) in told()[0]


def strip_created(stream: bytes) -> list[bytes]:
    return [line.partition(b'"choices"')[2] for line in stream.splitlines() if line]


def test_a_replica_that_stands_still_is_ended_and_its_requests_are_answered_elsewhere(
    serve: Serve, number: tuple[Path, Path], eventually: Wait
) -> None:
    found = serve(number[0], handler=number[1], replicas="2", name="stands-still")
    eventually(ready(found, 2))
    stopped = found.pids()[0]
    os.kill(stopped, signal.SIGSTOP)
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda x: found.predict(x), range(8)))
    assert [reply.json()["outputs"]["y"] for reply in replies] == [2.5 * x for x in range(8)]
    eventually(lambda: stopped not in found.pids() and len(found.pids()) == 2)


def test_load_brings_replicas_and_its_end_takes_them_away_without_losing_a_request(
    serve: Serve, number: tuple[Path, Path], eventually: Wait
) -> None:
    found = serve(number[0], handler=number[1], replicas="1:3", name="load", scale_down_delay_s=1.5, slots=4)
    with ThreadPoolExecutor(12) as threads:
        busy = threading.Event()

        def ask(x: int) -> list[int]:
            statuses = []
            while not busy.is_set():
                statuses.append(found.predict(x, 0.05).status)
            return statuses

        asking = [threads.submit(ask, x) for x in range(12)]
        eventually(ready(found, 3))
        pids = found.pids()
        busy.set()
        statuses = {status for one in asking for status in one.result()}
    assert statuses == {200}
    eventually(ready(found, 1))
    eventually(lambda: sum(not alive(pid) for pid in pids) == 2)
    reasons = [event.data["reason"] for event in found.events("decision.made") if event.data["policy"] == "serving"]
    assert any("requests are outstanding, 2 a replica are wanted" in reason for reason in reasons)
    assert any("no more than" in reason for reason in reasons)
    assert found.health()["failed"] == 0
    came = [event.data for event in found.events("replica.stage") if event.data["replica"].endswith(f".{pids[-1]}")]
    assert [data["stage"] for data in came] == list(REPLICA_STAGES)
    took = [data["took_s"] for data in came]
    assert took == sorted(took)


def alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def test_a_replica_that_is_to_go_finishes_what_it_was_asked(
    serve: Serve, number: tuple[Path, Path], tmp_path: Path, eventually: Wait
) -> None:
    found = serve(number[0], handler=number[1], replicas="1:2", name="drains", scale_down_delay_s=60.0)
    jobs.scale(found.store, found.job_id, 2)
    eventually(ready(found, 2))
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(found.predict_until, x, tmp_path / "go") for x in range(2)]
        eventually(lambda: [r["outstanding"] for r in found.health()["replicas"]] == [1, 1])
        jobs.scale(found.store, found.job_id, 1)
        eventually(lambda: "retired" in [r["state"] for r in found.health()["replicas"]])
        (tmp_path / "go").touch()
        assert all(one.result().status == 200 for one in asked)
    eventually(lambda: len(found.health()["replicas"]) == 1)
    assert found.health()["retried"] == 0 and found.view["incidents"] == []


def test_the_replicas_of_a_node_that_is_drained_move_to_another(
    serve: Serve, number: tuple[Path, Path], tmp_path: Path, eventually: Wait
) -> None:
    found = serve(number[0], handler=number[1], replicas="2", name="moves")
    eventually(ready(found, 2))
    drained = found.view["members"][0]["node"]
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(found.predict_until, x, tmp_path / "go") for x in range(2)]
        eventually(lambda: [r["outstanding"] for r in found.health()["replicas"]] == [1, 1])
        try:
            assert main(["--store", str(found.store.root), "nodes", "drain", drained, "--reason", "a fan is loud"]) == 0
            eventually(lambda: drained not in [m["node"] for m in found.view["members"]] and ready(found, 2)())
        finally:
            assert main(["--store", str(found.store.root), "nodes", "resume", drained]) == 0
            (tmp_path / "go").touch()
        assert [one.result().json()["outputs"]["y"] for one in asked] == [0.0, 2.5], "what it was asked it has finished"
    done = [event.data for event in found.events("command.done") if event.data["kind"] == "drain"]
    assert [(data["ok"], data["reason"][:10]) for data in done] == [(True, "1 replica ")]
    assert not found.view["incidents"] and found.health()["failed"] == 0


def begin(folder: Path, what: str = "") -> Path:
    """A model whose replicas do something before they load it."""
    (folder / "model.txt").write_text("2.5")
    (folder / "model.txt.begin").write_text(what)
    return folder / "model.txt"


def test_one_that_keeps_the_interpreter_to_itself_is_not_taken_for_one_that_hangs(
    serve: Serve, number: tuple[Path, Path], tmp_path: Path
) -> None:
    asleep = "import ctypes; ctypes.PyDLL(None).usleep(4_000_000)"
    found = serve(begin(tmp_path, asleep), handler=number[1], name="computes")
    assert found.client.ask("/predict", {"inputs": {"x": 2, "compute": 4.5}}).json()["outputs"]["y"] == 5.0
    assert not found.view["incidents"] and found.health()["retried"] == 0


def test_one_that_is_to_go_while_it_loads_goes_at_once(
    serve: Serve, number: tuple[Path, Path], tmp_path: Path, eventually: Wait
) -> None:
    model = begin(tmp_path)
    found = serve(model, handler=number[1], replicas="1:2", name="loads", scale_down_delay_s=60.0)
    Path(f"{model}.begin").write_text("time.sleep(1000)")
    jobs.scale(found.store, found.job_id, 2)
    eventually(lambda: "loading" in [r["state"] for r in found.health()["replicas"]])
    name = next(r["replica"] for r in found.health()["replicas"] if r["state"] == "loading")
    jobs.scale(found.store, found.job_id, 1)
    eventually(lambda: not alive(int(name.rpartition(".")[2])))
    assert found.predict(2).json()["outputs"]["y"] == 5.0


def test_one_that_cannot_start_takes_nothing_from_those_that_answer(store: Store) -> None:
    spec = JobSpec("s", store.put_cell(""), nodes=1, max_restarts=1000, serve=ServeSpec("model", task="predict"))
    entry = JobEntry(store, store.create_job(spec))
    for number in range(30):
        assert entry.agent_failed("node-1", 1.0, 1, True, float(number)) == ""
    assert entry.rest_until_s == 29.0 + 60.0, "at last it is tried once a minute"
    assert entry.agent_failed("node-2", 500.0, -9, True, 30.0) == ""
    assert entry.rest_until_s == 30.0, "one that was killed is replaced at once"
    entry.agents = ProcessFailures(30, 30)
    found = entry.agent_failed("node-1", 1.0, 1, False, 100.0)
    assert "the agent on node-1 ended with status 1: it failed 31 times in a row" in found, "nobody answers any more"


def test_none_is_kept_where_none_need_be_and_a_request_waits_for_one(
    serve: Serve, number: tuple[Path, Path], eventually: Wait
) -> None:
    found = serve(number[0], handler=number[1], replicas="0:2", name="zero", scale_down_delay_s=1.0)
    eventually(lambda: found.health()["replicas"] == [])
    assert found.view["state"] == "running"
    reply = found.predict(4)
    assert (reply.status, reply.json()["outputs"]["y"]) == (200, 10.0)


def test_more_requests_than_may_wait_are_told_when_to_come_back(
    serve: Serve, number: tuple[Path, Path], tmp_path: Path, eventually: Wait
) -> None:
    found = serve(number[0], handler=number[1], name="full", slots=2, queue=2)
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(found.predict_until, x, tmp_path / "go") for x in range(4)]
        eventually(lambda: found.health()["queued"] == 2)
        refused = found.predict(9)
        (tmp_path / "go").touch()
        assert refused.status == 429 and int(refused.headers["Retry-After"]) >= 1
        assert [one.result().status for one in asked] == [200] * 4
    assert found.health()["refused"] == 1


def test_a_request_that_takes_too_long_is_given_up(serve: Serve, number: tuple[Path, Path]) -> None:
    found = serve(number[0], handler=number[1], name="slow", request_timeout_s=0.5)
    late = found.predict(1, 3.0)
    assert (late.status, late.json()["error"]["message"]) == (504, "no answer within 0.5 s")


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_whose_client_has_gone_is_not_computed_to_its_end(
    serve: Serve, decoder: Path, eventually: Wait, stream: bool
) -> None:
    found = serve(decoder, name="gone")
    connection = http.client.HTTPConnection(found.client.host, found.client.port, timeout=60)
    body = json.dumps({"prompt": "x", "max_tokens": 4000, "stream": stream})
    connection.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {found.client.token}"})
    eventually(lambda: found.health()["outstanding"] == 1)
    connection.close()
    eventually(lambda: found.health()["left"] == 1)
    eventually(lambda: found.health()["outstanding"] == 0)
    assert found.complete().status == 200


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGTERM])
def test_a_gateway_that_dies_is_back_at_the_same_place_with_the_same_replicas(
    serve: Serve, decoder: Path, eventually: Wait, ends: signal.Signals
) -> None:
    found = serve(decoder, replicas="2", name="headless")
    eventually(ready(found, 2))
    pids, url = set(found.pids()), found.view["deployment"]["url"]
    endpoint = found.store.job(found.job_id).path / "coordinator.json"
    os.kill(json.loads(endpoint.read_text())["pid"], ends)
    eventually(lambda: len(found.events("deployment.opened")) == 2)
    eventually(ready(found, 2))
    assert found.view["deployment"]["url"] == url and set(found.pids()) == pids
    assert found.complete().status == 200

    def ended() -> list[str]:
        (incident,) = found.view["incidents"]
        return [stage["stage"] for stage in incident["stages"]][-2:]

    eventually(lambda: ended() == ["repaired", "resumed"])
    stages = [event.data["replica"] for event in found.events("replica.stage") if event.data["stage"] == "ready"]
    assert len(stages) == 2, "replicas that were there are not counted as new ones"


def test_a_deployment_whose_gateway_is_dead_is_stopped_at_once(serve: Serve, decoder: Path, eventually: Wait) -> None:
    found = serve(decoder, replicas="2", name="beheaded")
    eventually(ready(found, 2))
    pids = found.pids()
    os.kill(json.loads((found.store.job(found.job_id).path / "coordinator.json").read_text())["pid"], signal.SIGKILL)
    jobs.stop(found.store, found.job_id)
    view = jobs.wait(found.store, found.job_id, timeout_s=60)
    assert (view["state"], view["reason"]) == ("stopped", f"stopped by {own_name()}")
    eventually(lambda: not any(alive(pid) for pid in pids))


def test_a_deployment_outlives_the_supervisor_and_is_stopped_by_the_next(
    serve: Serve, decoder: Path, eventually: Wait
) -> None:
    found = serve(decoder, name="orphan")
    os.kill(cluster.request(found.store, {"op": "status"})["pid"], signal.SIGKILL)
    assert found.complete().status == 200
    eventually(lambda: cluster.connectable(found.store))
    pid = found.pids()[0]
    jobs.stop(found.store, found.job_id)
    assert jobs.wait(found.store, found.job_id, timeout_s=60)["state"] == "stopped"
    eventually(lambda: not alive(pid))
    assert found.client.ask("/healthz").status == 0


def test_faults_of_training_are_refused(serve: Serve, decoder: Path, eventually: Wait) -> None:
    found = serve(decoder, name="faults")
    jobs.fault(found.store, found.job_id, "nan", rank=0)
    eventually(lambda: found.events("command.done"))
    assert "is for training" in found.events("command.done")[0].data["reason"]
    before = found.pids()
    jobs.fault(found.store, found.job_id, "kill", rank=0)
    eventually(lambda: found.pids() and found.pids() != before)
    with pytest.raises(SpecError, match="outside the range"):
        jobs.scale(found.store, found.job_id, 5)


def test_it_is_told_how_it_stands(serve: Serve, decoder: Path, eventually: Wait) -> None:
    found = serve(decoder, name="told")
    began_s = time.time()
    assert found.complete().status == 200
    eventually(lambda: found.view["metrics"].get("answered") == 1)
    metrics = found.view["metrics"]
    assert metrics["ready"] == 1 and 0 < metrics["p50_s"] <= metrics["p99_s"] < time.time() - began_s
    assert found.view["world_size"] == 1 and found.view["deployment"]["task"] == "completions"
