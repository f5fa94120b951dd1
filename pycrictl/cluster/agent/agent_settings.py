"""The agent's settings, from flags; the copy quotas also from kubelet's configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pycrictl.base import serviceoptions as options
from pycrictl.base.errors import UsageError
from pycrictl.base.servicelog import LogFormat, LogLevel
from pycrictl.base.serviceoptions import Address, Row, maybe
from pycrictl.base.units import quote
from pycrictl.cluster.agent.api.names import is_name
from pycrictl.kube.credential import Credential, own_namespace
from pycrictl.node.kubelet import KubeletConfig, copy_quotas, read_kubelet_config

PEER_TOKEN: Final = "/var/run/secrets/progress.pycrictl.dev/token"


def _listed(value: object) -> tuple[str, ...]:
    words = value if isinstance(value, list) else []
    return tuple(item.strip() for word in words for item in str(word).split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The settings of an agent; ``debugs`` is the kubelet's ``enableDebuggingHandlers``."""

    debugs: bool = True
    listen: Address = options.address("listen", "Where to serve", "0.0.0.0:10281")
    node: str = options.word(
        "node-name", "The name of this node", "", shown="$NODE_NAME, else the kubelet's"
    )
    kubeconfig: str = options.file(
        "kubeconfig",
        "Connect to the API server with this kubeconfig",
        "",
        shown="as the pod's service account",
    )
    certificate_file: str = options.file(
        "tls-cert", "Serve with this certificate", "", shown="one made at each start"
    )
    key_file: str = options.file("tls-key", "The key of --tls-cert", "")
    peer_ca_file: str = options.file(
        "peer-ca",
        "The CA of all agents' certificates",
        "",
        shown="that of the Secret pycrictl-agent-ca; with --tls-cert they are not verified",
    )
    peer_token_file: str = options.file(
        "peer-token",
        "The service account's token for the audience progress.pycrictl.dev, which agents use to"
        " authenticate to each other",
        PEER_TOKEN,
    )
    namespace: str = options.word(
        "peer-namespace",
        "The namespace of the agents' Service, pycrictl-agent",
        "",
        shown="this pod's; none with --kubeconfig",
    )
    namespaces: tuple[str, ...] = Row(_listed, "NAME,...", list[str])(
        "namespaces",
        "Serve only the pods of these namespaces, which needs no ClusterRole; the same for all"
        " agents; repeatable",
        [],
        shown="all",
    )
    admin_socket: str = Row(options.read_text, "SOCKET")(
        "admin-socket",
        "Admin socket of the proxy on this node; queried if it exists",
        "unix:///run/pycrictl/admin.sock",
    )
    writes_events: bool = options.switch(
        "events", "Write Events about the pulls of this node; not if its proxy writes them", False
    )
    metrics_listen: Address | None = Row(maybe(options.read_address, empty=None), "IP:PORT")(
        "metrics-listen",
        "Serve /metrics for Prometheus, /livez and /readyz there, without TLS, for everyone",
        shown="nowhere",
    )
    spool_dir: str = Row(maybe(options.read_text), "DIR")(
        "spool-dir",
        "Serve copies of containers' files, and spool them in this folder",
        "",
        shown="no copies",
    )
    spool_limit_bytes: int = options.size(
        "spool-size", "Total space for copies there, such as 50Gi; 0 for no limit", "10Gi"
    )
    copy_size_limit_bytes: int = options.size(
        "container-copy-size-limit", "Largest copy, such as 2Gi", 0, shown="0, no limit"
    )
    copies_per_pod: int = options.count(
        "container-copies-per-pod", "Make at most N copies per pod at once", 0, shown="0, no limit"
    )
    kubelet_config: str = options.file(
        "kubelet-config",
        "Take the quotas of copies that are not given from kubelet's configuration, such as"
        " /var/lib/kubelet/config.yaml; enableDebuggingHandlers: false there turns copies and"
        " streams off",
        "",
    )
    log_format: LogFormat = options.choice(LogFormat)("log-format", "Format of log lines", "text")
    log_level: LogLevel = options.choice(LogLevel)(
        "log-level", "Minimum level to log", "info", shown="info, with --debug debug"
    )


def load(
    flags: Mapping[str, object], environ: Mapping[str, str], credential: Callable[[str], Credential]
) -> AgentSettings:
    """Return the effective settings; ``credential`` reads a kubeconfig's, or else this pod's."""
    values: dict[str, Any] = dict(options.read_flags(AgentSettings, flags).values)
    kubeconfig = values.get("kubeconfig", "")
    node = values.get("node") or environ.get("NODE_NAME", "") or credential(kubeconfig).node
    values["node"] = _named(node, "a node (--node-name, else $NODE_NAME)")
    namespace = _named(values.get("namespace", ""), "a namespace (--peer-namespace)")
    values["namespace"] = namespace or ("" if kubeconfig else own_namespace())
    for name in values.get("namespaces", ()):
        _named(name, "a namespace (--namespaces)")
    named = values.get("kubelet_config", "")
    kubelet = read_kubelet_config(named) if named else KubeletConfig("")
    values["copy_size_limit_bytes"], values["copies_per_pod"] = copy_quotas(
        kubelet, values.get("copy_size_limit_bytes"), values.get("copies_per_pod")
    )
    return AgentSettings(**values, debugs=kubelet.debugs)


def _named(name: str, what: str) -> str:
    if name and not is_name(name):
        raise UsageError(f"invalid name of {what}: {quote(name)}")
    return name
