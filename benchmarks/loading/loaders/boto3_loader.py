"""boto3 ranges, many at once, into place."""

from __future__ import annotations

from typing import Any

from benchmarks.loading.loaders.conventional_loader import client
from benchmarks.loading.loaders.process import Load, Task, into_place


def prepare(task: Task) -> Load:
    """One client for all threads."""
    s3 = client(task)

    def body(offset: int, length: int) -> Any:
        span = f"bytes={offset}-{offset + length - 1}"
        return s3.get_object(Bucket=task.bucket, Key=task.key, Range=span)["Body"]

    def fill(offset: int, view: memoryview) -> None:
        stream, done = body(offset, len(view)), 0
        while done < len(view):
            done += stream.readinto(view[done:])

    return lambda facts: into_place(task, lambda offset, length: body(offset, length).read(), fill)
