"""Storage that all nodes share, as volumes and claims: ``--volume fsx=ID:MOUNTNAME``, ``efs=ID``, ``s3=NAME``. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...core.errors import SpecError

_FORMS = {
    "fsx": re.compile(r"(fs-[0-9a-f]{8,17}):([a-z0-9]{1,32})"),
    "efs": re.compile(r"(fs-[0-9a-f]{8,17})()"),
    "s3": re.compile(r"([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])()"),
}
FORM = "fsx=fs-ID:MOUNTNAME, efs=fs-ID or s3=BUCKET"
DRIVERS = {"fsx": "fsx.csi.aws.com", "efs": "efs.csi.aws.com", "s3": "s3.csi.aws.com"}
SIZE = "1200Gi"  # Kubernetes wants a number; none of these drivers looks at it
S3_ACCOUNT = ("kube-system", "s3-csi-driver-sa")


@dataclass(frozen=True, slots=True)
class SharedVolume:
    """A file system or bucket that is there already."""

    kind: str
    id: str
    mount_name: str = ""

    @property
    def claim(self) -> str:
        """The name of its claim, for ``--kubernetes claim=…``."""
        return f"shared-{self.kind}"


def parse(words: Sequence[str]) -> list[SharedVolume]:
    """What a person names. Raises SpecError."""
    found: list[SharedVolume] = []
    for word in words:
        kind, _, what = word.partition("=")
        match = _FORMS[kind].fullmatch(what) if kind in _FORMS else None
        if match is None:
            raise SpecError(f"--volume is {word[:80]!r}, expected {FORM}")
        if any(one.kind == kind for one in found):
            raise SpecError(f"--volume names {kind} twice; a second one needs a claim that you write yourself")
        found.append(SharedVolume(kind, match[1], match[2]))
    return found


def manifests(volumes: Sequence[SharedVolume], namespace: str, region: str) -> list[dict[str, Any]]:
    """A volume and a claim for each; deleting them deletes no data."""
    made: list[dict[str, Any]] = []
    for one in volumes:
        name = f"{namespace}-{one.kind}"
        common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        made.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name},
                "spec": {
                    **common,
                    "capacity": {"storage": SIZE},
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {"namespace": namespace, "name": one.claim},
                    **({"mountOptions": [f"region {region}", "allow-delete"]} if one.kind == "s3" else {}),
                    "csi": _source(one, name, region),
                },
            }
        )
        made.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": one.claim, "namespace": namespace},
                "spec": {**common, "volumeName": name, "resources": {"requests": {"storage": SIZE}}},
            }
        )
    return made


def _source(one: SharedVolume, name: str, region: str) -> dict[str, Any]:
    driver = {"driver": DRIVERS[one.kind]}
    if one.kind == "fsx":
        place = {"dnsname": f"{one.id}.fsx.{region}.{_partition(region)[1]}", "mountname": one.mount_name}
        return {**driver, "volumeHandle": one.id, "volumeAttributes": place}
    if one.kind == "s3":
        return {**driver, "volumeHandle": name, "volumeAttributes": {"bucketName": one.id}}
    return {**driver, "volumeHandle": one.id}


def _partition(region: str) -> tuple[str, str]:
    """The part of AWS that a region is in, in names of resources; and the end of its addresses."""
    if region.startswith("cn-"):
        return "aws-cn", "amazonaws.com.cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws", "amazonaws.com"


def bucket_policy(bucket: str, region: str) -> dict[str, Any]:
    """What the driver of S3 has to be allowed, by the guide of https://github.com/awslabs/mountpoint-s3-csi-driver."""
    at = f"arn:{_partition(region)[0]}:s3:::{bucket}"
    whole = {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": [at]}
    actions = ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload", "s3:DeleteObject"]
    objects = {"Effect": "Allow", "Action": actions, "Resource": [f"{at}/*"]}
    return {"Version": "2012-10-17", "Statement": [whole, objects]}
