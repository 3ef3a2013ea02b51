"""Kubeconfigs and pods' accounts: what is read from them, what is refused and with which words."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.backends.kubernetes.kubeconfig import Access, kubeconfig_files, parse, pod_access, read_access
from jupyter_hyperpod.core.errors import ClusterError

SECRET = "a-token-nobody-may-see"
PEM = "-----BEGIN CERTIFICATE-----\n…\n-----END CERTIFICATE-----\n"
HERE = Path("/home/someone/.kube/config")
WORDS = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=12)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


def config(user: object = None, cluster: object = None, context: object = None, name: str = "work") -> str:
    whole = {
        "current-context": name,
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443", **(cluster or {})}}],  # type: ignore[dict-item]
        "contexts": [{"name": name, "context": {"cluster": "c", "user": "u", **(context or {})}}],  # type: ignore[dict-item]
        "users": [{"name": "u", "user": {"token": SECRET} if user is None else user}],
    }
    return yaml.safe_dump(whole)


def read(text: str, context: str = "") -> Access:
    return parse([(HERE, text)], context)


def test_a_context_names_server_namespace_and_credential() -> None:
    authority = base64.b64encode(PEM.encode()).decode()
    access = read(config(cluster={"certificate-authority-data": authority}, context={"namespace": "team"}))
    assert (access.server, access.namespace, access.context) == ("https://10.0.0.1:6443", "team", "work")
    assert (access.token, access.ca, access.files) == (SECRET, PEM, (HERE,))
    assert access.warning == ""


def test_no_secret_is_shown() -> None:
    key = base64.b64encode(b"the-key-nobody-may-see").decode()
    user = {"token": SECRET, "client-certificate-data": key, "client-key-data": key}
    plugin = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "aws",
            "env": [{"name": "AWS_SECRET_ACCESS_KEY", "value": SECRET}],
        }
    }
    for access in (read(config(user)), read(config(plugin))):
        assert SECRET not in repr(access) and "nobody-may-see" not in repr(access)


def test_a_token_file_and_relative_paths_belong_to_the_file() -> None:
    access = read(config({"tokenFile": "token", "token": SECRET, "client-certificate": "a.crt", "client-key": "a.key"}))
    assert (access.token, access.token_file) == ("", "/home/someone/.kube/token")
    assert (access.certificate_file, access.key_file) == ("/home/someone/.kube/a.crt", "/home/someone/.kube/a.key")


def test_a_plugin_is_read_with_what_it_needs() -> None:
    asked = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "./bin/get", "args": ["token", 7]}
    plugin = read(config({"exec": {**asked, "env": [{"name": "A", "value": "b"}], "provideClusterInfo": True}})).plugin
    assert plugin is not None
    assert (plugin.command, plugin.arguments) == ("/home/someone/.kube/bin/get", ("token", "7"))
    assert (plugin.environment, plugin.with_cluster) == ((("A", "b"),), True)
    assert read(config({"exec": {**asked, "command": "aws"}})).plugin.command == "aws"  # type: ignore[union-attr]


def test_of_several_files_the_first_word_counts() -> None:
    second = yaml.safe_load(config({"token": "other"}, name="second"))
    second["current-context"] = "second"
    merged = [(HERE, config()), (Path("/else"), yaml.safe_dump(second))]
    assert parse(merged, "").context == "work"
    assert parse(merged, "second").token == SECRET, "the user u of the first file"


def test_impersonation_is_shown_to_the_server() -> None:
    access = read(config({"token": SECRET, "as": "jane", "as-groups": ["a", "b"]}))
    wanted = (("Impersonate-User", "jane"), ("Impersonate-Group", "a"), ("Impersonate-Group", "b"))
    assert access.impersonate == wanted


def test_verification_is_skipped_only_where_the_file_says_so_and_with_a_warning() -> None:
    assert not read(config(cluster={"insecure-skip-tls-verify": "true"})).skip_verification, "a word is no yes"
    access = read(config(cluster={"insecure-skip-tls-verify": True}))
    assert access.skip_verification and "insecure-skip-tls-verify" in access.warning and access.server in access.warning


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no current context"),
        ("a: [", "YAML"),
        ("- a", "clusters, users and contexts"),
        (config().replace("https", "http"), "expected https://"),
        (config().replace("https://10.0.0.1:6443", "https://a:b"), "expected https://"),
        (config(context={"cluster": "gone"}), "'gone'"),
        (config(context={"user": "gone"}), "'gone'"),
        (config(context={"namespace": "../kube-system"}), "namespace"),
        (config(cluster={"certificate-authority": "/nowhere/ca.crt"}), "/nowhere/ca.crt is missing"),
        (config(cluster={"certificate-authority-data": "?"}), "certificate-authority-data"),
        (config(cluster={"proxy-url": "socks5://a"}), "proxy"),
        (config({"auth-provider": {"name": "gcp"}}), "exec plugin"),
        (config({"username": "a", "password": SECRET}), "1.19"),
        (config({"exec": {"command": "aws"}}), "apiVersion"),
        (
            config(
                {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "x", "interactiveMode": "Always"}}
            ),
            "ask a person",
        ),
    ],
)
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    with pytest.raises(ClusterError) as raised:
        read(text)
    assert words in str(raised.value)
    assert SECRET not in str(raised.value)


def test_an_unknown_context_lists_those_that_there_are() -> None:
    with pytest.raises(ClusterError, match="no context 'other': its contexts are work"):
        read(config(), "other")


@given(TREES, st.sampled_from(["clusters", "contexts", "users", "current-context", "apiVersion"]))
def test_any_tree_is_an_access_or_a_sentence(tree: object, where: str) -> None:
    whole = yaml.safe_load(config())
    whole[where] = tree
    try:
        assert read(yaml.safe_dump(whole)).server
    except ClusterError as error:
        assert str(error)


@given(st.text(max_size=200))
def test_any_text_is_an_access_or_a_sentence(text: str) -> None:
    with pytest.raises(ClusterError):
        read(text)


@given(st.dictionaries(st.sampled_from(["token", "tokenFile", "exec", "as", "as-groups", "client-key-data"]), TREES))
def test_any_user_is_an_access_or_a_sentence(user: dict[str, object]) -> None:
    try:
        assert read(config(user)).server
    except ClusterError as error:
        assert str(error)


def test_files_are_looked_for_where_kubectl_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kubeconfig_files(Path("/a"), {"KUBECONFIG": "/b:/c"}) == [Path("/a")]
    assert kubeconfig_files(None, {"KUBECONFIG": "/b::/c"}) == [Path("/b"), Path("/c")]
    assert kubeconfig_files(None, {}) == [Path.home() / ".kube" / "config"]
    (tmp_path / "second").write_text(config())
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/first:{tmp_path}/second")
    assert read_access().context == "work", "one that is not there is passed over"
    with pytest.raises(ClusterError, match="first is missing"):
        read_access(kubeconfig=tmp_path / "first")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/first")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError, match="no access to a Kubernetes cluster was found"):
        read_access()
    with pytest.raises(ClusterError, match="no context 'work'"):
        read_access("work")


def test_a_pod_uses_its_account(tmp_path: Path) -> None:
    for name, text in {"token": SECRET, "namespace": "team\n", "ca.crt": PEM}.items():
        (tmp_path / name).write_text(text)
    found = pod_access({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, tmp_path)
    assert (found.server, found.namespace, found.ca) == ("https://[fd00::1]:6443", "team", PEM)
    assert (found.token, found.token_file) == ("", str(tmp_path / "token")), "the file changes: it is read again"
    (tmp_path / "token").unlink()
    with pytest.raises(ClusterError, match="automountServiceAccountToken"):
        pod_access({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)
