"""Who may enter: certificates of an authority of the testbed's own, and a token per person, program and node."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

import trustme

from tests.support.kubernetes.settings import API_SERVICE, address, kubeconfig

ADMIN, USER, TEAM = "admin", "alice", "hyperpod-ns-alpha"
PROGRAMS = ("kube-controller-manager", "kube-scheduler")
API_NAMES = ("ctl", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost", "127.0.0.1")


def write(directory: Path, nodes: Sequence[str], hollow: Sequence[str]) -> None:
    """Write ``pki``, and into ``access`` one kubeconfig per name; only their owner can read them."""
    pki, access = directory / "pki", directory / "access"
    for place in (pki, access):
        place.mkdir(mode=0o700)
    authority = trustme.CA(organization_name="testbed")
    authority.cert_pem.write_to_path(pki / "ca.crt")
    _issue(authority, pki / "api-server", *API_NAMES, address(0), API_SERVICE)
    _issue(authority, pki / "to-kubelets", "ctl", name="api-server", group="system:masters")
    _issue(authority, pki / "accounts", "accounts")
    for index, node in enumerate(nodes, 1):
        _issue(authority, pki / node, node, address(index))
    lines = []
    for name, user, group in _people(nodes, hollow):
        token = secrets.token_hex(16)
        lines.append(f'{token},{user},{user},"{group}"')
        namespace = TEAM if name == USER else "default"
        _private(access / name, kubeconfig(token, pki / "ca.crt", namespace))
    _private(pki / "tokens.csv", "\n".join(lines) + "\n")


def _people(nodes: Sequence[str], hollow: Sequence[str]) -> list[tuple[str, str, str]]:
    """The name of the kubeconfig, the user and the group of everyone who has a token."""
    people = [(ADMIN, ADMIN, "system:masters"), (USER, USER, "scientists")]
    people += [(program, f"system:{program}", "programs") for program in PROGRAMS]
    return people + [(node, f"system:node:{node}", "system:nodes") for node in (*nodes, *hollow)]


def _issue(authority: trustme.CA, path: Path, *identities: str, name: str = "", group: str = "") -> None:
    made = authority.issue_cert(*identities, common_name=name or identities[0], organization_name=group or "testbed")
    for blob in made.cert_chain_pems:
        blob.write_to_path(path.with_suffix(".crt"), append=True)
    _private(path.with_suffix(".key"), made.private_key_pem.bytes().decode())


def _private(path: Path, text: str) -> None:
    path.touch(0o600)
    path.write_text(text)
