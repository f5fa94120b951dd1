"""A real cluster of one node in a folder: etcd, API server and kubelet around a real containerd.

There is no scheduler and no controller manager: pods name their node, and tests write endpoints.
It runs in namespaces of its own (``enclosed.sh``), so its ports and addresses are fixed.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from tests.e2e.node.daemon import Daemon
from tests.e2e.node.images import Image
from tests.e2e.node.lab import MIB, Lab
from tests.kube.kubectl import Kubectl
from tests.streams.servers import Certificates, make_certificates
from tests.waiting import wait_until

NODE: Final = "vm"
ADDRESS: Final = "10.99.0.1"
OTHER_ADDRESS: Final = "10.99.0.2"
PORT: Final = 26443
KUBELET_PORT: Final = 20250
START_S: Final = 120.0
SOCKET: Final = Path("/run/containerd/containerd.sock")
"""The runtime's socket, where manifests expect it."""

_NETWORK: Final = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.88.0.0/16"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ],
}

_AUDIT: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "Request",
            "resources": [{"group": "authorization.k8s.io", "resources": ["subjectaccessreviews"]}],
        },
        {"level": "None"},
    ],
}

_USERS: Final = {
    "admin": "/O=system:masters/CN=admin",
    "jane": "/O=dev/CN=jane",
    "kubelet": f"/O=system:nodes/CN=system:node:{NODE}",
    "apiserver": "/O=system:masters/CN=apiserver",
}
_NAMES: Final = (
    ("127.0.0.1", ADDRESS, OTHER_ADDRESS, "10.96.0.1"),
    (*("localhost", NODE, "kubernetes.default.svc"),),
)


class Cluster:
    """A context manager that starts everything, and leaves no process, mount or file behind.

    Args:
        programs: the folder with kube-apiserver, mini-etcd, kubelet and kubectl.
    """

    lab: Lab
    kubectl: Kubectl

    def __init__(self, programs: Path) -> None:
        self.programs = programs

    def __enter__(self) -> Self:
        self.lab = Lab()
        self.lab.__enter__()
        try:
            self.folder = self.lab.folder / "cluster"
            self.folder.mkdir()
            self._make_network()
            self._make_credentials()
            self._make_cgroups()
            self.etcd = self._daemon("mini-etcd", str(self.folder / "etcd"), "22379", "22380")
            self.apiserver = self._daemon("kube-apiserver", *self._apiserver_flags())
            self.kubelet = self._daemon("kubelet", *self._kubelet_flags())
            self.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    # Credentials

    def kubeconfig(self, name: str) -> Path:
        return self.folder / f"{name}.kubeconfig"

    def as_user(self, name: str) -> Kubectl:
        home = self.folder / f"home-{name}"
        home.mkdir(exist_ok=True)
        return Kubectl(self.kubeconfig(name), home, str(self.programs / "kubectl"))

    def write_kubeconfig(self, name: str, user: Mapping[str, str]) -> Path:
        cluster = {"server": f"https://127.0.0.1:{PORT}", "certificate-authority": self.pki.ca}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": dict(user)}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        file = self.kubeconfig(name)
        file.write_text(json.dumps(document))
        file.chmod(0o600)
        return file

    def _make_credentials(self) -> None:
        addresses, hosts = _NAMES
        names = ",".join(
            [*(f"IP:{address}" for address in addresses), *(f"DNS:{host}" for host in hosts)]
        )
        for name in ("pki", "front-proxy"):
            (self.folder / name).mkdir()
        self.pki: Certificates = make_certificates(self.folder / "pki", names, **_USERS)
        self.front_proxy: Certificates = make_certificates(
            self.folder / "front-proxy", client="/CN=front-proxy-client"
        )
        for words in ("genrsa -out sa.key 2048", "rsa -in sa.key -pubout -out sa.pub"):
            command = ["openssl", *words.split()]
            subprocess.run(command, cwd=self.pki.folder, check=True, capture_output=True)
        for name in ("admin", "jane", "kubelet"):
            files = {"client-certificate": self.pki.cert(name), "client-key": self.pki.key(name)}
            self.write_kubeconfig(name, files)
        self.kubectl = self.as_user("admin")

    # Processes

    def start(self) -> None:
        """Start the control plane, then the kubelet; return when the node is ready."""
        self.etcd.start(lambda: "22379" in _listening(), timeout_s=START_S)
        self.start_apiserver()
        if "default" not in self.kubectl.good("get", "namespaces", "-o", "name"):
            self.kubectl.good("create", "namespace", "default")
        self.kubelet.start(self.is_ready, timeout_s=START_S)

    def start_apiserver(self) -> None:
        """Start the API server; return when it reports that it is ready."""
        self.apiserver.start(
            lambda: self.kubectl("get", "--raw", "/readyz").stdout == "ok", timeout_s=START_S
        )

    def is_ready(self) -> bool:
        path = '{.status.conditions[?(@.type=="Ready")].status}'
        return self.kubectl("get", "node", NODE, "-o", f"jsonpath={path}").stdout == "True"

    def restart_kubelet(self, endpoint: str) -> None:
        self.kubelet.terminate()
        self._kubelet_flags(endpoint)
        self.kubelet.start(self.is_ready, timeout_s=START_S)

    def _daemon(self, name: str, *flags: str) -> Daemon:
        return Daemon([self.programs / name, *flags], self.folder / f"{name}.log")

    def _apiserver_flags(self) -> list[str]:
        pki, proxy = self.pki, self.front_proxy
        policy = self.folder / "audit.yaml"
        policy.write_text(json.dumps(_AUDIT))
        flags = {
            "audit-policy-file": policy,
            "audit-log-path": self.folder / "audit.log",
            "etcd-servers": "http://127.0.0.1:22379",
            "bind-address": "0.0.0.0",
            "secure-port": PORT,
            "advertise-address": ADDRESS,
            "endpoint-reconciler-type": "none",
            "service-cluster-ip-range": "10.96.0.0/16",
            "authorization-mode": "Node,RBAC",
            "client-ca-file": pki.ca,
            "tls-cert-file": pki.cert("server"),
            "tls-private-key-file": pki.key("server"),
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": pki.folder / "sa.pub",
            "service-account-signing-key-file": pki.folder / "sa.key",
            "disable-admission-plugins": "ServiceAccount",
            "enable-admission-plugins": "NodeRestriction",
            "kubelet-client-certificate": pki.cert("apiserver"),
            "kubelet-client-key": pki.key("apiserver"),
            "kubelet-certificate-authority": pki.ca,
            "kubelet-preferred-address-types": "InternalIP",
            "requestheader-client-ca-file": proxy.ca,
            "requestheader-allowed-names": "front-proxy-client",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": proxy.cert("client"),
            "proxy-client-key-file": proxy.key("client"),
            "enable-aggregator-routing": "true",
            "v": 2,
        }
        return [f"--{key}={value}" for key, value in flags.items()]

    def _kubelet_flags(self, endpoint: str = "") -> list[str]:
        folder, pki = self.folder / "kubelet", self.pki
        (folder / "manifests").mkdir(parents=True, exist_ok=True)
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": endpoint or self.lab.node.endpoint,
            "imageServiceEndpoint": endpoint or self.lab.node.endpoint,
            "staticPodPath": str(folder / "manifests"),
            "address": ADDRESS,
            "port": KUBELET_PORT,
            "readOnlyPort": 0,
            "healthzPort": 20248,
            "tlsCertFile": pki.cert("server"),
            "tlsPrivateKeyFile": pki.key("server"),
            "authentication": {
                "anonymous": {"enabled": False},
                "x509": {"clientCAFile": pki.ca},
                "webhook": {"enabled": True, "cacheTTL": "1s"},
            },
            "authorization": {
                "mode": "Webhook",
                "webhook": {"cacheAuthorizedTTL": "1s", "cacheUnauthorizedTTL": "1s"},
            },
            "podLogsDir": str(folder / "logs"),
            "cgroupDriver": "cgroupfs",
            # Never shared by two kubelets: the second would remove the cgroups of the first.
            "cgroupRoot": f"/{self.lab.folder.name}",
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "oomScoreAdj": 0,
            "serializeImagePulls": False,
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "syncFrequency": "10s",
            "nodeStatusUpdateFrequency": "5s",
            "nodeStatusReportFrequency": "10s",
            "runtimeRequestTimeout": "2m",
        }
        (folder / "config.yaml").write_text(json.dumps(config))
        return [
            f"--config={folder / 'config.yaml'}",
            f"--root-dir={folder / 'root'}",
            f"--cert-dir={folder / 'certificates'}",
            f"--hostname-override={NODE}",
            f"--kubeconfig={self.kubeconfig('kubelet')}",
            f"--node-ip={ADDRESS}",
            "--v=2",
        ]

    def _make_network(self) -> None:
        network = self.lab.folder / "cni/05-pods.conflist"
        network.write_text(json.dumps(_NETWORK))
        SOCKET.touch()
        # A symbolic link would be dangling in a pod.
        subprocess.run(["mount", "--bind", self.lab.node.socket_path, SOCKET], check=True)

    def _make_cgroups(self) -> None:
        for controller in Path("/sys/fs/cgroup").iterdir():
            if (controller / "cgroup.procs").exists():
                (controller / self.lab.folder.name).mkdir(exist_ok=True)

    def _end(self) -> None:
        for name in ("kubelet", "apiserver", "etcd"):
            if name in vars(self):
                getattr(self, name).terminate()
        if SOCKET.is_socket():
            subprocess.run(["umount", SOCKET], check=True)
        self.lab.__exit__()

    # Objects in the cluster

    def reviews(self) -> list[dict[str, Any]]:
        """Return the specs of all SubjectAccessReviews requested so far."""
        lines = (self.folder / "audit.log").read_text().splitlines()
        return [json.loads(line)["requestObject"]["spec"] for line in lines]

    def apply(self, *documents: Mapping[str, Any]) -> None:
        listed = {"kind": "List", "apiVersion": "v1", "items": list(documents)}
        self.kubectl.good("apply", "--validate=false", "-f", "-", stdin=json.dumps(listed))

    def image(self, name: str, seed: int, *sizes_mib: int) -> Image:
        """Push a runnable image: busybox and layers of random bytes."""
        sizes = [size * MIB for size in sizes_mib]
        layers = [self.lab.base, *self.lab.layout.random_layers(sizes, seed=seed)]
        config = {"Entrypoint": ["/bin/sleep", "1000000"], "Cmd": []}
        image = self.lab.layout.image(name, layers, config=config)
        self.lab.push(image)
        return image

    def run_pod(
        self,
        name: str,
        *images: str,
        namespace: str = "default",
        node: str = NODE,
        init: str = "",
    ) -> None:
        """Create a sleeping pod on a node, with a container for each image.

        ``init`` is the image of an init container that never ends.
        """
        containers = [{"name": f"c{number}", "image": image} for number, image in enumerate(images)]
        spec = {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
            "containers": containers,
            "initContainers": [{"name": "first", "image": init}] if init else [],
        }
        metadata = {"name": name, "namespace": namespace}
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    @contextmanager
    def node(self, name: str, address: str) -> Iterator[None]:
        """Add a node without a kubelet while the block runs."""
        self.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        self._patch_status("node", name, addresses=[{"type": "InternalIP", "address": address}])
        yield
        words = ("delete", "pods", f"--field-selector=spec.nodeName={name}")
        self.kubectl.good(*words, "--force", "--grace-period=0")
        self.kubectl.good("delete", "node", name, "--ignore-not-found")

    def let_wait(self, name: str, reference: str, address: str) -> str:
        """Report that a pod's container waits for its image, as a kubelet would; return the UID."""
        waiting = {"reason": "ContainerCreating"}
        container: dict[str, Any] = {"name": "c0", "image": reference, "imageID": ""}
        container |= {"state": {"waiting": waiting}, "ready": False, "restartCount": 0}
        address_of = {"hostIP": address, "hostIPs": [{"ip": address}]}
        self._patch_status("pod", name, **address_of, containerStatuses=[container])
        return str(self.kubectl.document("get", "pod", name)["metadata"]["uid"])

    def _patch_status(self, kind: str, name: str, **status: Any) -> None:
        words = ("patch", kind, name, "--subresource=status", "--type=merge", "-p")
        self.kubectl.good(*words, json.dumps({"status": status}))

    def phase(self, name: str, namespace: str = "default") -> str:
        words = ("get", "pod", name, "-n", namespace, "-o", "jsonpath={.status.phase}")
        return self.kubectl(*words).stdout

    def address_of(self, name: str, namespace: str = "default") -> str:
        words = ("get", "pod", name, "-n", namespace, "-o", "jsonpath={.status.podIP}")
        return self.kubectl(*words).stdout

    def remove_pods(self) -> None:
        self.kubectl.good("delete", "pods", "-A", "--all", "--wait=false", "--grace-period=1")
        wait_until(lambda: not self.kubectl.good("get", "pods", "-A", "-o", "name"))


def _listening() -> str:
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    return " ".join(str(int(row[1].partition(":")[2], 16)) for row in rows if row[3] == "0A")
