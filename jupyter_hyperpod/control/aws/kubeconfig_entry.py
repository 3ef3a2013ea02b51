"""Makes a cluster of EKS a context of the kubeconfig, and the current one. What is there otherwise stays.

Names are those of ``aws eks update-kubeconfig``, so that neither makes a second context of a cluster that the other
has made. No credential is written: kubectl and we get tokens from ``aws eks get-token``.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ...backends.kubernetes.kubeconfig import parse
from ...core.errors import ClusterError

LOCK_S = 5.0
HINT = "install the AWS CLI, https://aws.amazon.com/cli, on this machine"


@dataclass(frozen=True, slots=True)
class EksCluster:
    """How a cluster of EKS is reached."""

    arn: str
    name: str
    region: str
    server: str
    authority: str  # base64 of its certificate, as PEM


# times are read as texts, so that they are written as they were
_RESOLVERS = {
    first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def connect(path: Path, eks: EksCluster, namespace: str, profile: str) -> tuple[str, bool]:
    """Make the cluster the current context of a kubeconfig; the context's name, and whether the file was changed.

    ``namespace``: "" leaves that of the context. ``profile``: of AWS, for tokens. Raises ClusterError.
    """
    path = Path(os.path.realpath(path))  # where it is a link, that stays
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path):
            before = path.read_text() if path.exists() else ""
            name, document = merged(_document(path, before), eks, namespace, profile)
            text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1 << 20)
            parse([(path, text)], name)  # refuses what could not be used
            if before and _document(path, before) == document and not path.stat().st_mode & 0o077:
                return name, False
            _replace(path, text)
    except UnicodeDecodeError:
        raise ClusterError(f"{path} is no text file") from None
    except OSError as error:
        raise ClusterError(
            f"{path} cannot be written: {error.strerror}; set KUBECONFIG to a file that can be"
        ) from error
    return name, True


def merged(document: Mapping[str, Any], eks: EksCluster, namespace: str, profile: str) -> tuple[str, dict[str, Any]]:
    """The name of the context, and a kubeconfig in which it is the current one. Pure. Raises ClusterError."""
    made: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", **document}
    for key in ("clusters", "contexts", "users"):
        there = made.get(key) or []
        if not isinstance(there, list) or not all(isinstance(entry, dict) for entry in there):
            raise ClusterError(
                f"`{key}` of the kubeconfig is no list of names; mend it or set KUBECONFIG to another file"
            )
        made[key] = list(there)
    pair = {"cluster": eks.arn, "user": eks.arn}
    contexts = [(one.get("name"), one.get("context")) for one in made["contexts"]]
    same = [known for known, of in contexts if isinstance(of, dict) and all(of.get(k) == v for k, v in pair.items())]
    name = str(eks.arn if eks.arn in same or not same else same[0])  # a person may have given it another name
    context = {**_entry(made["contexts"], name, "context"), **pair}
    if namespace:
        context["namespace"] = namespace
    cluster = {"server": eks.server, "certificate-authority-data": eks.authority}
    _put(made["clusters"], eks.arn, "cluster", {**_entry(made["clusters"], eks.arn, "cluster"), **cluster})
    _put(made["users"], eks.arn, "user", {"exec": _plugin(_entry(made["users"], eks.arn, "user"), eks, profile)})
    _put(made["contexts"], name, "context", context)
    made["current-context"] = name
    return name, made


def _plugin(user: Mapping[str, Any], eks: EksCluster, profile: str) -> dict[str, Any]:
    """How tokens are got. What a person has added to it, such as ``--role-arn``, stays."""
    there = user.get("exec")
    words = there.get("args") if isinstance(there, dict) else None
    if (
        isinstance(there, dict)
        and isinstance(words, list)
        and {"get-token", eks.name, eks.region} <= set(map(str, words))
    ):
        plugin = dict(there)
    else:
        arguments = ["--region", eks.region, "eks", "get-token", "--cluster-name", eks.name, "--output", "json"]
        version = "client.authentication.k8s.io/v1beta1"
        plugin = {"apiVersion": version, "command": "aws", "args": arguments, "installHint": HINT}
    if profile:
        known = plugin.get("env")
        variables = [one for one in known if isinstance(one, dict)] if isinstance(known, list) else []
        variables = [one for one in variables if one.get("name") != "AWS_PROFILE"]
        plugin["env"] = [*variables, {"name": "AWS_PROFILE", "value": profile}]
    return plugin


def _entry(entries: list[dict[str, Any]], name: str, key: str) -> dict[str, Any]:
    return next((one[key] for one in entries if one.get("name") == name and isinstance(one.get(key), dict)), {})


def _put(entries: list[dict[str, Any]], name: str, key: str, value: dict[str, Any]) -> None:
    for at, one in enumerate(entries):
        if one.get("name") == name:
            entries[at] = {**one, key: value}
            return
    entries.append({"name": name, key: value})


def _document(path: Path, text: str) -> dict[str, Any]:
    try:
        loader = yaml.SafeLoader(text)
        loader.yaml_implicit_resolvers = _RESOLVERS
        found = loader.get_single_data() if text.strip() else {}
    except (yaml.YAMLError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ClusterError(
            f"{path} is no kubeconfig, so it is left as it is; mend it or set KUBECONFIG to another file"
        )
    return found


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock that kubectl uses for a kubeconfig."""
    lock, until_s = path.with_name(path.name + ".lock"), time.monotonic() + LOCK_S
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            break
        except FileExistsError:
            if time.monotonic() > until_s:
                raise ClusterError(f"{path} is being changed by another program; if none is, delete {lock}") from None
            time.sleep(0.05)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            lock.unlink()


def _replace(path: Path, text: str) -> None:
    """Write the file whole or not at all, for its owner alone."""
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(draft)
        raise
