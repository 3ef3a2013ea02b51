"""What the Pod Security Standard "restricted" refuses: a copy of its published rules, which Kubernetes 1.20 lacks.

Facts: kubernetes.io/docs/concepts/security/pod-security-standards, Kubernetes 1.31. It refuses everything that the test
data of upstream want refused from 1.25 to 1.37, but for annotations of AppArmor, which are beside a specification, and
also what pods of ours have no need of: sysctls, options of SELinux, probes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
PROBES = {"livenessProbe", "readinessProbe", "startupProbe", "lifecycle"}  # which could ask other hosts
PROFILES = ("RuntimeDefault", "Localhost")


def refusals(pod: dict[str, Any]) -> list[str]:
    """Everything for which a pod of this specification is refused."""
    return list(_of_pod(pod))


def _of_pod(pod: dict[str, Any]) -> Iterator[str]:
    whole = pod.get("securityContext", {})
    yield from (f"{name} is true" for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name))
    kinds = {kind for volume in pod.get("volumes", []) for kind in volume if kind != "name"}
    if wrong := sorted(kinds - VOLUMES):
        yield f"volumes of these kinds: {', '.join(wrong)}"
    if whole.get("sysctls"):
        yield "sysctls are set"
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        yield from _of_container(container, {**whole, **container.get("securityContext", {})})


def _of_container(container: dict[str, Any], security: dict[str, Any]) -> Iterator[str]:
    """``security``: the container's, completed by its pod's."""
    abilities = security.get("capabilities", {})
    if PROBES & container.keys():
        yield "it has probes"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield "it has a port of its host"
    if security.get("privileged"):
        yield "it is privileged"
    if security.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    if "ALL" not in abilities.get("drop", []) or set(abilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield "capabilities are kept"
    if security.get("runAsNonRoot") is not True:
        yield "runAsNonRoot is not true"
    if security.get("runAsUser") == 0:
        yield "runAsUser is 0"
    if security.get("seccompProfile", {}).get("type") not in PROFILES:
        yield "it has no seccomp profile"
    if security.get("procMount", "Default") != "Default" or "seLinuxOptions" in security:
        yield "it changes /proc or SELinux"
