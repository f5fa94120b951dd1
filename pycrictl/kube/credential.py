"""The credential for the API server: the kubelet's own, a pod's, or one from a kubeconfig.

The kubelet's kubeconfig is taken from the flags of the running kubelet, else from one of the paths
that distributions use. A credential is kept in memory and never shown.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pycrictl.base import config
from pycrictl.base.errors import ConfigError, reason_of
from pycrictl.base.foreign import mappings, text
from pycrictl.base.units import quote_path
from pycrictl.node.kubelet import (
    ROOT,
    Kubelet,
    find_kubelet,
    host_name,
    parse_document,
    read_document,
    read_text,
)

KUBECONFIGS: Final = (
    "/etc/kubernetes/kubelet.conf",
    "/var/lib/kubelet/kubeconfig",
    "/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
    "/var/lib/rancher/rke2/agent/kubelet.kubeconfig",
    "/var/lib/k0s/kubelet.conf",
    "/var/snap/microk8s/current/credentials/kubelet.config",
)
"""The paths of kubeadm; kOps and clouds; k3s; rke2; k0s; microk8s."""

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_MAX_CHARS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Credential:
    """An identity for the API server.

    Attributes:
        node: the host's name, or in a pod ``NODE_NAME``; see ``ApiClient.node``.
        origin: path of the kubeconfig, or of the folder of a pod's service account.
        server: ``https://HOST[:PORT][/PREFIX]``.
        authority: PEM of the server's CAs; empty for the system's.
        certificate, key: PEM of the client; empty if it has only a token.
    """

    origin: str
    node: str
    server: str
    authority: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


def find_credential(root: Path = ROOT, kubelet: Kubelet | None = None) -> Credential:
    """Return the credential of this node's kubelet.

    ``kubelet`` is the running one; None to search for it.
    """
    kubelet = kubelet or find_kubelet(root)
    for path in filter(None, (kubelet.kubeconfig, *KUBECONFIGS)):
        try:
            document = read_document(path, root)
        except FileNotFoundError:
            continue
        except OSError as exc:
            raise _unreadable(path, exc) from None
        return _credential(path, document, root, host_name(kubelet))
    raise ConfigError("no kubeconfig of a kubelet was found")


def read_kubeconfig(path: str) -> Credential:
    try:
        document = parse_document(path, config.read_text(path))
    except OSError as exc:
        raise _unreadable(path, exc) from None
    return _credential(path, document, ROOT, host_name(Kubelet()))


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


def _credential(path: str, document: dict[str, Any], root: Path, host: str) -> Credential:
    """Return the credential for the current context of a kubeconfig (``v1 Config``)."""
    context = _chosen(document, "context", document.get("current-context"))
    cluster = _chosen(document, "cluster", context.get("cluster"))
    user = _chosen(document, "user", context.get("user"))
    name, folder = quote_path(path), Path(path).parent
    server = text(cluster.get("server"))
    if not server.startswith("https://"):
        raise ConfigError(f"{name} names no server with an https URL")

    def pem(entry: dict[str, Any], key: str) -> str:
        if data := text(entry.get(f"{key}-data"), _MAX_CHARS):
            try:
                return base64.b64decode(data, validate=True).decode("ascii")
            except ValueError:
                raise ConfigError(f"{name}: {key}-data is not base64") from None
        return _content(folder, root, entry.get(key))

    certificate, key = pem(user, "client-certificate"), pem(user, "client-key")
    token = text(user.get("token"), _MAX_CHARS)
    token = token or _content(folder, root, user.get("tokenFile")).strip()
    if not (certificate and key) and not token:
        is_by_program = " but names a program (exec), which is not run" if "exec" in user else ""
        raise ConfigError(f"the user of {name} has no certificate or token{is_by_program}")
    return Credential(
        origin=path,
        node=host,
        server=server,
        authority=pem(cluster, "certificate-authority"),
        certificate=certificate if key else "",
        key=key if certificate else "",
        token=token,
    )


def _content(folder: Path, root: Path, given: object) -> str:
    if not (name := text(given)):
        return ""
    path = str(folder / name)
    try:
        return read_text(path, root)
    except OSError as exc:
        raise _unreadable(path, exc) from None


def _chosen(document: dict[str, Any], kind: str, name: object) -> dict[str, Any]:
    """Return the entry with this name, else the first."""
    entries = mappings(document.get(f"{kind}s"))
    by_name = {
        str(entry.get("name")): entry[kind]
        for entry in entries
        if isinstance(entry.get(kind), dict)
    }
    return by_name.get(str(name)) or next(iter(by_name.values()), {})


def _unreadable(path: str, exc: OSError) -> ConfigError:
    return ConfigError(f"cannot read {quote_path(path)}: {reason_of(exc)}")
