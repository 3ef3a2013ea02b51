"""Who takes part in the loading benchmark, at settings that were the best of those tried, and in which cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

KEY = "model.safetensors"
SHARED_MEMORY = "/dev/shm"
IN_PICTURE = ("lean server", "SeaweedFS", "rclone")
OURS, LIMIT, CONVENTIONAL = "jupyter_hyperpod", "received and thrown away", "boto3 download, load_file"
CHECKSUMS, FAULTS, SAFETENSORS = "jupyter_hyperpod, checksums", "jupyter_hyperpod, 5 % faults", "safetensors load_file"
PREAD, MAPPED = "parallel pread", "mmap, touched"
LOCAL = (PREAD, MAPPED)
LIBRARIES = ("Run:ai Model Streamer", "s3torchconnector", "tensorizer", "fastsafetensors", "obstore", "awscrt")
LOADERS = "benchmarks.loading.loaders"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to load: a loader of `benchmarks.loading.loaders`, run by the interpreter of ``system`` (ours if empty).

    ``ranks`` are the settings of processes that load at the same time, as ranks of one ``job`` or not. ``suffix`` is
    that of an object which it needs beside the model and which ``maker`` (arguments of its interpreter, then source and
    target) writes. ``faults`` are those of the proxy between it and the server.
    """

    name: str
    script: str
    system: str = ""
    connections: int = 8
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    ranks: Sequence[Mapping[str, Any]] = ({},)
    job: bool = False
    suffix: str = ""
    maker: Sequence[str] = ()
    faults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """Arms that load the same model from the same place; ``parts`` says that they load only a part of it each.

    ``often``: how many times as many rounds as elsewhere, where what is judged is smaller than the spread of loads.
    """

    label: str
    arms: Sequence[Arm]
    server: str = ""
    proxied: bool = False
    parts: bool = False
    often: int = 1


RUNAI_SETTINGS = {
    "RUNAI_STREAMER_CONCURRENCY": "8",
    "RUNAI_STREAMER_CHUNK_BYTESIZE": "8388608",
    "RUNAI_STREAMER_MEMORY_LIMIT": "-1",
    "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
}
BROKEN = {"kinds": ["503", "reset", "truncate"], "probability": 0.05}

MINE = Arm(OURS, "ours")
YARDSTICK = Arm(LIMIT, "limit", connections=4)
ORDINARY = Arm(CONVENTIONAL, "conventional", "boto3", connections=10, settings={"directory": SHARED_MEMORY})
RUNAI = Arm("Run:ai Model Streamer", "runai", "runai", environment=RUNAI_SETTINGS)
FAST = Arm("fastsafetensors", "fastsafetensors", "fastsafetensors", settings={"directory": SHARED_MEMORY})
OTHERS = (
    RUNAI,
    Arm("s3torchconnector", "s3torchconnector", "s3torchconnector"),
    Arm(
        "tensorizer",
        "tensorizer",
        "tensorizer",
        connections=4,
        suffix=".tensors",
        maker=("-m", f"{LOADERS}.tensorizer_loader"),
    ),
    FAST,
    Arm("obstore", "obstore", "obstore"),
    Arm("awscrt", "awscrt", "awscrt"),
    Arm("boto3 ranges", "boto3", "boto3"),
)
VERIFIED = Arm(
    CHECKSUMS,
    "ours",
    settings={"checksum": True},
    suffix=".manifest.json",
    maker=("-m", "jupyter_hyperpod", "model", "manifest"),
)


def _parts(size: int, job: bool = True) -> Arm:
    """All ranks of one degree, at the same time, in one job or each for itself."""
    ranks = [{"tp": [rank, size]} for rank in range(size)]
    return Arm(f"{OURS}, tp = {size}", "ours", ranks=ranks, job=job)


CASES = {
    "lean": Case("lean server", (MINE, YARDSTICK, ORDINARY, *OTHERS), "lean", often=3),
    "seaweedfs": Case("SeaweedFS", (MINE, YARDSTICK, ORDINARY, *OTHERS), "seaweedfs", often=3),
    "rclone": Case("rclone", (MINE, YARDSTICK, ORDINARY), "rclone"),
    "local": Case(
        "local file",
        (
            MINE,
            Arm(PREAD, "file", settings={"way": "pread"}, connections=2),
            Arm(MAPPED, "file", settings={"way": "mmap"}),
            Arm(SAFETENSORS, "safetensors", "boto3"),
            FAST,
            RUNAI,
        ),
    ),
    "checksum": Case("lean server, chunks verified", (MINE, VERIFIED), "lean", often=4),
    "parts": Case("lean server, parts of tensors", (_parts(3), _parts(8)), "lean", parts=True),
    "alone": Case(
        "lean server, parts of tensors, no job", (_parts(3, job=False), _parts(8, job=False)), "lean", parts=True
    ),
    "ranks": Case(
        "lean server, every rank the whole model",
        (MINE, Arm(f"{OURS}, 4 ranks", "ours", ranks=({}, {}, {}, {}), job=True)),
        "lean",
    ),
    "faults": Case("lean server behind a proxy", (MINE, Arm(FAULTS, "ours", faults=BROKEN)), "lean", proxied=True),
}
