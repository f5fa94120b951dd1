"""The credential for the API server: the kubelet's own, a pod's, or one from a kubeconfig.

The kubelet's kubeconfig is taken from the flags of the running kubelet, else from one of the paths
that distributions use. A credential is kept in memory and never shown.

Nodes in clouds have kubeconfigs whose user is a program (``exec``, client-go's plugins): the
kubelet authenticates with the machine's own identity. The program is named in a file owned by root,
and is run as the kubelet runs it: without a terminal, with ``KUBERNETES_EXEC_INFO``
(client.authentication.k8s.io/v1). Its standard error is not shown, as it may contain anything.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from pycrictl.base import config
from pycrictl.base.errors import ConfigError, reason_of
from pycrictl.base.foreign import mapping, mappings, parsed, text, texts
from pycrictl.base.units import format_duration, quote
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
"""kubeadm; kOps and clouds; k3s; rke2; k0s; microk8s."""

PLUGIN_S: Final = 5.0
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_MAX_CHARS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Credential:
    """An identity for the API server.

    Attributes:
        node: the host's name, or that which a pod is told; see ``ApiClient.node``.
        origin: path of the kubeconfig, or of the folder of a pod's service account.
        server: ``https://HOST[:PORT][/PREFIX]``.
        server_name: required name in the server's certificate; empty for the host name.
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
        kubelet: the running kubelet; None to search for it.
        timeout_s: limit of a program that prints the credential (``exec``).
    """
    kubelet = kubelet or find_kubelet(root)
    for path in filter(None, (kubelet.kubeconfig, *KUBECONFIGS)):
        try:
            document = read_document(path, root)
        except FileNotFoundError:
            continue
        except OSError as exc:
            raise _unreadable(path, exc) from None
        return _credential(path, document, root, host_name(kubelet), timeout_s)
    raise ConfigError("no kubeconfig of a kubelet was found")


def read_kubeconfig(path: str, *, timeout_s: float = PLUGIN_S) -> Credential:
    try:
        document = parse_document(path, config.read_text(path))
    except OSError as exc:
        raise _unreadable(path, exc) from None
    return _credential(path, document, ROOT, host_name(Kubelet()), timeout_s)


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


def _credential(
    path: str, document: dict[str, Any], root: Path, host: str, timeout_s: float
) -> Credential:
    """Return the credential for the current context of a kubeconfig (``v1 Config``)."""
    context = _chosen(document, "context", document.get("current-context"))
    cluster = _chosen(document, "cluster", context.get("cluster"))
    user = _chosen(document, "user", context.get("user"))
    name, folder = quote(path, 4096), Path(path).parent
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
        if not (plugin := mapping(user.get("exec"))):
            raise ConfigError(f"the user of {name} has no credential")
        if root != ROOT:  # its program belongs to the node's own file system
            raise ConfigError(f"the user of {name} gets its credential from a program of the node")
        token, certificate, key = ask_plugin(plugin, folder, timeout_s)
    return Credential(
        origin=path,
        node=host,
        server=server,
        server_name=text(cluster.get("tls-server-name")),
        authority=pem(cluster, "certificate-authority"),
        certificate=certificate if key else "",
        key=key if certificate else "",
        token=token,
        is_unverified=cluster.get("insecure-skip-tls-verify") is True,
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
    return ConfigError(f"cannot read {quote(path, 4096)}: {reason_of(exc)}")


MAX_ARGUMENT_CHARS: Final = 128 * 1024
"""The limit of execve(2) for one argument."""


class Printed(NamedTuple):
    """The printed credential: a token, or a client certificate with its key, in PEM."""

    token: str = ""
    certificate: str = ""
    key: str = ""


def ask_plugin(plugin: dict[str, Any], folder: Path, timeout_s: float) -> Printed:
    """Run the program in ``exec`` of a kubeconfig's user, and return its credential.

    ``folder`` is the kubeconfig's. Processes that the program leaves behind are killed, as is the
    program itself after ``timeout_s``.
    """
    command = text(plugin.get("command"))
    if not command:
        raise ConfigError("the kubeconfig's exec names no command")
    name = quote(command, 4096)
    if "/" in command:
        command = str(folder / command)
    words = texts(plugin.get("args"), MAX_ARGUMENT_CHARS)
    try:
        process = subprocess.Popen(
            [command, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_variables(plugin)},
            start_new_session=True,
        )
    except (OSError, ValueError) as exc:
        reason = reason_of(exc)
        raise ConfigError(f"cannot run {name} for a credential: {reason}") from None
    with process:
        try:
            content, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            limit = format_duration(timeout_s)
            raise ConfigError(f"{name} gave no credential within {limit}") from None
        finally:
            with suppress(ProcessLookupError):  # its child processes may still run
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise ConfigError(f"{name} gave no credential: it ended with {process.returncode}")
    return _read(content, name)


def _variables(plugin: dict[str, Any]) -> dict[str, str]:
    info = {
        "apiVersion": plugin.get("apiVersion"),
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    variables = {"KUBERNETES_EXEC_INFO": json.dumps(info)}
    for variable in mappings(plugin.get("env")):
        variables[str(variable.get("name"))] = str(variable.get("value"))
    return variables


def _read(content: bytes, name: str) -> Printed:
    status = mapping(parsed(content).get("status"))
    keys = ("token", "clientCertificateData", "clientKeyData")
    printed = Printed(*(text(status.get(key), len(content)) for key in keys))
    if not printed.token and not (printed.certificate and printed.key):
        raise ConfigError(f"{name} printed no credential")
    return printed
