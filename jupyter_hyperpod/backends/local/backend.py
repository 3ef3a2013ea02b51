"""The local backend: this machine's nodes, which the supervisor owns and starts processes on."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..base import Backend, Host, Remedies
from ..types import Capabilities, Surroundings
from . import network
from .host import LocalHost

NOT_LINUX = (
    "nodes on this machine, and what looks after nodes elsewhere, need Linux (pidfd, /proc), and this machine runs "
    "another system; jobs that are here can be listed, read and followed; on Kubernetes a job may do without this "
    "machine (--backend kubernetes --kubernetes head=pod); otherwise submit on Linux, such as on a login host"
)


class LocalBackend:
    """See `backends.base.Backend`."""

    title = "the local cluster"
    capabilities = Capabilities(owns_nodes=True, cuts_network=True, serves=True)
    advice = "`jupyter hyperpod cluster start --nodes N` with more nodes"
    list_command = "jupyter hyperpod nodes"

    def missing(self, isolated: bool = False) -> str:
        if sys.platform != "linux":
            return NOT_LINUX
        return network.missing() if isolated else ""

    def programs(self) -> Sequence[str]:
        return ()

    def refusal(self, options: Mapping[str, str], store: str, nodes: int = 1) -> str:
        return ""

    def answer(self, limit_s: float) -> str:
        return "is this machine"

    def node_states(self, options: Mapping[str, str]) -> Mapping[str, tuple[str, str]]:
        """Nothing: the cluster's journal has its nodes."""
        return {}

    def contexts(self) -> Sequence[str]:
        return ("",)

    def kept(self, options: Mapping[str, str], store: str) -> tuple[()]:
        return ()

    def let_go(self, options: Mapping[str, str], store: str) -> tuple[()]:
        return ()

    def remedies(self) -> Remedies | None:
        """Nothing: the supervisor restarts its own nodes."""
        return None

    def health_board(self, node: str) -> None:
        return None

    def remote_head(self, options: Mapping[str, str], job_id: str) -> None:
        """None: heads run beside the supervisor."""

    def apart_pods(self, options: Mapping[str, str], job_id: str) -> None:
        """None: nodes have the store of their head."""

    def place(self, options: Mapping[str, str]) -> str:
        return ""

    def open(self, surroundings: Surroundings, options: Mapping[str, str] | None = None) -> LocalHost:
        """A host, whose nodes begin with its own `open`."""
        return LocalHost(surroundings)


if TYPE_CHECKING:
    _backend: type[Backend] = LocalBackend
    _host: type[Host] = LocalHost
