"""Fetches models and data of the Hugging Face Hub, by huggingface_hub, once for all that share its cache.

huggingface_hub locks each file of its cache, goes on with a partial one, and finds endpoint, token and cache in its own
variables (HF_ENDPOINT, HF_TOKEN, HF_HOME). In a job the first member records the commit, and all others fetch that one,
however the branch moves meanwhile.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from ..core.errors import LoaderError, SpecError
from ..storage.source_record import SourceRecord

SCHEME = "hf://"
JOB_VARIABLE = "HYPERPOD_JOB_DIR"
MODEL = ("*.safetensors", "*.safetensors.index.json", "*.manifest.json")  # files that the loader reads
_WHERE = "hf://ORGANISATION/NAME, with @REVISION and /PATH where needed, and hf://datasets/… for a data set"


def is_hub(url: str | os.PathLike[str]) -> bool:
    """Whether the URL names something of the Hub."""
    return os.fspath(url).startswith(SCHEME)


def hub_path(url: str, names: tuple[str, ...] = ()) -> str:
    """Fetch what an ``hf://`` URL names, where the cache lacks it, and return its path in the cache.

    ``names``: patterns of the files that are needed of a whole repository or folder, all by default. Raises SpecError
    for a URL that is not one, LoaderError where the Hub refuses, has no such thing or cannot be reached, and
    ModuleNotFoundError without huggingface_hub.
    """
    import huggingface_hub
    from huggingface_hub.utils._hf_uris import parse_hf_uri

    try:
        found = parse_hf_uri(url)
    except ValueError as error:
        raise SpecError(f"{url}: {error}. Expected {_WHERE}") from None
    if found.type not in ("model", "dataset"):
        raise SpecError(f"{url} is a {found.type}; expected {_WHERE}")
    patterns, revision = _patterns(found.path_in_repo, names), found.revision or "main"
    fetch = partial(huggingface_hub.snapshot_download, found.id, repo_type=found.type, allow_patterns=patterns)
    record = SourceRecord(Path(os.environ[JOB_VARIABLE])) if JOB_VARIABLE in os.environ else None
    key = f"{SCHEME}{found.type}/{found.id}@{revision}"
    try:
        commit = "" if record is None else (record.known(key) or b"").decode()
        root = fetch(revision=commit or revision)
        if record is not None and not commit:
            commit = record.of(key, os.path.basename(root).encode()).decode()
            if commit != os.path.basename(root):  # the branch moved between two members that began together
                root = fetch(revision=commit)
    except Exception as error:
        raise _explained(url, error) from error
    path = os.path.join(root, found.path_in_repo) if found.path_in_repo else root
    if not os.path.exists(path):
        raise LoaderError(url, "no such file or folder in the repository", f"one of {_some_of(root)}")
    return path


def _patterns(path: str, names: tuple[str, ...]) -> list[str] | None:
    if not path:
        return list(names) or None
    return [path, *(f"{path}/{name}" for name in names or ("*",))]


def _some_of(root: str) -> str:
    found = sorted(os.listdir(root)) if os.path.isdir(root) else []
    return ", ".join(found[:5]) or "its files"


def _explained(url: str, error: Exception) -> Exception:
    """The Hub's refusal with what to do; anything that is not the Hub's, such as a full disk, names the cache."""
    from huggingface_hub import constants, errors

    endpoint = constants.ENDPOINT
    words: dict[Any, tuple[str, str, str]] = {
        errors.GatedRepoError: (
            "a model whose owner grants access one by one",
            "a token that has access",
            f"ask for it on the model's page at {endpoint}, then submit with --env HF_TOKEN",
        ),
        errors.RepositoryNotFoundError: (
            f"no such repository at {endpoint}, or one that this token may not see",
            "a public one, or a token with access",
            "check the name; for a private one submit with --env HF_TOKEN",
        ),
        errors.RevisionNotFoundError: ("no such revision", "a branch, a tag or a commit of the repository", ""),
        errors.LocalEntryNotFoundError: (
            "files that the cache lacks, and no answer from the Hub",
            f"a connection to {endpoint}, or all files in {constants.HF_HUB_CACHE}",
            "set HF_ENDPOINT to a mirror, or HF_HOME to a shared folder that holds them",
        ),
        errors.HfHubHTTPError: (_status(error), f"files from {endpoint}", "try again later"),
    }
    for kind, (found, expected, remedy) in words.items():
        if isinstance(error, kind):
            return LoaderError(url, found, expected, remedy)
    if isinstance(error, OSError) and error.errno is not None:
        return LoaderError(url, error.strerror or str(error), f"room and permission in {constants.HF_HUB_CACHE}", "")
    if type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "requests", "huggingface_hub"):
        return LoaderError(url, f"{type(error).__name__}: {error}", f"files from {endpoint}", "try again later")
    return error


def _status(error: Exception) -> str:
    response = getattr(error, "response", None)
    return f"an answer with status {response.status_code}" if response is not None else type(error).__name__
