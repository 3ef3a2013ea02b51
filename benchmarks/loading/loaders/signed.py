"""Signatures for requests that an arm writes itself."""

from __future__ import annotations

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.session import get_session

from benchmarks.loading.loaders.process import Task


def headers_for(task: Task, path: str) -> dict[str, str]:
    """The headers of a GET of ``path``, Range apart, signed with the keys of the environment."""
    request = AWSRequest("GET", f"{task.endpoint}{path}", headers={"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"})
    S3SigV4Auth(get_session().get_credentials(), "s3", "us-east-1").add_auth(request)
    host = task.endpoint.partition("//")[2]
    return {"Host": host, **dict(request.prepare().headers)}
