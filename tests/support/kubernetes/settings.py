"""What the testbed's programs are told, as text and command lines. Facts: the options of Kubernetes 1.20."""

from __future__ import annotations

from pathlib import Path

NETWORK, PODS, SERVICES = "10.98.0", "10.88", "10.96.0.0/16"
# Pods find the API at the first address of services; the controller has it, so nobody has to rewrite packets.
API_SERVICE = "10.96.0.1"
IMAGE, PAUSE = "testbed.local/python:1", "testbed.local/pause:1"
LOST_S, HOLLOW_LOST_S = 6, 20  # a hollow node tells of itself every ten seconds
UNHEARD_S = 3600  # a bare object tells nothing
ETCD = "http://127.0.0.1:2379"
# Of what is not final in 1.20 only what its own programs use: each version costs the server time when it starts.
NOT_FINAL = "api/beta=false,policy/v1beta1=true,discovery.k8s.io/v1beta1=true,events.k8s.io/v1beta1=true"
AUDIT_RULES, AUDIT_LOG = "audit.yaml", "audit.jsonl"


def address(index: int) -> str:
    """The controller has index 0, nodes count from 1."""
    return f"{NETWORK}.{index + 1}"


def pods(index: int) -> str:
    """The network of a node's pods."""
    return f"{PODS}.{index}.0/24"


def routes(index: int, nodes: int) -> list[str]:
    """The routes of a host to the pods of the nodes, and of a node to everything else."""
    to_pods = [f"route add {pods(i)} via {address(i)}" for i in range(1, nodes + 1) if i != index]
    return [*to_pods, f"route add default via {address(0)}"] if index else to_pods


def hosts(nodes: int) -> str:
    """/etc/hosts of every host."""
    lines = ["127.0.0.1 localhost", f"{address(0)} ctl"]
    return "\n".join(lines + [f"{address(i)} n{i}" for i in range(1, nodes + 1)]) + "\n"


def etcd(directory: Path) -> list[str]:
    """etcd, on the controller's loopback alone."""
    peers = "http://127.0.0.1:2380"
    return [
        "etcd",
        f"--data-dir={directory}/etcd",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--unsafe-no-fsync",
        "--logger=zap",
    ]


def audit_yaml(user: str) -> str:
    """What the API server writes down: the requests of one user, without their contents."""
    return f"""apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- {{level: Metadata, users: [{user}]}}
- {{level: None}}
"""


def api_server(directory: Path, recorded: bool = False) -> list[str]:
    """The API server: certificates and tokens of the testbed's own, roles, nodes that see only their own pods.

    ``recorded``: it writes requests down, by the rules in a file beside.
    """
    pki, issuer = directory / "pki", "https://kubernetes.default.svc"
    audit = [f"--audit-policy-file={directory}/{AUDIT_RULES}", f"--audit-log-path={directory}/log/{AUDIT_LOG}"]
    return [
        *(audit if recorded else []),
        f"--etcd-servers={ETCD}",
        "--bind-address=0.0.0.0",
        "--secure-port=443",
        f"--advertise-address={address(0)}",
        "--anonymous-auth=false",
        f"--cert-dir={pki}",
        f"--tls-cert-file={pki}/api-server.crt",
        f"--tls-private-key-file={pki}/api-server.key",
        f"--token-auth-file={pki}/tokens.csv",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/to-kubelets.crt",
        f"--kubelet-client-key={pki}/to-kubelets.key",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={pki}/accounts.key",
        f"--service-account-signing-key-file={pki}/accounts.key",
        f"--service-account-issuer={issuer}",
        f"--api-audiences={issuer}",
        f"--service-cluster-ip-range={SERVICES}",
        f"--runtime-config={NOT_FINAL}",
        "--enable-priority-and-fairness=false",  # it takes processor time, also for one user
        "--endpoint-reconciler-type=none",  # there is one API server
        "--default-not-ready-toleration-seconds=5",
        "--default-unreachable-toleration-seconds=5",
        "--feature-gates=TTLAfterFinished=true",
        "--profiling=false",
    ]


def controller_manager(directory: Path, lost_s: int) -> list[str]:
    """The controller manager; a node that is not heard of for ``lost_s`` seconds is not ready."""
    pki = directory / "pki"
    return [
        f"--kubeconfig={directory}/access/kube-controller-manager",
        "--bind-address=127.0.0.1",
        "--port=0",
        "--leader-elect=false",
        f"--cert-dir={pki}/controller-manager",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={pki}/accounts.key",
        f"--root-ca-file={pki}/ca.crt",
        "--node-monitor-period=1s",
        f"--node-monitor-grace-period={lost_s}s",
        "--node-eviction-rate=10",  # else one node in ten seconds
        "--pvclaimbinder-sync-period=1s",  # else a claim may wait for its volume for fifteen seconds
        "--feature-gates=TTLAfterFinished=true",
        "--profiling=false",
    ]


def scheduler(directory: Path) -> list[str]:
    """The scheduler."""
    return [
        f"--kubeconfig={directory}/access/kube-scheduler",
        "--bind-address=127.0.0.1",
        "--port=0",
        "--leader-elect=false",
        f"--cert-dir={directory}/pki/scheduler",
        "--profiling=false",
    ]


def hollow_kubelet(directory: Path, node: str, index: int) -> list[str]:
    """A kubelet that says its pods run, and runs none; the first has index 1."""
    ports = [f"--kubelet-port={20000 + index}", f"--kubelet-read-only-port={30000 + index}"]
    return ["--morph=kubelet", f"--name={node}", f"--kubeconfig={directory}/access/{node}", *ports]


def kubelet(directory: Path, node: str) -> list[str]:
    """A real kubelet; what it may keep is in /var/lib and /run, which are the node's own."""
    return [
        "--config=/run/kubelet.yaml",
        f"--kubeconfig={directory}/access/{node}",
        "--container-runtime=remote",
        "--container-runtime-endpoint=unix:///run/containerd/containerd.sock",
        f"--hostname-override={node}",
        "--volume-plugin-dir=/var/lib/kubelet/plugins",
    ]


def kubelet_yaml(directory: Path, node: str, index: int) -> str:
    """Only who has a certificate or token of the cluster may ask; no pod is thrown out where a disk fills."""
    pki = directory / "pki"
    return f"""apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {address(index)}
tlsCertFile: {pki}/{node}.crt
tlsPrivateKeyFile: {pki}/{node}.key
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {pki}/ca.crt}}}}
authorization: {{mode: Webhook}}
cgroupDriver: cgroupfs
enforceNodeAllocatable: [pods]
failSwapOn: false
nodeStatusUpdateFrequency: 2s
nodeStatusReportFrequency: 10s
nodeLeaseDurationSeconds: 4
evictionHard: {{memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}}
imageGCHighThresholdPercent: 100
resolvConf: ""
syncFrequency: 2s
readOnlyPort: 0
healthzPort: 0
"""


def containerd_toml() -> str:
    """containerd with runc; nothing of it outside /var/lib and /run."""
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  disable_tcp_service = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/run/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""


def network_json(index: int) -> str:
    """The network of a node's pods: a bridge, which the other hosts have routes to."""
    return f"""{{"cniVersion": "0.4.0", "name": "testbed", "plugins": [
  {{"type": "bridge", "bridge": "pods", "isGateway": true, "ipMasq": false, "ipam": {{
    "type": "host-local", "dataDir": "/run/cni/addresses",
    "ranges": [[{{"subnet": "{pods(index)}"}}]], "routes": [{{"dst": "0.0.0.0/0"}}]}}}}]}}
"""


def kubeconfig(token: str, ca: Path, namespace: str = "default") -> str:
    """How somebody with a token reaches the API."""
    return f"""apiVersion: v1
kind: Config
current-context: testbed
clusters: [{{name: testbed, cluster: {{server: "https://{address(0)}", certificate-authority: {ca}}}}}]
contexts: [{{name: testbed, context: {{cluster: testbed, user: testbed, namespace: {namespace}}}}}]
users: [{{name: testbed, user: {{token: {token}}}}}]
"""


def team_yaml(namespace: str, user: str) -> str:
    """A namespace, and a user who may do in it what people do, and nothing elsewhere."""
    return f"""apiVersion: v1
kind: Namespace
metadata: {{name: {namespace}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: {user}, namespace: {namespace}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {user}}}]
"""
