"""What Kubernetes is told, letter by letter, and that nothing a person may choose is ever read by a shell."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jupyter_hyperpod.backends.kubernetes import manifests, parse
from jupyter_hyperpod.backends.kubernetes.manifests import PodUser
from jupyter_hyperpod.backends.kubernetes.pod_sharing import foreign_user, person
from jupyter_hyperpod.backends.types import BASE, ELASTIC
from jupyter_hyperpod.core.backend_options import (
    KUBERNETES,
    LabelRule,
    Toleration,
    head_store,
    label_rules,
    names,
    pairs,
    pod_user,
    shared_directories,
    tolerations,
)
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.spec import JobSpec, LaunchPlan
from jupyter_hyperpod.system import portable
from tests.support.pod_security import refusals

GOLDEN = Path(__file__).with_name("golden")
PLAN = LaunchPlan(
    job_id="train-abcdefgh",
    module="jupyter_hyperpod.runtime.agent.main",
    head_module="jupyter_hyperpod.runtime.coordinator.main",
    arguments=(),
    env={"OMP_NUM_THREADS": "2", "GREETING": "it's $HOME `id` $(id)"},
    python="/opt/my env/bin/python",
    working_directory="/fsx/me/my project",
    log_directory="/fsx/store/jobs/train-abcdefgh/logs",
    warm_key="0",
)
PLAIN = {"image": "registry.example/train:3", "host-path": "/fsx"}
RICH = {
    "image": "registry.example/train:3",
    "claim": "team-data:/fsx,models:/models:ro",
    "namespace": "hyperpod-ns-alpha",
    "queue": "hyperpod-ns-alpha-localqueue",
    "priority-class": "training-priority",
    "elastic-priority-class": "spare-priority",
    "resources": "cpu=8,memory=64Gi,nvidia.com/gpu=8",
    "selector": "sagemaker.amazonaws.com/instance-group-name=workers",
    "bind": "10.0.0.1",
}
PLACED = {
    "image": "registry.example/train:3",
    "claim": "team/me:/fsx,team/models:/models:ro",
    "user": "1000:2000",
    "fs-group": "2000",
    "affinity": "zone=a|b,gpu!=t4,fast,!spot",
    "prefer": "rack=r1,quiet",
    "tolerations": "nvidia.com/gpu,team=alpha:NoSchedule",
    "pull-secrets": "registry,mirror",
}
APART = {"image": "registry.example/train:3", "claim": "models:/models:ro"}
CASES: dict[str, dict[str, Any]] = {
    "apart": {"options": {**APART, "head": "within"}, "part": BASE, "person": PodUser(1000, 1000)},
    "plain": {"options": PLAIN, "part": BASE, "person": PodUser(0, 0)},
    "placed": {"options": PLACED, "part": BASE, "person": PodUser(1000, 2000), "avoid": ("n3",)},
    "rich": {
        "options": RICH,
        "part": ELASTIC,
        "person": PodUser(1000, 1000, (4, 27), "/fsx/me"),
        "avoid": ("n3", "n4"),
    },
}
text = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=40)
name = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
number = st.integers(0, 2**31 - 1)
DEVICES = ["cpu", "memory", "nvidia.com/gpu", "amd.com/gpu", "aws.amazon.com/neuron", "vpc.amazonaws.com/efa"]
rules = st.lists(st.tuples(name, st.sampled_from(["=", "!=", "", "!"]), st.lists(name, min_size=1)), min_size=1)
taints = st.lists(
    st.tuples(name, st.just("") | name, st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"])), min_size=1
)


def written_rules(found: list[tuple[str, str, list[str]]]) -> str:
    """As a person writes them."""
    return ",".join(f"{key}{how}{'|'.join(values)}" if "=" in how else f"{how}{key}" for key, how, values in found)


def read_rules(found: Iterable[dict[str, Any]]) -> list[LabelRule]:
    return [LabelRule(one["key"], one["operator"], tuple(one.get("values", ()))) for one in found]


HEADED = {
    "rich-head": {**RICH, "head": "pod", "account": "heads"},
    "plain-head": {**PLAIN, "head": "pod"},
    "placed-head": {**PLACED, "head": "pod"},
    "apart-head": {**APART, "head": "pod"},
    "claimed-head": {**PLACED, "head": "pod", "head-claim": "mine"},
}


def rendered(case: str) -> str:
    if case in HEADED:
        program = ["/opt/$(x)/python", "-m", "jupyter_hyperpod.supervisor.head_pod", "serve", "--job", PLAN.job_id]
        account = HEADED[case].get("account", "default")
        return json.dumps(manifests.head_job(PLAN.job_id, HEADED[case], program, account), indent=2) + "\n"
    manifest = manifests.job(PLAN, batch=1764163651000000, index=0, **CASES[case])
    return json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"


def expanded(word: str, known: dict[str, str]) -> str:
    """What a kubelet makes of an argument or variable (third_party/forked/golang/expansion): a copy of its rules."""

    def one(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return known.get(match[1], match[0]) if match[1] is not None else match[0]

    return re.sub(r"\$\$|\$\(([^)]*)\)|\$", one, word)


@pytest.mark.parametrize("case", [*CASES, *HEADED])
def test_the_manifest_of_an_element(case: str) -> None:
    told = "write it anew with `python -m tests.backends.kubernetes.test_manifests` if that is meant"
    assert rendered(case) == (GOLDEN / f"{case}.json").read_text(), told


def test_a_head_may_run_beside_a_node_of_its_job_and_only_it_has_an_account() -> None:
    head = manifests.head_job(PLAN.job_id, HEADED["rich-head"], ["python"], "heads")
    node = manifests.job(PLAN, RICH, BASE, 1, 0, PodUser(0, 0))
    assert manifests.JOB not in head["spec"]["template"]["metadata"]["labels"], "nodes of a job never share a host"
    assert [one["spec"]["template"]["spec"]["automountServiceAccountToken"] for one in (head, node)] == [True, False]
    assert parse.elements([head, node], []).keys() == {PLAN.job_id}
    assert len(parse.elements([head, node], [])[PLAN.job_id]) == 1, "a head is no node"


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"claim": "data:/fsx"}, "/fsx/hyperpod-heads"),
        ({"claim": "data:/fsx:ro,work:/work", "host-path": "/x"}, "/work/hyperpod-heads"),
        ({"claim": "data:/fsx:ro"}, "/hyperpod"),
        ({"claim": "data:/fsx", "head-claim": "mine"}, "/hyperpod"),
        ({}, "/hyperpod"),
        ({"claim": "data:/fsx", "head-store": "/fsx/me"}, "/fsx/me"),
    ],
)
def test_where_a_head_keeps_its_store(options: dict[str, str], where: str) -> None:
    assert head_store({**options, "head": "pod"}) == where


@pytest.mark.parametrize(
    "wrong",
    [
        {"head": "there"},
        {"head-store": "fsx"},
        {"head-store": "/a/../b"},
        {"account": "A"},
        {"head-claim": "mine"},
        {"head-claim": "A", "head": "pod"},
        {"head-claim": "mine", "head": "pod", "head-store": "/x"},
    ],
)
def test_options_of_a_head_are_checked(wrong: dict[str, str]) -> None:
    with pytest.raises(SpecError, match="Kubernetes option"):
        JobSpec(name="x", cell_digest="0" * 64, backend="kubernetes", kubernetes={**PLAIN, **wrong})


@settings(max_examples=60, deadline=None)
@given(value=text, argument=text, python=text.filter(bool))
@example(value="$(HOME) $$(HOME) $$$(x) $", argument="$(touch executed); `touch executed`", python="/bin/$(id)")
def test_nothing_chosen_by_a_person_is_read_by_a_shell_or_a_kubelet(
    tmp_path_factory: pytest.TempPathFactory, value: str, argument: str, python: str
) -> None:
    """The shell finds a program in the place of Python that says what it was started with."""
    place = tmp_path_factory.mktemp("pod")
    says = place / "says"
    says.write_text('#!/bin/sh\nprintf \'%s\\0\' "$VALUE" "$PWD" "$@"\n')
    says.chmod(0o755)
    plan = replace(
        PLAN,
        env={"VALUE": value},
        python=python,
        arguments=(argument,),
        working_directory=str(place),
        log_directory=str(place),
    )
    (container,) = manifests.job(plan, PLAIN, BASE, 7, 0, PodUser(0, 0))["spec"]["template"]["spec"]["containers"]
    known = {"HOME": "/tmp", "x": "y"}
    env = {one["name"]: expanded(one["value"], known) for one in container["env"] if "value" in one}
    command = [expanded(word, known) for word in container["command"]]
    assert env["VALUE"] == value and command[2] == manifests.START, "the shell's own words are always the same"
    assert command[6] == python
    command[2] = command[2].replace(manifests.PROCESS, f"{place}/pid")
    command[6] = str(says)
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", **{k: v for k, v in env.items() if k != "PWD"}}
    subprocess.run(command, env=environment, check=True)
    seen, where, *words = (place / "hp-7-0.log").read_bytes().decode().split("\0")[:-1]
    assert (seen, where, words) == (value, str(place), ["-m", PLAN.module, argument])
    assert not (place / "executed").exists() and (place / "pid").read_text().strip().isdecimal()


def test_a_signal_is_sent_by_a_shell_that_reads_nothing_else(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    (tmp_path / "pid").write_text(f"{process.pid}\n")
    command = manifests.signal_command(9)
    assert command[:3] == ["/bin/sh", "-c", manifests.SIGNAL]
    subprocess.run([*command[:2], command[2].replace(manifests.PROCESS, f"{tmp_path}/pid"), command[3]], check=True)
    assert process.wait(50) == -9


@given(batch=st.integers(0, 10**17), index=st.integers(0, 10_000), state=st.sampled_from(sorted(parse.PHASES)))
def test_a_name_says_the_batch_and_is_one_of_kubernetes(batch: int, index: int, state: str) -> None:
    made = manifests.element_name(batch, index)
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", made)
    element = parse.element(made, state, "n1", "", "job", BASE)
    assert element is not None
    assert (element.name, element.batch, element.phase) == (made, batch, parse.PHASES[state])


@given(st.text(max_size=30))
def test_a_name_of_another_kind_is_none(word: str) -> None:
    element = parse.element(word, parse.RUNNING, "", "", "job", BASE)
    assert element is None or manifests.element_name(element.batch, int(word.split("-")[2])) == word


OPTIONS = st.fixed_dictionaries(
    {"image": name, "host-path": name.map(lambda word: f"/{word}")},
    optional={
        "namespace": name,
        "queue": name,
        "priority-class": name,
        "user": st.tuples(number, number).map("{0[0]}:{0[1]}".format),
        "fs-group": number.map(str),
        "affinity": rules.map(written_rules),
        "prefer": rules.map(written_rules),
        "tolerations": taints.map(
            lambda found: ",".join(key + (f"={value}" if value else "") + f":{how}" for key, value, how in found)
        ),
        "pull-secrets": st.lists(name, min_size=1, unique=True).map(",".join),
        "resources": st.dictionaries(st.sampled_from(DEVICES), st.integers(1, 99), min_size=1).map(
            lambda found: ",".join(f"{key}={value}" for key, value in found.items())
        ),
        "selector": st.dictionaries(name, name, min_size=1).map(
            lambda found: ",".join(f"{key}={value}" for key, value in found.items())
        ),
    },
)


@given(
    options=OPTIONS,
    part=st.sampled_from([BASE, ELASTIC]),
    batch=st.integers(1, 10**16),
    avoid=st.lists(name, max_size=3, unique=True),
)
def test_what_is_asked_for_comes_back_from_the_manifest(
    options: dict[str, str], part: str, batch: int, avoid: list[str]
) -> None:
    JobSpec("job", "0" * 64, backend="kubernetes", kubernetes=options)
    uid, gid = pod_user(options) or (7, 8)
    made = json.loads(json.dumps(manifests.job(PLAN, options, part, batch, 3, PodUser(uid, gid), avoid)))
    pod = made["spec"]["template"]["spec"]
    kubernetes_validate.validate(made, "1.31", strict=True)
    who = pod["securityContext"]
    assert (who["runAsUser"], who["runAsGroup"], who.get("runAsNonRoot", False)) == (uid, gid, uid != 0)
    assert who.get("fsGroup") == (int(options["fs-group"]) if "fs-group" in options else None)
    assert [one["name"] for one in pod.get("imagePullSecrets", [])] == names(options.get("pull-secrets", ""))
    accepted = [Toleration(one["key"], one.get("value"), one["effect"]) for one in pod.get("tolerations", [])]
    assert accepted == tolerations(options.get("tolerations", ""))
    placed = pod["affinity"].get("nodeAffinity", {})
    wishes = placed.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    assert read_rules(rule for wish in wishes for rule in wish["preference"]["matchExpressions"]) == label_rules(
        options.get("prefer", "")
    )
    (container,) = pod["containers"]
    assert container["image"] == options["image"]
    assert pod.get("priorityClassName") == options.get("priority-class")
    assert made["metadata"]["labels"].get(manifests.QUEUE) == options.get("queue")
    assert pod.get("nodeSelector", {}) == pairs(options.get("selector", ""))
    assert container.get("resources", {}).get("requests", {}) == pairs(options.get("resources", ""))
    assert [one["hostPath"]["path"] for one in pod["volumes"][:-1]] == [options["host-path"]]
    terms = pod["affinity"].get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    (term,) = terms.get("nodeSelectorTerms", [{}])
    assert [one["values"] for one in term.get("matchFields", ())] == [[node] for node in avoid]
    assert read_rules(term.get("matchExpressions", ())) == label_rules(options.get("affinity", ""))
    ((found,),) = parse.elements([made], []).values()
    assert (found.name, found.job, found.part, found.batch) == (f"hp-{batch}-3", PLAN.job_id, part, batch)
    assert found.state == parse.PENDING and found.waits


def test_pods_of_another_user_than_root_are_admitted_where_pods_are_restricted() -> None:
    """Claims only: directories of nodes are what no such namespace admits."""
    for case in ("placed", "placed-head", "rich"):
        assert refusals(json.loads(rendered(case))["spec"]["template"]["spec"]) == []
    of_root = json.loads(rendered("plain"))["spec"]["template"]["spec"]
    assert refusals(of_root) == ["volumes of these kinds: hostPath", "runAsNonRoot is not true", "runAsUser is 0"]


def test_a_claim_is_one_volume_and_stays_read_only_where_it_is_mounted_so() -> None:
    options = {"image": "x", "claim": "a/me:/fsx,a/models:/models:ro,b/x:/x:ro,b:/b:ro", "host-path": "/a:ro"}
    pod = manifests.job(PLAN, options, BASE, 1, 0, PodUser(1, 1))["spec"]["template"]["spec"]
    assert [one.get("persistentVolumeClaim") for one in pod["volumes"]] == [
        {"claimName": "a"},
        {"claimName": "b", "readOnly": True},
        None,
        None,
    ]
    mounts = pod["containers"][0]["volumeMounts"]
    assert [(one["name"], one["mountPath"], one.get("subPath"), one.get("readOnly")) for one in mounts] == [
        ("shared-0", "/fsx", "me", None),
        ("shared-0", "/models", "models", True),
        ("shared-1", "/x", "x", True),
        ("shared-1", "/b", None, True),
        ("shared-2", "/a", None, True),
        ("memory", "/dev/shm", None, None),
    ]


def test_pods_run_as_another_user_only_where_the_store_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portable, "user_id", lambda: 1000)
    for options in (PLAIN, {**PLAIN, "user": "1000:5"}, {**PLAIN, "user": "7", "head": "pod"}):
        assert foreign_user(options) == ""
    assert "pods would run as user 7" in foreign_user({**PLAIN, "user": "7"})
    assert person({**PLAIN, "user": "1000:5"}).gid == 5


def test_directories_that_pods_share() -> None:
    found = shared_directories({"claim": "data:/fsx,models:/m:ro", "host-path": "/scratch/a"})
    assert [(one.path, one.claim, one.read_only) for one in found] == [
        ("/fsx", "data", False),
        ("/m", "models", True),
        ("/scratch/a", "", False),
    ]
    lacking = manifests.missing_directories(RICH, ["/fsx", "/fsx/a/b", "/fsx2", "/models/x", "/fsx/../etc"])
    assert lacking == ["/fsx2", "/fsx/../etc"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"imege": "x"}, "did you mean image"),
        ({"host-path": "/a"}, "needs --kubernetes image="),
        ({"image": "x"}, "needs --kubernetes claim=… or --kubernetes host-path=…"),
        ({"image": "x y", "host-path": "/a"}, "not the name of an image"),
        ({"image": "x", "host-path": "a"}, "not of the form /PATH"),
        ({"image": "x", "host-path": "/"}, "not a plain path"),
        ({"image": "x", "host-path": "/a/../b"}, "not a plain path"),
        ({"image": "x", "host-path": "/a,/a:ro"}, "given twice"),
        ({"image": "x", "claim": "/a"}, "not of the form NAME:/PATH"),
        ({"image": "x", "claim": "c:/a:rw"}, "not of the form NAME:/PATH"),
        ({"image": "x", "host-path": "/a", "namespace": "My Team"}, "not the name of a namespace"),
        ({"image": "x", "host-path": "/a", "resources": "cpu=lots"}, "is no amount"),
        ({"image": "x", "host-path": "/a", "resources": "cpu"}, "KEY=VALUE"),
        ({"image": "x", "claim": "c/../x:/a"}, "no directory of the claim c"),
        ({"image": "x", "claim": "c/:/a"}, "no directory of the claim c"),
        ({"image": "x", "host-path": "/a", "user": "me"}, "no number of a user"),
        ({"image": "x", "host-path": "/a", "user": "1:"}, "no number of a user"),
        ({"image": "x", "host-path": "/a", "user": "2147483648"}, "no number of a user"),
        ({"image": "x", "host-path": "/a", "fs-group": "-1"}, "no number of a user or group"),
        ({"image": "x", "host-path": "/a", "affinity": "zone="}, "KEY!=VALUE|VALUE, KEY or !KEY"),
        ({"image": "x", "host-path": "/a", "prefer": "!zone=a"}, "KEY!=VALUE|VALUE, KEY or !KEY"),
        ({"image": "x", "host-path": "/a", "tolerations": "gpu:Never"}, "effects are NoSchedule"),
        ({"image": "x", "host-path": "/a", "tolerations": "=x"}, "not of the form KEY"),
        ({"image": "x", "host-path": "/a", "pull-secrets": "A"}, "not the name of a secret"),
        ({"image": "x", "host-path": "/a", "selector": "zone=a b"}, "cannot be a label"),
        ({"image": "x", "host-path": "/a", "startup-deadline": "0s"}, "a time such as 5min"),
    ],
)
def test_options_are_refused_in_words(options: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(said)):
        JobSpec("job", "0" * 64, backend="kubernetes", kubernetes=options)


def test_options_of_another_backend_mean_nothing() -> None:
    with pytest.raises(SpecError, match="belong to --backend kubernetes; the backend is slurm"):
        JobSpec("job", "0" * 64, backend="slurm", kubernetes=PLAIN)
    assert JobSpec("job", "0" * 64, backend="kubernetes", kubernetes=PLAIN).backend_options == PLAIN
    assert set(RICH) | set(PLACED) <= set(KUBERNETES.checks)


if __name__ == "__main__":
    for case in (*CASES, *HEADED):
        (GOLDEN / f"{case}.json").write_text(rendered(case))
