"""Pods of HyperPod's training operator: what it is told, and the port through which it starts their programs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.backends.kubernetes import manifests, parse
from jupyter_hyperpod.backends.kubernetes.inquiry import needed_rights, needs_of
from jupyter_hyperpod.backends.kubernetes.manifests import PodUser
from jupyter_hyperpod.backends.kubernetes.shortages import ClusterFacts, JobNeeds, shortages
from jupyter_hyperpod.backends.kubernetes.workloads.protocol import OperatedProgram, ProgramState
from jupyter_hyperpod.backends.kubernetes.workloads.workload import JOB, JOB_NAME, OPERATED, workload
from jupyter_hyperpod.backends.types import BASE, ELASTIC
from jupyter_hyperpod.core.backend_options import check
from jupyter_hyperpod.core.errors import ProtocolError, SpecError
from jupyter_hyperpod.core.spec import JobSpec
from tests.backends.kubernetes.stand_in_operator import DEFINITION, ask, start_request
from tests.backends.kubernetes.test_manifests import PLACED, PLAIN, PLAN, RICH

ASKED = {"operator": "hyperpod"}
DOOR = """
import sys
from pathlib import Path
from jupyter_hyperpod.backends.kubernetes.workloads.operator_port import OperatorPort
sys.exit(OperatorPort(sys.argv[4:], Path(sys.argv[2]), float(sys.argv[3])).run(int(sys.argv[1])))
"""
COUNTS = "import pathlib, time; pathlib.Path({here!r}, 'begun').open('a').write('x'); {then}"


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The same, which allows no fields that it does not name."""
    made = {key: strict(value) if isinstance(value, dict) else value for key, value in schema.items()}
    if "properties" in made and not made.get("x-kubernetes-preserve-unknown-fields"):
        made["additionalProperties"] = False
    return made


SCHEMA = yaml.safe_load(DEFINITION.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][
    "spec"
]


# -- what is made -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [PLAIN, RICH, PLACED])
@pytest.mark.parametrize("part", [BASE, ELASTIC])
def test_an_object_of_the_operator_has_the_published_fields_and_the_pod_of_a_job(
    options: Mapping[str, str], part: str
) -> None:
    made = manifests.job(PLAN, {**options, **ASKED}, part, 7, 1, PodUser(1000, 1000))
    jsonschema.validate(made["spec"], strict(SCHEMA))
    (replica,) = made["spec"]["replicaSpecs"]
    assert (made["apiVersion"], made["kind"], replica["replicas"]) == (
        "sagemaker.amazonaws.com/v1",
        "HyperPodPyTorchJob",
        1,
    )
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **replica["template"]}
    kubernetes_validate.validate({**pod, "metadata": {"name": "x", **replica["template"]["metadata"]}}, "1.32")
    plain = manifests.job(PLAN, options, part, 7, 1, PodUser(1000, 1000))
    assert made["metadata"] == plain["metadata"]
    assert replica["template"]["metadata"]["labels"] == {
        **plain["spec"]["template"]["metadata"]["labels"],
        JOB_NAME: "hp-7-1",
    }
    (container,), (other,) = replica["template"]["spec"]["containers"], plain["spec"]["template"]["spec"]["containers"]
    assert container.pop("ports") == [{"containerPort": 8080}]
    port_of = [PLAN.python, "-m", "jupyter_hyperpod.backends.kubernetes.workloads.operator_port"]
    at = other["command"].index(PLAN.python)
    assert container.pop("command") == [*other["command"][:at], *port_of, *other.pop("command")[at:]]
    assert replica["template"]["spec"] == plain["spec"]["template"]["spec"]


def test_the_published_fields_are_all_that_is_accepted() -> None:
    made = manifests.job(PLAN, {**PLAIN, **ASKED}, BASE, 7, 1, PodUser(1, 1))["spec"]
    for wrong in ({"elastic": {}}, {"runPolicy": {"restartPolicy": {"maxFullJobRestarts": 0}}}, {"nprocPerNode": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**made, **wrong}, strict(SCHEMA))


def test_kueue_is_told_the_priority_of_each_part() -> None:
    options = {**PLAIN, "queue": "alpha", "queue-priority": "training", "elastic-queue-priority": "spare"}
    for part, name in ((BASE, "training"), (ELASTIC, "spare")):
        for chosen in (options, {**options, **ASKED}):
            marks = manifests.job(PLAN, chosen, part, 7, 1, PodUser(1, 1))["metadata"]["labels"]
            assert marks["kueue.x-k8s.io/queue-name"] == "alpha"
            assert marks["kueue.x-k8s.io/priority-class"] == name


def test_jobs_of_both_kinds_have_runners_and_requests_of_their_own() -> None:
    assert workload({}) == JOB and workload(ASKED) == OPERATED
    assert JOB.path("a") == "/apis/batch/v1/namespaces/a/jobs"
    assert OPERATED.path("a") == "/apis/sagemaker.amazonaws.com/v1/namespaces/a/hyperpodpytorchjobs"
    assert (JOB.resource, OPERATED.resource) == ("jobs", "hyperpodpytorchjobs.sagemaker.amazonaws.com")


def test_an_operator_that_there_is_not_is_named() -> None:
    with pytest.raises(SpecError, match="option operator: 'kubeflow' is no operator; expected hyperpod; without"):
        check("kubernetes", "kubernetes", {**PLAIN, "operator": "kubeflow"})
    options = {**PLAIN, **ASKED, "keep-warm": "5min"}
    with pytest.raises(SpecError, match="the pods of a job with operator=hyperpod cannot be kept for the next job"):
        JobSpec("job", "0" * 64, backend="kubernetes", kubernetes=options)


# -- what is read -------------------------------------------------------------------------------------------------


def told(*conditions: tuple[str, str], suspend: bool = False) -> dict[str, Any]:
    job = manifests.job(PLAN, {**PLAIN, **ASKED}, BASE, 7, 1, PodUser(1, 1))
    job["spec"]["runPolicy"]["suspend"] = suspend
    job["status"] = {"conditions": [{"type": kind, "status": "True", "message": said} for kind, said in conditions]}
    return job


@pytest.mark.parametrize(
    ("job", "state", "reason"),
    [
        (told(), "Pending", "it has no pod yet"),
        (told(("Created", "no quota is left")), "Pending", "it has no pod yet: no quota is left"),
        (told(suspend=True), "Suspended", "the HyperPodPyTorchJob is suspended until its queue admits it"),
        (told(("Running", ""), ("Completed", "done")), "Succeeded", ""),
        (told(("Running", ""), ("Failed", "a pod failed")), "Deleted", "its pod was deleted"),
    ],
)
def test_what_the_operator_says_of_a_node(job: dict[str, Any], state: str, reason: str) -> None:
    (element,) = parse.elements([job], [])[PLAN.job_id]
    assert (element.name, element.state, element.reason, element.part) == ("hp-7-1", state, reason, BASE)


def test_a_cluster_without_the_operator_and_an_account_without_its_rights_are_told() -> None:
    needs = needs_of({**PLAIN, **ASKED}, "alpha", 2)
    assert needs.operator and not needs_of(PLAIN, "alpha", 2).operator
    verbs = [right.verb for right in needed_rights(needs) if right.resource == OPERATED.plural]
    assert verbs == ["create", "list", "delete"]
    assert not any(right.group == "batch" for right in needed_rights(needs))
    assert any(
        right.group == "batch" for right in needed_rights(needs_of({**PLAIN, **ASKED, "head": "pod"}, "alpha", 2))
    )
    for resource, fatal in (("hyperpodpytorchjobs.sagemaker.amazonaws.com", True), ("jobs.batch", False)):
        counted = {"metadata": {"name": "few"}, "status": {"hard": {f"count/{resource}": "1"}}}
        groups = {"sagemaker.amazonaws.com": "v1"}
        assert bool(shortages(needs, ClusterFacts(groups=groups, quotas=[counted]))) is fatal
    assert OPERATED.plural not in {right.resource for right in needed_rights(needs_of(PLAIN, "alpha", 2))}
    without = [str(one) for one in shortages(needs, ClusterFacts(groups={"batch": "v1"}, namespace={"metadata": {}}))]
    assert any("the cluster has none (no HyperPodPyTorchJob)" in one for one in without)
    assert not shortages(JobNeeds("alpha"), ClusterFacts(groups={"batch": "v1"}))


# -- the port -----------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["start", "update", "stop", "shutdown", "status"]), max_size=12))
def test_whatever_is_requested_the_program_begins_once_and_only_its_own_end_ends_it(requests: list[str]) -> None:
    program = OperatedProgram()
    for one in requests:
        wanted = program.wanted
        if one in ("start", "update"):
            getattr(program, one)(start_request(3, 4, 0, "10.0.0.1"))
        elif one == "stop":
            program.stop()
        elif one == "shutdown":
            assert not program.shut_down()
        assert program.wanted == (wanted or one == "start") and not program.over
        assert json.loads(json.dumps(program.told()))["status"] in ("ready", "running")
    program.completed()
    program.stop()
    assert program.told()["status"] == "completed" and program.shut_down() and program.over
    assert program.state is ProgramState.SHUTDOWN


@given(st.none() | st.booleans() | st.lists(st.text()) | st.dictionaries(st.text(), st.integers()))
def test_a_request_that_is_none_is_refused(request: object) -> None:
    with pytest.raises(ProtocolError):
        OperatedProgram().start(request)
    for name in ("rank", "nnodes", "faultCount", "master_addr", "master_port"):
        with pytest.raises(ProtocolError, match=name):
            OperatedProgram().start({**start_request(0, 1, 0, "10.0.0.1"), name: request})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


Wait = Callable[..., Any]
Port = Callable[..., tuple[int, subprocess.Popen[bytes]]]


@pytest.fixture
def port_of(tmp_path: Path, eventually: Wait) -> Iterator[Port]:
    """Let a program that ends with ``then`` wait behind a port; the port, and the process that answers there."""
    processes: list[subprocess.Popen[bytes]] = []

    def begin(then: str, noted_s: float = 60.0) -> tuple[int, subprocess.Popen[bytes]]:
        port, program = free_port(), COUNTS.format(here=str(tmp_path), then=then)
        fixed = [str(port), str(tmp_path / "pid"), str(noted_s)]
        words = [sys.executable, "-c", DOOR, *fixed, sys.executable, "-c", program]
        processes.append(subprocess.Popen(words, start_new_session=True))
        eventually(lambda: ask("127.0.0.1", "/status", port=port) is not None)
        return port, processes[-1]

    yield begin
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def status(port: int) -> str:
    return str((ask("127.0.0.1", "/status", port=port) or {}).get("status"))


def start(port: int) -> None:
    assert ask("127.0.0.1", "/start", start_request(0, 1, 0, "127.0.0.1"), port) is not None


def test_a_program_begins_when_the_operator_says_so_and_survives_its_stops(
    port_of: Port, tmp_path: Path, eventually: Wait
) -> None:
    port, process = port_of(f"[time.sleep(0.01) for _ in iter(pathlib.Path({str(tmp_path)!r}, 'go').exists, True)]")
    assert status(port) == "ready" and not (tmp_path / "begun").exists()
    start(port)
    eventually((tmp_path / "begun").exists)
    assert ask("127.0.0.1", "/stop", {"restart_mode": "plr", "is_graceful": True, "timeout": 1}, port) is not None
    assert status(port) == "ready"
    assert ask("127.0.0.1", "/shutdown", {}, port) is None, "only the end of its pod ends a program that runs"
    assert ask("127.0.0.1", "/start", start_request(1, 2, 1, "127.0.0.1"), port) is not None
    found = ask("127.0.0.1", "/status", port=port)
    assert found and (found["status"], found["assigned_rank"], found["agent_version"]) == ("running", "1", "1.1.3")
    assert ask("127.0.0.1", "/nowhere", {}, port) is None and ask("127.0.0.1", "/start", {"rank": 1}, port) is None
    (tmp_path / "go").touch()
    eventually(lambda: status(port) == "completed")
    assert process.poll() is None, "it waits until the operator has noted it"
    assert ask("127.0.0.1", "/shutdown", {}, port) is not None
    assert process.wait(60) == 0 and (tmp_path / "begun").read_text() == "x"


@pytest.mark.parametrize(("then", "noted_s", "code"), [("raise SystemExit(7)", 60.0, 7), ("pass", 0.05, 0)])
def test_a_program_that_fails_or_that_nobody_asks_about_any_more_ends_its_pod(
    port_of: Port, then: str, noted_s: float, code: int
) -> None:
    port, process = port_of(then, noted_s)
    start(port)
    assert process.wait(60) == code


def test_signals_are_for_the_program(port_of: Port, tmp_path: Path, eventually: Wait) -> None:
    _, process = port_of("time.sleep(600)")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143, "before it has begun"

    port, process = port_of("time.sleep(600)")
    start(port)
    eventually((tmp_path / "pid").exists)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert process.wait(60) == 137
    (tmp_path / "pid").unlink()

    leaves = "import signal; signal.signal(15, lambda *_: (_ for _ in ()).throw(SystemExit(0))); "
    port, process = port_of(f"{leaves}pathlib.Path({str(tmp_path)!r}, 'armed').touch(); time.sleep(600)")
    start(port)
    eventually(lambda: (tmp_path / "armed").exists() and (tmp_path / "pid").exists())
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, "the pod is being deleted, and nobody is waited for"


def test_requests_take_no_memory(port_of: Port) -> None:
    port, process = port_of("time.sleep(600)")
    for size in (str(1 << 20), "0" * 20 + str(1 << 20), "-1", "x"):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as link:
            link.sendall(f"POST /start HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
            assert link.recv(1000).startswith(b"HTTP/1.1 422"), size
    crowd = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(40)]
    try:
        assert crowd[-1].recv(1) == b"", "sent away"
        assert process.poll() is None
    finally:
        for link in crowd:
            link.close()
