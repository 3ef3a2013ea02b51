"""Places that models are written to, and Ctrl-C.

place           a directory, of this machine or of a bucket: its URL, and what is in it, begun uploads included
interruptible   Ctrl-C is heard, also where these tests run in the background of a shell
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.s3_servers import S3Server

Environment = Callable[[S3Server], None]
Listed = Callable[[], set[str]]


@pytest.fixture(params=["file", "weed", "rclone"])
def place(request: pytest.FixtureRequest, tmp_path: Path, environment_of: Environment) -> Iterator[tuple[str, Listed]]:
    """A directory: its URL, and what is in it, begun uploads included."""
    if request.param == "file":
        yield str(tmp_path), lambda: set(os.listdir(tmp_path))
        return
    server = request.getfixturevalue("seaweedfs" if request.param == "weed" else "rclone_s3")
    environment_of(server)
    client = server.client()
    prefix = f"{tmp_path.name}/"

    def listed() -> set[str]:
        found = client.list_objects_v2(Bucket=server.bucket, Prefix=prefix).get("Contents", [])
        begun = client.list_multipart_uploads(Bucket=server.bucket).get("Uploads", [])
        return {one["Key"].removeprefix(prefix) for one in found} | {
            f"upload of {one['Key']}" for one in begun if one["Key"].startswith(prefix)
        }

    yield f"{server.url}/{tmp_path.name}", listed
    client.close()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C is heard, also where these tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
