"""Where the API of a cluster is, and as whom this process enters it: a kubeconfig, or the account of the pod it is in.

What a kubeconfig says is kept in an `Access`; secrets in it are never shown by ``repr``. Reading a file and parsing it
are apart: `parse` is pure.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from ...core.errors import ClusterError
from ...core.units import few

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LIMIT_BYTES = 4 << 20
NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
CREDENTIAL = ("token", "token_file", "certificate", "key", "certificate_file", "key_file", "plugin")
SKIPS_TLS = (
    "the kubeconfig says `insecure-skip-tls-verify: true` for {server}: whoever is between here and there can read "
    "and change everything; put the cluster's certificate authority there instead"
)


@dataclass(frozen=True, slots=True)
class Plugin:
    """A command that prints a credential, from the kubeconfig's ``exec``."""

    command: str
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    version: str = "client.authentication.k8s.io/v1"
    with_cluster: bool = False
    hint: str = ""  # how to install it, in the words of the kubeconfig


@dataclass(frozen=True, slots=True)
class Access:
    """Everything that is needed to reach a cluster; at most one of ``token``, ``token_file`` and ``plugin`` is set."""

    server: str  # https://host[:port][/prefix]
    namespace: str = "default"
    context: str = ""  # "" in a pod
    source: str = ""  # where this was read, for people
    ca: str = ""  # certificates, as PEM; "" where the machine's own are trusted
    server_name: str = ""  # the name in the server's certificate where it is not that of the address
    skip_verification: bool = False
    proxy: str = ""
    token: str = field(default="", repr=False)
    token_file: str = ""
    certificate: str = field(default="", repr=False)  # of the client, as PEM
    key: str = field(default="", repr=False)
    certificate_file: str = ""
    key_file: str = ""
    plugin: Plugin | None = None
    impersonate: tuple[tuple[str, str], ...] = ()  # headers
    files: tuple[Path, ...] = ()  # the kubeconfigs; none in a pod

    @property
    def warning(self) -> str:
        """What a person should know before this is used; "" where there is nothing."""
        return SKIPS_TLS.format(server=self.server) if self.skip_verification else ""


def read_access(context: str = "", kubeconfig: Path | None = None) -> Access:
    """Read how to reach a cluster: the file, else those of $KUBECONFIG, else ~/.kube/config, else this pod's account.

    ``context``: one that the kubeconfig names; "" is its current one. Raises ClusterError in plain words.
    """
    files = kubeconfig_files(kubeconfig, os.environ)
    documents = [(path, text) for path in files if (text := _text(path, must=path == kubeconfig)) is not None]
    if documents:
        return parse(documents, context)
    if context:
        raise ClusterError(
            f"there is no context {context!r}, because there is no kubeconfig: looked for {_named(files)}; "
            "get one from who runs the cluster, or set KUBECONFIG to where it is"
        )
    return pod_access(os.environ, ACCOUNT, files)


def context_names() -> list[str]:
    """The contexts of the kubeconfigs, the current one first; none in a pod, or where no context is current.

    Raises ClusterError.
    """
    current, names = known_contexts()
    return [current, *(name for name in names if name != current)] if current else []


def known_contexts() -> tuple[str, list[str]]:
    """The current context of the kubeconfigs, "" where there is none, and all by name. Raises ClusterError."""
    files = kubeconfig_files(None, os.environ)
    documents = [(path, text) for path in files if (text := _text(path, must=False)) is not None]
    parts = [(path, _document(path, text)) for path, text in documents]
    names, current = _entries(parts, "contexts", "context"), _current(parts)
    return current if current in names else "", sorted(names)


def _current(parts: Sequence[tuple[Path, Mapping[str, Any]]]) -> str:
    return next((str(part["current-context"]) for _, part in parts if part.get("current-context")), "")


def reread(access: Access) -> Access:
    """The same with the credential that its kubeconfig has now, unless that is about another server by now."""
    if not access.files:
        return access
    newer = parse([(path, _text(path, must=True) or "") for path in access.files], access.context)
    same = newer.server == access.server
    return replace(access, **{name: getattr(newer, name) for name in CREDENTIAL}) if same else access


def kubeconfig_files(kubeconfig: Path | None, environment: Mapping[str, str]) -> list[Path]:
    """The files to read, in order: what an earlier one says is not changed by a later one."""
    if kubeconfig is not None:
        return [kubeconfig]
    if listed := [Path(part) for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]:
        return listed
    return [Path.home() / ".kube" / "config"]


def pod_access(environment: Mapping[str, str], account: Path = ACCOUNT, files: Sequence[Path] = ()) -> Access:
    """The access of the service account of the pod that this process is in. Raises ClusterError where it has none."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    token_file = account / "token"
    if not host or not token_file.exists():
        missing = f"{token_file} is missing" if host else "KUBERNETES_SERVICE_HOST is not set, so this is no pod"
        raise ClusterError(
            f"no access to a Kubernetes cluster was found: no kubeconfig at {_named(files)}, and {missing}; "
            "set KUBECONFIG, or in a pod let its account's token be mounted (automountServiceAccountToken)"
        )
    namespace = _text(account / "namespace", must=False) or "default"
    ca = _text(account / "ca.crt", must=True) or ""
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Access(server, namespace.strip(), "", f"the account in {account}", ca, token_file=str(token_file))


def parse(documents: Sequence[tuple[Path, str]], context: str = "") -> Access:
    """What kubeconfigs, given with their paths, say about a context. Raises ClusterError."""
    parts = [(path, _document(path, text)) for path, text in documents]
    files = [path for path, _ in parts]
    where = _named(files)
    name = context or _current(parts)
    contexts = _entries(parts, "contexts", "context")
    if not name or name not in contexts:
        told = f"its contexts are {few(sorted(contexts), 8)}" if contexts else "it has none"
        wanted = f"{where} has no context {name!r}" if name else f"{where} has no current context"
        raise ClusterError(f"{wanted}: {told}; name one, or choose one with `kubectl config use-context NAME`")
    of_context = contexts[name][1]
    cluster_name, user_name = (_word(of_context, key) for key in ("cluster", "user"))
    clusters, users = _entries(parts, "clusters", "cluster"), _entries(parts, "users", "user")
    if cluster_name not in clusters:
        raise ClusterError(f"{where}: the context {name!r} is of the cluster {cluster_name!r}, which is not in there")
    if user_name and user_name not in users:
        raise ClusterError(f"{where}: the context {name!r} is for the user {user_name!r}, who is not in there")
    namespace = _word(of_context, "namespace") or "default"
    if not NAMESPACE.fullmatch(namespace):
        shown = namespace[:80]
        raise ClusterError(f"{where}: the namespace of {name!r} is {shown!r}; expected small letters, digits and -")
    cluster_path, cluster = clusters[cluster_name]
    user_path, user = users.get(user_name, (cluster_path, {}))
    return Access(
        namespace=namespace,
        context=name,
        source=f"the context {name!r} of {where}",
        files=tuple(files),
        **_cluster(cluster_path, cluster),
        **_user(user_path, user),
    )


def _cluster(path: Path, cluster: Mapping[str, Any]) -> dict[str, Any]:
    server = _word(cluster, "server").rstrip("/")
    try:
        address = urlsplit(server)
        valid = address.scheme == "https" and bool(address.hostname) and (address.port or 443) > 0
    except ValueError:
        valid = False
    if not valid:
        shown = server[:200]
        raise ClusterError(f"{path}: the server is {shown!r}; expected https://HOST[:PORT], over which secrets travel")
    ca = _decoded(path, cluster, "certificate-authority-data")
    if not ca and (ca_file := _word(cluster, "certificate-authority")):
        ca = _text(_beside(path, ca_file), must=True) or ""
    proxy = _word(cluster, "proxy-url")
    if proxy and not proxy.startswith("http://"):
        raise ClusterError(f"{path}: the proxy-url has to begin with http://, other kinds of proxy are not supported")
    skip = cluster.get("insecure-skip-tls-verify") is True
    name = _word(cluster, "tls-server-name")
    return {"server": server, "ca": ca, "proxy": proxy, "skip_verification": skip, "server_name": name}


def _user(path: Path, user: Mapping[str, Any]) -> dict[str, Any]:
    for key, remedy in (
        ("auth-provider", "the provider's exec plugin, such as gke-gcloud-auth-plugin or kubelogin"),
        ("username", "a token, a client certificate or an exec plugin: Kubernetes has no passwords since 1.19"),
    ):
        if user.get(key):
            raise ClusterError(f"{path}: `{key}` is not supported any more; expected {remedy}")
    token_file = _word(user, "tokenFile")
    found: dict[str, Any] = {
        "certificate": _decoded(path, user, "client-certificate-data"),
        "key": _decoded(path, user, "client-key-data"),
        "token_file": str(_beside(path, token_file)) if token_file else "",
        "token": "" if token_file else _word(user, "token"),
        "plugin": None,
        "impersonate": tuple(_impersonation(user)),
    }
    for key, name in (("certificate", "client-certificate"), ("key", "client-key")):
        file = _word(user, name)
        found[f"{key}_file"] = str(_beside(path, file)) if file and not found[key] else ""
    if user.get("exec") and not found["token"] and not found["token_file"]:
        found["plugin"] = _plugin(path, user["exec"])
    return found


def _impersonation(user: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if name := _word(user, "as"):
        yield "Impersonate-User", name
        groups = user.get("as-groups")
        yield from (("Impersonate-Group", str(group)) for group in (groups if isinstance(groups, list) else ()))


def _plugin(path: Path, found: Any) -> Plugin:
    asked = found if isinstance(found, dict) else {}
    command, version = _word(asked, "command"), _word(asked, "apiVersion")
    if not command or version.partition("/")[0] != "client.authentication.k8s.io":
        raise ClusterError(
            f"{path}: `exec` needs a command and apiVersion client.authentication.k8s.io/v1 or /v1beta1; "
            f"found {command[:80]!r} and {version[:80]!r}"
        )
    if _word(asked, "interactiveMode") == "Always":
        raise ClusterError(f"{path}: `{command}` wants to ask a person, and jobs go on where nobody is there to answer")
    if os.sep in command:  # as kubectl has it: beside the file, not below the present directory
        command = str(_beside(path, command))
    arguments, environment = asked.get("args") or [], asked.get("env") or []
    if not isinstance(arguments, list) or not isinstance(environment, list):
        raise ClusterError(f"{path}: `args` and `env` of `exec` have to be lists")
    pairs = [(_word(one, "name"), _word(one, "value")) for one in environment if isinstance(one, dict)]
    return Plugin(
        command,
        tuple(str(argument) for argument in arguments),
        tuple((name, value) for name, value in pairs if name),
        version,
        asked.get("provideClusterInfo") is True,
        _word(asked, "installHint").strip(),
    )


def _document(path: Path, text: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(text) if text.strip() else {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise ClusterError(f"{path} is no kubeconfig: its YAML cannot be read{line}") from None
    if not isinstance(found, dict):
        raise ClusterError(f"{path} is no kubeconfig: expected clusters, users and contexts")
    return found


def _entries(parts: Sequence[tuple[Path, Mapping[str, Any]]], key: str, one: str) -> dict[str, tuple[Path, Any]]:
    """Name -> the file and what it says; of two with the same name, the first counts, as for kubectl."""
    found: dict[str, tuple[Path, Any]] = {}
    for path, part in parts:
        listed = part.get(key) or []
        for entry in listed if isinstance(listed, list) else []:
            if isinstance(entry, dict) and isinstance(entry.get(one), dict):
                found.setdefault(str(entry.get("name")), (path, entry[one]))
    return found


def _word(mapping: Mapping[str, Any], key: str) -> str:
    value = mapping.get(key)
    return "" if value is None else str(value)


def _decoded(path: Path, mapping: Mapping[str, Any], key: str) -> str:
    try:
        return base64.b64decode("".join(_word(mapping, key).split()), validate=True).decode()
    except (binascii.Error, ValueError):
        raise ClusterError(f"{path}: {key} is no base64 of a PEM file") from None


def _beside(path: Path, name: str) -> Path:
    """A path that a kubeconfig names is relative to the kubeconfig."""
    return path.absolute().parent / name


def _text(path: Path, must: bool) -> str | None:
    """What a file holds; None where it is not there and need not be. Raises ClusterError."""
    try:
        with open(path, "rb") as file:
            found = file.read(LIMIT_BYTES + 1)
        if len(found) > LIMIT_BYTES:
            raise ClusterError(f"{path} has more than {LIMIT_BYTES >> 20} MiB; expected a small file")
        return found.decode()
    except FileNotFoundError as error:
        if not must:
            return None
        raise ClusterError(f"{path} is missing") from error
    except OSError as error:
        raise ClusterError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ClusterError(f"{path} is no text file") from None


def _named(files: Sequence[Path]) -> str:
    return few([str(path) for path in files]) or "nowhere"
