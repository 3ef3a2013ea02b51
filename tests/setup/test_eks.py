"""The folder of an EKS cluster: frozen, and valid by the schemas of eksctl, Kubernetes and Kueue; not run on AWS.

Write the frozen files anew with ``python -m tests.setup.test_eks``.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control.setup import eks, node_groups, volumes
from jupyter_hyperpod.control.setup.eks import ClusterWish, render
from jupyter_hyperpod.control.setup.own_objects import own_objects
from jupyter_hyperpod.control.setup.versions import table
from jupyter_hyperpod.core import backend_options
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.health.tables import instances

DATA = Path(__file__).parents[1] / "data"
GOLDEN = DATA / "eks"
EKSCTL, KUEUE = (json.loads((DATA / "schemas" / f"{name}.json").read_text()) for name in ("eksctl", "kueue"))
ZONES = ("us-west-2a", "us-west-2b")


def wish(
    *nodes: str, zones: Sequence[str] = ZONES, shared: Sequence[str] = (), region: str = "us-west-2"
) -> ClusterWish:
    return ClusterWish("alpha", region, node_groups.parse(nodes), zones, volumes.parse(shared))


CASES = {
    "gpus": wish("p5.48xlarge:4:cr-0123456789abcdef0", "g5.12xlarge:2:spot", shared=["fsx=fs-0123456789abcdef0:abcd"]),
    "block": wish("p5en.48xlarge:16:block=cr-0123456789abcdef0", shared=["s3=team-data", "efs=fs-0123456789abcdef1"]),
    "trainium": wish("ml.trn1.32xlarge:2", "c5n.18xlarge:1"),
    "processors": wish("m6i.4xlarge:3", zones=()),
}


def frozen(name: str) -> str:
    return "".join(f"==== {file}\n{text}" for file, text in render(CASES[name]).items())


@pytest.mark.parametrize("name", CASES)
def test_files_are_frozen(name: str) -> None:
    path = GOLDEN / f"{name}.txt"
    assert frozen(name) == path.read_text(), "write it anew with `python -m tests.setup.test_eks` if that is meant"


def objects(text: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(text) if one]


def validate(one: dict[str, Any]) -> None:
    """Raise an error where an object does not fit the schema of its kind."""
    group, _, version = one["apiVersion"].partition("/")
    if group == "eksctl.io":
        jsonschema.validate(one, EKSCTL)
    elif group == "kueue.x-k8s.io":
        jsonschema.validate(one, closed(KUEUE[one["kind"]][version]))
    else:
        kubernetes_validate.validate(one, table("eks")["kubernetes"], strict=True)


def closed(schema: Any) -> Any:
    """The same schema of Kubernetes, which would drop what it does not know, refusing that instead."""
    found = copy.deepcopy(schema)

    def close(part: Any) -> None:
        if isinstance(part, dict):
            if "properties" in part and part["properties"].keys() != {"name"}:
                part.setdefault("additionalProperties", False)
            for inner in part.values():
                close(inner)

    close(found)
    found["properties"]["metadata"] = {"type": "object"}
    return found


@pytest.mark.parametrize("name", CASES)
def test_everything_fits_its_schema(name: str) -> None:
    files = render(CASES[name])
    made = [one for file, text in files.items() if file.endswith(".yaml") and "/" not in file for one in objects(text)]
    assert len(made) > 8
    for one in made:
        validate(one)
    own = objects(files["hyperpod.yaml"])
    assert own == own_objects(
        "hyperpod", {"kind": "ServiceAccount", "name": "default", "namespace": "hyperpod"}, groups=CASES[name].groups
    )


@pytest.mark.parametrize(
    ("file", "at", "value"),
    [
        ("cluster.yaml", ("managedNodeGroups", 1, "efaEnabled"), "many"),
        ("cluster.yaml", ("managedNodeGroups", 1, "efa"), True),
        ("cluster.yaml", ("addons", 0, "name"), None),
        ("hyperpod.yaml", ("value",), "high"),
        ("hyperpod.yaml", ("rules", 0, "verb"), ["get"]),
        ("hyperpod.yaml", ("spec", "clusterQueue"), ""),
        ("hyperpod.yaml", ("spec", "queue"), "x"),
        ("volumes.yaml", ("spec", "csi", "driver"), 3),
    ],
)
def test_the_schemas_are_in_force(file: str, at: tuple[Any, ...], value: Any) -> None:
    for one in objects(render(CASES["gpus"])[file]):
        part: Any = one
        try:
            for step in at[:-1]:
                part = part[step]
        except (LookupError, TypeError):
            continue
        if at[-1] in part or at[-1] in ("efa", "verb", "queue"):
            validate(one)
            part[at[-1]] = value
            with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
                validate(one)
            return
    raise AssertionError("no object has that")


@pytest.mark.parametrize("name", sorted(instances()))
def test_each_known_type_makes_a_valid_group_with_its_devices(name: str) -> None:
    found = instances()[name]
    files = render(wish(f"{name}:2"))
    (config,) = objects(files["cluster.yaml"])
    validate(config)
    group = config["managedNodeGroups"][1]
    assert group["instanceType"] == name and group["desiredCapacity"] == 2
    assert group.get("efaEnabled", False) == bool(found.efa) and len(group.get("availabilityZones", ())) == bool(
        found.efa
    )
    assert f"| {name} | 2 | " in files["README.md"]
    assert ("values/nvidia-device-plugin.yaml" in files) == (found.kind == "nvidia")
    assert ("values/neuron-helm-chart.yaml" in files) == (found.kind == "neuron")
    assert ("values/aws-efa-k8s-device-plugin.yaml" in files) == bool(found.efa)
    (queue,) = (one for one in objects(files["hyperpod.yaml"]) if one["kind"] == "ClusterQueue")
    quotas = {one["name"]: one["nominalQuota"] for one in queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"]}
    resource = node_groups.RESOURCES.get(found.kind, "")
    expected = {resource: 2 * found.devices, node_groups.EFA: 2 * found.efa}
    assert quotas == ({key: value for key, value in expected.items() if key and value} or {"pods": 2})


def test_a_bucket_and_a_file_system_are_those_of_the_region() -> None:
    files = render(wish("m6i.4xlarge:1", zones=(), shared=["s3=data", "fsx=fs-12345678:abcd"], region="cn-north-1"))
    assert "arn:aws-cn:s3:::data/*" in files["cluster.yaml"]
    assert "fs-12345678.fsx.cn-north-1.amazonaws.com.cn" in files["volumes.yaml"]
    assert "arn:aws-us-gov:s3" in str(volumes.bucket_policy("data", "us-gov-west-1"))


def test_kueue_is_told_to_count_devices_alone() -> None:
    (values,) = objects(render(CASES["gpus"])["values/kueue.yaml"])
    (config,) = objects(values["managerConfig"]["controllerManagerConfigYaml"])
    assert config["resources"]["excludeResourcePrefixes"] == ["cpu", "memory", "ephemeral-storage"]


def test_the_guide_has_every_file_and_a_job_that_is_accepted() -> None:
    files = render(CASES["block"])
    guide = files["README.md"]
    assert all(name in guide for name in files if name != "README.md")
    assert guide.count("Not verified on AWS") == 1
    assert all("Not verified on AWS" in text.splitlines()[0] for name, text in files.items() if name != "README.md")
    (line,) = re.findall(r"jupyter hyperpod submit (.*?)```", guide.replace("\\\n", ""), re.DOTALL)
    words = shlex.split(line)
    options = dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "--kubernetes")
    backend_options.check("kubernetes", "kubernetes", options)
    assert options["claim"] == "shared-s3:/s3,shared-efs:/efs" and options["queue"] == "hyperpod-localqueue"


def test_versions_are_in_one_place_with_their_sources() -> None:
    folder = Path(eks.__file__).parent
    named = [str(chart["version"]) for chart in table("charts").values()] + [table("uv")["image"].split(":")[1]]
    for path in folder.glob("*.py"):
        assert not [version for version in named if version in path.read_text()], path.name
    parts = re.findall(r"^\[[\w.-]+\].*", (folder / "versions.toml").read_text(), re.MULTILINE)
    assert len(parts) > 8 and all("https://" in part for part in parts), "each part says where its versions are from"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("p5.48xlarge", "expected TYPE:COUNT, TYPE:COUNT:spot"),
        ("p5.48xlarge:x", "expected TYPE:COUNT"),
        ("p5.48xlarge:0", "expected a number from 1 to 5000"),
        ("p5.48xlarge:2:cheap", "expected TYPE:COUNT"),
        ("p5.48xlrge:2", "did you mean p5.48xlarge?"),
        ("p5.48xlarge:2 p5.48xlarge:3", "names p5-48xlarge twice"),
    ],
)
def test_groups_that_are_none_are_refused(words: str, said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(said)):
        node_groups.parse(words.split())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "a b"}, "expected letters, digits and -"),
        ({"region": "west"}, "--region is 'west'"),
        ({"groups": []}, "a cluster needs nodes"),
        ({"zones": ("us-east-1a", "us-west-2b")}, "expected zones of us-west-2"),
        ({"zones": ("us-west-2a",)}, "EKS wants two"),
        ({"zones": ()}, "p5-48xlarge must be in one zone"),
    ],
)
def test_clusters_that_could_not_be_made_are_refused(changes: dict[str, Any], said: str) -> None:
    fields = {"name": "alpha", "region": "us-west-2", "groups": node_groups.parse(["p5.48xlarge:1"]), "zones": ZONES}
    with pytest.raises(SpecError, match=re.escape(said)):
        render(ClusterWish(**{**fields, **changes}))


@pytest.mark.parametrize("word", ["fsx=fs-12345678", "efs=/data", "s3=Bucket", "nfs=host", "s3=a:b", "efs"])
def test_storage_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(SpecError, match="expected fsx=fs-ID:MOUNTNAME, efs=fs-ID or s3=BUCKET"):
        volumes.parse([word])


def test_the_command_writes_the_folder_and_refuses_what_belongs_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["setup", "eks", "alpha", "--region", "us-west-2", "-o", str(tmp_path / "eks"), "--nodes", "m6i.4xlarge:2"]
    assert main([*words, "t3.micro:1"]) == 2 and not (tmp_path / "eks").exists()
    assert "nothing is known of the type 't3.micro'" in capsys.readouterr().err
    assert main([*words, "c5n.18xlarge:1", "--zones", ",".join(ZONES)]) == 0
    said = capsys.readouterr().out
    assert "a cluster of 2 x m6i.4xlarge, 1 x c5n.18xlarge" in said and "not verified on AWS" in said
    assert (tmp_path / "eks" / "values" / "kueue.yaml").exists()
    assert main(["setup", "eks", "alpha"]) == 2
    assert "expected `setup eks NAME --region R --nodes TYPE:COUNT`" in capsys.readouterr().err
    assert main(["setup", "check", "--nodes", "p5.48xlarge:2"]) == 2
    assert "--nodes is p5.48xlarge:2, expected a number" in capsys.readouterr().err
    assert main(["setup", "role", "--volume", "s3=data"]) == 2
    assert "--volume belongs to `setup eks`" in capsys.readouterr().err


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for case in CASES:
        (GOLDEN / f"{case}.txt").write_text(frozen(case))
