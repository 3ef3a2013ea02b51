"""Checks names of jobs, mounts, queues and environment variables, and ids of jobs; gives URLs a name that is public."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

from .errors import SpecError

LONGEST_NAME = 40
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}-[a-z2-7]{8}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def validate_name(name: str, what: str) -> str:
    """Return `name` if it is safe as a file name and a label; raises SpecError."""
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"{what} {name[:80]!r} is not allowed; "
            "use 1 to 40 letters, digits, '-' or '_', starting with a letter or digit"
        )
    return name


def is_env_name(text: str) -> bool:
    """Return whether `text` can be the name of an environment variable."""
    return _ENV_NAME.fullmatch(text) is not None


def is_job_id(text: str) -> bool:
    """Return whether `text` has the form of a job id."""
    return _JOB_ID.fullmatch(text) is not None


def may_be_trial(job_id: str, sweep: str | None = None) -> bool:
    """Whether a job's id is that of a trial of this sweep, or of one with the same name; of any sweep where None."""
    name = ".*" if sweep is None else re.escape(sweep.rpartition("-")[0])
    return re.fullmatch(rf"{name}-\d+-[a-z2-7]{{8}}", job_id) is not None


def validate_job_id(job_id: str) -> str:
    """Return `job_id` if it has the form NAME-xxxxxxxx; raises SpecError. Keeps paths inside the store."""
    if not is_job_id(job_id):
        raise SpecError(
            f"job id {job_id[:80]!r} is not of the form NAME-xxxxxxxx; `jupyter hyperpod list` shows the ids"
        )
    return job_id


def public_name(url: str) -> str:
    """Return `url` without parts that may be secret: user, password, query."""
    parts = urlsplit(url)
    if not parts.scheme or not parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))
