"""The Kubernetes backend's class: each node of a job is a Job with one pod."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ...core.backend_options import HEAD, POD, WITHIN, has_operator, has_remote_head, head_store, is_apart
from ...core.errors import ClusterError
from ...core.health import HealthBoard
from ..base import ApartPods, Backend, Remedies, RemoteHead, Scheduler
from ..types import Capabilities, KeptPlace, Surroundings
from . import inquiry, parse, remedies
from .heads.apart_pods import KubernetesApartPods
from .heads.remote_head import KubernetesHead
from .health.health_board import KubernetesHealthBoard
from .kubeconfig import context_names, kubeconfig_files, read_access
from .pod_sharing import foreign_user, not_shared
from .runner import NODES, KubernetesRunner, connect
from .warm import pods


class KubernetesBackend:
    """See `backends.base.Backend`."""

    title = "Kubernetes"
    capabilities = Capabilities(serves=True)
    advice = "see `kubectl describe node NODE`; `kubectl uncordon NODE` brings a node back that is in order"
    list_command = "kubectl get nodes"

    def missing(self, isolated: bool = False) -> str:
        if any(path.exists() for path in kubeconfig_files(None, os.environ)):
            return ""  # which of its contexts is meant, and whether it is in order, a job's options tell
        return self.refusal({}, "")

    def programs(self) -> Sequence[str]:
        return ()

    def refusal(self, options: Mapping[str, str], store: str, nodes: int = 1) -> str:
        try:
            if not store:
                read_access(options.get("context", ""))
                return ""
            if options.get(HEAD) == WITHIN:
                return f"{HEAD}={WITHIN} is what a head in a pod tells its nodes; expected {HEAD}={POD}, or none"
            if has_remote_head(options):
                store = head_store(options) or store
            if problem := foreign_user(options) or not_shared(options, [store]):
                return problem
            with connect(options) as api:
                return inquiry.refusal_of(api, options, nodes)
        except ClusterError as error:
            return str(error)

    def answer(self, limit_s: float) -> str:
        access = read_access()
        server = urlsplit(access.server)
        if access.proxy:
            return f"is reached through a proxy: `jupyter hyperpod setup check` asks {access.server}"
        try:
            place = server.hostname or "", server.port or 443
            socket.create_connection(place, timeout=limit_s).close()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise ClusterError(
                f"{access.server} cannot be reached: {why}; log in to its network (VPN), or ask who runs the cluster "
                "whether its address has changed"
            ) from error
        return f"accepts connections at {access.server}; `jupyter hyperpod setup check` looks at rights"

    def node_states(self, options: Mapping[str, str]) -> Mapping[str, tuple[str, str]]:
        with connect(options) as api:
            items, _ = api.list(NODES)
        mine = [item for item in items if parse.is_meant(item, options)]
        return {item["metadata"]["name"]: parse.state(item) for item in mine}

    def contexts(self) -> Sequence[str]:
        try:
            return context_names() or ("",)
        except ClusterError:
            return ("",)  # whoever asks it for its nodes is told

    def kept(self, options: Mapping[str, str], store: str) -> Sequence[KeptPlace]:
        with connect(options) as api:
            return [KeptPlace(pod.pod, pod.node, pod.until_s) for pod in pods.listed(api, pods.owner(store))]

    def let_go(self, options: Mapping[str, str], store: str) -> Sequence[str]:
        with connect(options) as api:
            return pods.let_go(api, pods.listed(api, pods.owner(store)))

    def remedies(self) -> Remedies | None:
        return remedies.KubernetesRemedies()

    def health_board(self, node: str) -> HealthBoard | None:
        return KubernetesHealthBoard(node)

    def remote_head(self, options: Mapping[str, str], job_id: str) -> KubernetesHead | None:
        return KubernetesHead(connect(options), options, job_id) if has_remote_head(options) else None

    def apart_pods(self, options: Mapping[str, str], job_id: str) -> KubernetesApartPods | None:
        within = is_apart(options) and not has_remote_head(options)
        return KubernetesApartPods(connect(options), job_id) if within else None

    def place(self, options: Mapping[str, str]) -> str:
        kind = "/operator" if has_operator(options) else ""  # a runner has objects of one kind
        return f"{options.get('context', '')}/{options.get('namespace', '')}{kind}"

    def open(self, surroundings: Surroundings, options: Mapping[str, str] | None = None) -> KubernetesRunner:
        """A runner, whose thread begins with its first query."""
        return KubernetesRunner(options or {}, surroundings.store, surroundings.selector, surroundings.preload)


if TYPE_CHECKING:
    _backend: type[Backend] = KubernetesBackend
    _scheduler: type[Scheduler] = KubernetesRunner
    _head: type[RemoteHead] = KubernetesHead
    _pods: type[ApartPods] = KubernetesApartPods
