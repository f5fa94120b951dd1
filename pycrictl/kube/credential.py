"""The credential for the API server: the kubelet's own, that of a pod, or a kubeconfig's.

The kubelet's kubeconfig is the one that the running kubelet was started with; without one it is
looked for where distributions put it. A credential is kept in memory and never shown.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pycrictl import config
from pycrictl.errors import ConfigError
from pycrictl.foreign import mapping, mappings, text
from pycrictl.kube.kubelet import (
    ROOT,
    Kubelet,
    find_kubelet,
    host_name,
    parse_document,
    read_document,
    read_text,
)
from pycrictl.kube.plugin import ask_plugin
from pycrictl.units import quote

if TYPE_CHECKING:
    from pycrictl.kube.plugin import Printed

KUBECONFIGS: Final = (
    "/etc/kubernetes/kubelet.conf",
    "/var/lib/kubelet/kubeconfig",
    "/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
    "/var/lib/rancher/rke2/agent/kubelet.kubeconfig",
    "/var/lib/k0s/kubelet.conf",
    "/var/snap/microk8s/current/credentials/kubelet.config",
)
"""kubeadm; kOps and clouds; k3s; rke2; k0s; microk8s."""

PLUGIN_S: Final = 5.0
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_MAX_CHARS: Final = 1 << 20
_NODE_USER: Final = b"system:node:"
_COMMON_NAME: Final = rb"\x06\x03\x55\x04\x03[\x0c\x13\x14\x16]([\x00-\x7f])"
"""The object identifier 2.5.4.3 in DER, a string's tag, and its length (X.520, X.690)."""

_CERTIFICATE: Final = r"-----BEGIN CERTIFICATE-----([^-]+)-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class Credential:
    """The kubelet's identity for the API server.

    Attributes:
        origin: the kubeconfig's path.
        server: ``https://HOST[:PORT][/PREFIX]``.
        server_name: that the server's certificate must have; empty for the host's.
        authority: PEM of the server's CAs; empty for the system's.
        certificate, key: PEM of the client; empty if there is a token.
    """

    origin: str
    node: str
    server: str
    server_name: str = ""
    authority: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    is_unverified: bool = False


def find_credential(
    root: Path = ROOT, kubelet: Kubelet | None = None, *, timeout_s: float = PLUGIN_S
) -> Credential:
    """Return the credential of this node's kubelet.

    Args:
        kubelet: the running one; None to look for it.
        timeout_s: limit of a program that prints it (``exec``).
    """
    kubelet = kubelet or find_kubelet(root)
    for path in filter(None, (kubelet.kubeconfig, *KUBECONFIGS)):
        try:
            document = read_document(path, root)
        except FileNotFoundError:
            continue
        except OSError as exc:
            raise _unreadable(path, exc) from None
        return _Kubeconfig(path, document, root).credential(host_name(kubelet), timeout_s)
    raise ConfigError("no kubeconfig of a kubelet was found")


def read_kubeconfig(path: str, *, timeout_s: float = PLUGIN_S) -> Credential:
    try:
        document = parse_document(path, config.read_text(path))
    except OSError as exc:
        raise _unreadable(path, exc) from None
    return _Kubeconfig(path, document, ROOT).credential(host_name(Kubelet()), timeout_s)


def in_cluster(environ: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Credential:
    host, port = (environ.get(f"KUBERNETES_SERVICE_{word}", "") for word in ("HOST", "PORT"))
    if not host:
        raise ConfigError("no API server is named: this is not a pod", hint="use --kubeconfig")
    try:
        token = config.read_text(str(folder / "token")).strip()
        authority = config.read_text(str(folder / "ca.crt"))
    except OSError as exc:
        raise _unreadable(str(folder), exc) from None
    return Credential(
        origin=str(folder),
        node=environ.get("NODE_NAME", "") or host_name(Kubelet()),
        server=f"https://{f'[{host}]' if ':' in host else host}:{port or 443}",
        authority=authority,
        token=token,
    )


def own_namespace(folder: Path = SERVICE_ACCOUNT) -> str:
    try:
        return config.read_text(str(folder / "namespace")).strip()
    except OSError:
        return ""


class _Kubeconfig:
    """A kubeconfig (``v1 Config``): its current context's cluster and user."""

    def __init__(self, path: str, document: dict[str, Any], root: Path) -> None:
        self._path = path
        self._root = root
        current = document.get("current-context")
        contexts = _named(document.get("contexts"), "context")
        context = contexts.get(current) or next(iter(contexts.values()), {})
        clusters = _named(document.get("clusters"), "cluster")
        users = _named(document.get("users"), "user")
        self._cluster = clusters.get(context.get("cluster")) or next(iter(clusters.values()), {})
        self._user = users.get(context.get("user")) or next(iter(users.values()), {})

    def credential(self, host: str, timeout_s: float) -> Credential:
        """Return what it says; ``host`` names the node where no certificate does."""
        server = text(self._cluster.get("server"))
        if not server.startswith("https://"):
            raise ConfigError(f"{quote(self._path, 4096)} names no server that is asked by https")
        certificate = self._pem(self._user, "client-certificate")
        key = self._pem(self._user, "client-key")
        token = text(self._user.get("token"), _MAX_CHARS)
        token = token or self._file(self._user.get("tokenFile")).strip()
        if not (certificate and key) and not token:
            token, certificate, key = self._printed(timeout_s)
        return Credential(
            origin=self._path,
            node=_node_of(certificate) or host,
            server=server,
            server_name=text(self._cluster.get("tls-server-name")),
            authority=self._pem(self._cluster, "certificate-authority"),
            certificate=certificate if key else "",
            key=key if certificate else "",
            token=token,
            is_unverified=self._cluster.get("insecure-skip-tls-verify") is True,
        )

    def _printed(self, timeout_s: float) -> Printed:
        plugin, name = mapping(self._user.get("exec")), quote(self._path, 4096)
        if not plugin:
            raise ConfigError(f"the user of {name} has no credential")
        if self._root != ROOT:  # its program belongs to the node's own file system
            raise ConfigError(f"the user of {name} gets its credential from a program of the node")
        return ask_plugin(plugin, Path(self._path).parent, timeout_s)

    def _pem(self, entry: dict[str, Any], key: str) -> str:
        if data := text(entry.get(f"{key}-data"), _MAX_CHARS):
            try:
                return base64.b64decode(data, validate=True).decode("ascii")
            except ValueError:
                raise ConfigError(f"{quote(self._path, 4096)}: {key}-data is not base64") from None
        return self._file(entry.get(key))

    def _file(self, given: object) -> str:
        if not (name := text(given)):
            return ""
        path = str(Path(self._path).parent / name)
        try:
            return read_text(path, self._root)
        except OSError as exc:
            raise _unreadable(path, exc) from None


def _named(entries: object, kind: str) -> dict[Any, dict[str, Any]]:
    return {
        str(entry.get("name")): entry[kind]
        for entry in mappings(entries)
        if isinstance(entry.get(kind), dict)
    }


def _node_of(certificate: str) -> str:
    """Return the node that a certificate is for, from its subject ``CN=system:node:NAME``."""
    if not (block := re.search(_CERTIFICATE, certificate)):
        return ""
    try:
        der = binascii.a2b_base64(block[1])
    except ValueError:
        return ""
    for found in re.finditer(_COMMON_NAME, der, re.DOTALL):
        name = der[found.end() : found.end() + found[1][0]]
        if name.startswith(_NODE_USER):
            return name.removeprefix(_NODE_USER).decode("utf-8", "replace")
    return ""


def _unreadable(path: str, exc: OSError) -> ConfigError:
    return ConfigError(f"cannot read {quote(path, 4096)}: {(exc.strerror or str(exc)).lower()}")
