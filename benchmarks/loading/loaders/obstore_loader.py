"""obstore: ranges in threads, each copied into place once it is there."""

from __future__ import annotations

import os

from obstore import get_range
from obstore.store import S3Store

from benchmarks.loading.loaders.process import Load, Task, into_place


def prepare(task: Task) -> Load:
    """One store for all threads."""
    store = S3Store(
        task.bucket,
        endpoint=task.endpoint,
        access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )

    def get(offset: int, length: int) -> bytes:
        return bytes(get_range(store, task.key, start=offset, length=length))

    def fill(offset: int, view: memoryview) -> None:
        view[:] = memoryview(get_range(store, task.key, start=offset, length=len(view)))

    return lambda facts: into_place(task, get, fill)
