"""The testbed itself: what it does to a node or a program is what Kubernetes sees, and it leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_hyperpod.core.errors import ClusterError
from jupyter_hyperpod.system.processes import alive
from tests.kubernetes.traces import Traces, inside
from tests.support.kubernetes import CONTROLLER, IMAGE, TEAM, USER, Testbed, build, machine, missing
from tests.support.kubernetes.cluster import API, ETCD, MANAGER

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]
LINE = "import os, sys; print('step', 6 * 7, os.uname().nodename, sys.version_info[0], flush=True)"
WAIT = "import time; print('waits', flush=True); time.sleep(3600)"
SERVER = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000)"
# Asks another pod, then the API for what the pod's account may not see.
CLIENT = """
import os, pathlib, ssl, time, urllib.error, urllib.request
def status(request, **how):
    deadline = time.monotonic() + 60
    while True:
        try:
            return urllib.request.urlopen(request, **how).status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
print(status("http://{address}:8000"))
account = pathlib.Path("/run/secrets/kubernetes.io/serviceaccount")
host = os.environ["KUBERNETES_SERVICE_HOST"] + ":" + os.environ["KUBERNETES_SERVICE_PORT"]
secrets = f"https://{{host}}/api/v1/namespaces/{team}/secrets"
request = urllib.request.Request(secrets, headers={{"Authorization": "Bearer " + (account / "token").read_text()}})
print(status(request, context=ssl.create_default_context(cafile=account / "ca.crt")))
"""
STRANGER = """
import ssl, urllib.error, urllib.request
try:
    print(urllib.request.urlopen("https://ctl/api/v1/nodes", context=ssl._create_unverified_context()).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
KILLED = """
import sys
from tests.kubernetes.test_testbed import WAIT, start
from tests.support.kubernetes import Testbed
with Testbed(1, {"TEST_TRACES_MARK": sys.argv[1]}) as bed:
    start(bed, "waits", WAIT)
    added = bed.add_hollow(3)
    assert bed.ready() == {"n1": "True", **dict.fromkeys(added, "True")}
    start(bed, "hollow", WAIT, added[1])
    print(bed.directory, *(process.pid for process in bed.hosts._up.values()), flush=True)
    input()
"""


def pod(name: str, program: str, **spec: object) -> str:
    """A pod that runs a line of Python once, as JSON."""
    container = {"name": "main", "image": IMAGE, "command": ["python3", "-c", program]}
    whole = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **spec}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole})


def phase(bed: Testbed, name: str) -> str:
    """The phase of a pod of the team, "" where there is none."""
    return str(bed.find("pod", name, "-n", TEAM).get("status", {}).get("phase", ""))


def start(bed: Testbed, name: str, program: str, node: str = "", until: str = "Running") -> None:
    """Start a pod as the user, and wait for its phase."""
    bed.kubectl("apply", "-f", "-", user=USER, text=pod(name, program, **({"nodeName": node} if node else {})))
    bed.until(lambda: phase(bed, name) == until, f"{name} is {until}")


def test_a_pod_runs_a_line_of_python_and_its_log_is_read(kubernetes: Testbed) -> None:
    assert kubernetes.ready() == {"n1": "True", "n2": "True"}
    for node in kubernetes.nodes:
        start(kubernetes, f"line-{node}", LINE, node, until="Succeeded")
        assert kubernetes.kubectl("logs", f"line-{node}", user=USER).stdout == f"step 42 line-{node} 3\n"


def test_a_pod_can_use_the_virtual_environment_of_this_machine(kubernetes: Testbed) -> None:
    program = "import sys, torch; print(sys.prefix, int(torch.ones(2, 3).sum()))"
    host = {"name": "environment", "hostPath": {"path": sys.prefix}}
    mount = {"name": "environment", "mountPath": sys.prefix, "readOnly": True}
    made = json.loads(pod("environment", program, volumes=[host]))
    made["spec"]["containers"][0] |= {"command": [sys.executable, "-c", program], "volumeMounts": [mount]}
    kubernetes.kubectl("apply", "-f", "-", user=USER, text=json.dumps(made))
    ended = ("Succeeded", "Failed")
    kubernetes.until(lambda: phase(kubernetes, "environment") in ended, "the pod has ended", 300)
    assert kubernetes.kubectl("logs", "environment", user=USER).stdout == f"{sys.prefix} 6\n"


def test_pods_of_two_nodes_reach_each_other_and_the_api(kubernetes: Testbed) -> None:
    start(kubernetes, "server", SERVER, "n1")
    address = kubernetes.get("pod", "server", user=USER)["status"]["podIP"]
    start(kubernetes, "client", CLIENT.format(address=address, team=TEAM), "n2", until="Succeeded")
    assert kubernetes.kubectl("logs", "client", user=USER).stdout == "200\n403\n", "an account may read no secret"


def test_a_pod_that_is_deleted_ends(kubernetes: Testbed) -> None:
    start(kubernetes, "waits", WAIT, "n2")
    assert runs(kubernetes, "n2", WAIT)
    kubernetes.kubectl("delete", "pod", "waits", user=USER)
    assert phase(kubernetes, "waits") == ""
    assert not runs(kubernetes, "n2", WAIT)


def test_a_node_without_power_is_not_ready_and_comes_back(kubernetes: Testbed) -> None:
    start(kubernetes, "lost", WAIT, "n2")
    kubernetes.power_cut("n2")
    kubernetes.until(lambda: kubernetes.ready() == {"n1": "True", "n2": "Unknown"}, "the node is lost")
    kubernetes.power_on("n2")
    kubernetes.until(lambda: kubernetes.ready() == {"n1": "True", "n2": "True"}, "the node is back")
    assert not runs(kubernetes, "n2", WAIT), "what ran before the power cut has ended"


def test_a_node_that_is_cut_off_goes_on(kubernetes: Testbed) -> None:
    start(kubernetes, "alone", WAIT, "n1")
    kubernetes.cut("n1")
    kubernetes.until(lambda: kubernetes.ready()["n1"] == "Unknown", "the node is lost")
    assert runs(kubernetes, "n1", WAIT)
    kubernetes.heal("n1")
    kubernetes.until(lambda: kubernetes.ready()["n1"] == "True", "the node is back")


def test_pods_go_on_while_the_api_is_away(kubernetes: Testbed) -> None:
    count = "import time\nfor i in range(10**6): print(i, flush=True); time.sleep(0.1)"
    start(kubernetes, "counts", count, "n1")
    began = time.monotonic()
    with kubernetes.without(API):
        assert kubernetes.kubectl("get", "nodes", check=False).returncode
    kubernetes.away(API, 20)
    assert time.monotonic() - began >= 20
    kubernetes.until(lambda: set(kubernetes.ready().values()) == {"True"}, "all nodes are ready again")
    assert phase(kubernetes, "counts") == "Running"
    last = int(kubernetes.kubectl("logs", "counts", "--tail=1", user=USER).stdout)
    assert last > 100, "it has counted meanwhile"


@pytest.mark.parametrize("program", [ETCD, MANAGER])
def test_a_program_that_is_killed_goes_on_where_it_was(kubernetes: Testbed, program: str) -> None:
    kubernetes.kubectl("create", "configmap", f"before-{program}", "-n", TEAM, "--from-literal=step=7")
    kubernetes.restart(program)
    kept = kubernetes.get("configmap", f"before-{program}", "-n", TEAM)
    assert kept["data"] == {"step": "7"}
    kubernetes.kubectl("create", "namespace", f"after-{program}")
    kubernetes.until(lambda: kubernetes.has_account(f"after-{program}"), "the controller manager works")


def test_a_user_is_refused_outside_the_team(kubernetes: Testbed) -> None:
    def answer(*arguments: str) -> str:
        done = kubernetes.kubectl(*arguments, user=USER, check=False)
        return "done" if done.returncode == 0 else done.stderr

    assert answer("get", "pods") == "done"
    for refused in (
        ("get", "pods", "-n", "default"),
        ("get", "secrets", "-n", "kube-system"),
        ("get", "nodes"),
        ("delete", "node", "n1"),
        ("create", "namespace", "mine"),
        ("create", "clusterrolebinding", "me", "--clusterrole=cluster-admin", f"--user={USER}"),
        ("get", "pods", "--as=admin", "--as-group=system:masters"),
    ):
        assert "Forbidden" in answer(*refused) or "forbidden" in answer(*refused), refused
    asked = kubernetes.hosts.run(CONTROLLER, sys.executable, "-c", STRANGER)
    assert asked.stdout == "401\n", "who has no token learns nothing"


def test_what_is_missing_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing() == ""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert str(tmp_path) in missing() and "make kubernetes" in missing()
    with pytest.raises(ClusterError, match="make kubernetes"):
        Testbed(1)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(machine, "PATH", "/nowhere")
    assert "etcd" in missing() and "apt-get install etcd-server" in missing()


def test_a_build_that_was_killed_leaves_only_what_the_next_one_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (build.cache() / "building-old" / "go").mkdir(parents=True)
    monkeypatch.setattr(build, "SOURCE", "kubernetes=0.0")
    with pytest.raises(RuntimeError, match="kubernetes"):
        build.build()
    assert [path.name for path in build.cache().iterdir()] == ["lock"]


def test_a_testbed_with_hollow_nodes_that_is_killed_leaves_only_what_the_next_one_removes(
    eventually: Callable[..., None],
) -> None:
    """What one leaves that is closed, `tests/leaks.py` looks at after all tests."""
    mark = ("TEST_TRACES_MARK", f"bed-{os.getpid()}")
    before = Traces.now(mark)
    command = [sys.executable, "-c", KILLED, mark[1]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as it:
        assert it.stdout is not None
        directory, *pids = it.stdout.readline().decode().split()
        during = Traces.now(mark, it.pid)
        networks = during.networks - before.networks
        everybody = inside(networks)
        os.kill(it.pid, signal.SIGKILL)
    seen = " ".join(during.since(before))
    words = ("kube-apiserver", "kubelet", "kubemark", "time.sleep", "control group", "file")
    assert all(word in seen for word in words), seen
    assert len(networks) == 3, "the controller's, the node's and the pod's"
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert any("control group" in line for line in Traces.now().since(before)), "who is killed cannot clean up"
    assert Path(directory).exists()
    Testbed(1).close()
    eventually(lambda: not Traces.now(mark).since(before), 15, f"left: {Traces.now(mark).since(before)}")
    eventually(lambda: not any(map(alive, everybody)), 15, f"in its networks: {everybody}")


def runs(bed: Testbed, node: str, program: str) -> bool:
    """Whether a process of a node was started with this program."""
    lines = bed.hosts.run(node, "ps", "-eo", "args").stdout
    return program in lines
