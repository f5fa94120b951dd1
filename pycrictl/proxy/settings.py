"""The proxy's settings: from flags, a TOML file with the flags' names, kubelet's configuration.

Each setting comes from the first source that has it: its flag, its key in the file, kubelet's
configuration (only the limit and the copy quotas), its default. Flags and file are checked alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pycrictl.base import noderoot
from pycrictl.base import serviceoptions as options
from pycrictl.base.errors import UsageError
from pycrictl.base.servicelog import LogFormat, LogLevel
from pycrictl.base.serviceoptions import Address, Given, Row, maybe
from pycrictl.copy.rules.policy import MAX_ENTRIES
from pycrictl.copy.tree.content import DEFAULT_FOLDER
from pycrictl.node.kubelet import KubeletConfig, copy_quotas, read_kubelet_config
from pycrictl.proxy.pulls.book import Policy

DEFAULT_PATH: Final = "/etc/pycrictl.toml"
DEFAULT_LISTEN: Final = "unix:///run/pycrictl/cri.sock"
DEFAULT_ADMIN: Final = "unix:///run/pycrictl/admin.sock"
OWN_KUBECONFIG: Final = "kubelet"


def _upstream(value: object) -> str:
    return noderoot.given(options.read_socket(value))


def _events(value: object) -> str:
    return OWN_KUBECONFIG if value == OWN_KUBECONFIG else str(options.read_folder(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """``limit_origin`` is ``flag``, a file's path or ``default``."""

    limit_origin: str = "default"
    upstream: str = Row(maybe(_upstream), "SOCKET")(
        "upstream", "The runtime's socket", "", shown="the first that answers"
    )
    listen: str = options.socket("listen", "The proxy's own socket", DEFAULT_LISTEN)
    limit: int = options.count(
        "max-parallel-image-pulls", "Pull at most N images at once", 0, shown="0, no limit"
    )
    policy: Policy = options.choice(Policy)(
        "when-full", "With no free slot, wait in line or retry a few times", "wait"
    )
    retry_interval_s: float = options.interval(
        "retry-interval", "With retry: the pause between tries", "10s"
    )
    retries: int = options.count("retries", "With retry: how many retries", 3)
    kubelet_config: str = options.file(
        "kubelet-config",
        "Take the limit and the quotas of copies from kubelet's configuration, such as"
        " /var/lib/kubelet/config.yaml",
        "",
    )
    config: str = options.file(
        "config", "TOML file with these options as keys", "", shown=DEFAULT_PATH, is_key=False
    )
    drain_timeout_s: float | None = options.duration(
        "drain-timeout", "How long pulls and copies may continue after SIGTERM", shown="no limit"
    )
    admin_socket: str = options.socket("admin-socket", "Socket for pull-limiter", DEFAULT_ADMIN)
    stream_address: Address = Row(options.read_address_of_urls, "IP:PORT")(
        "stream-address",
        "Address to serve streams on",
        "127.0.0.1:0",
        shown="127.0.0.1:0, any port",
    )
    copy_size_limit_bytes: int = options.size(
        "container-copy-size-limit", "Largest copy, such as 10Gi", 0, shown="0, no limit"
    )
    copy_entry_limit: int = options.number(
        "container-copy-entry-limit",
        "Accept at most N entries in one copy",
        MAX_ENTRIES,
        shown=f"{MAX_ENTRIES}; 0 for no limit",
    )
    copies_per_pod: int = options.count(
        "container-copies-per-pod", "Make at most N copies per pod at once", 0, shown="0, no limit"
    )
    spool_dir: str = options.folder(
        "spool-dir", "Where to spool copies out of containers", DEFAULT_FOLDER
    )
    state_dir: str = Row(maybe(options.read_folder), "DIR")(
        "state-dir",
        "Where to keep the history of pulls",
        "",
        shown="none; as a service, its StateDirectory=",
    )
    log_format: LogFormat = options.choice(LogFormat)("log-format", "Format of log lines", "text")
    log_level: LogLevel = options.choice(LogLevel)(
        "log-level", "Minimum level to log", "info", shown="info, with --debug debug"
    )
    metrics_address: Address | None = Row(maybe(options.read_address, empty=None), "IP:PORT")(
        "metrics-listen", "Serve /metrics for Prometheus, /livez and /readyz there", shown="nowhere"
    )
    tracing_endpoint: str = Row(maybe(options.read_host_and_port), "HOST:PORT")(
        "tracing-endpoint",
        "Send a trace of each pull and copy to this OpenTelemetry collector",
        "",
        shown="none",
    )
    events: str = Row(maybe(_events), "kubelet|FILE")(
        "events",
        "Write Events about the pulls of pods, with the kubelet's own kubeconfig or this one",
        "",
        shown="no Events",
    )
    wants_manifests: bool = Row(lambda value: not options.read_switch(value), kind=bool)(
        "no-manifest",
        "On CRI-O, do not query the registry for layer sizes; shows bytes without percentages",
        False,
    )
    reloads: bool = options.switch(
        "reload",
        "Replace the running proxy by a new one with the same command line; no call fails",
        False,
        is_key=False,
    )


def load(
    flags: Mapping[str, object],
    find_upstream: Callable[[], str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ProxySettings:
    """Return the effective settings; ``flags`` has the typed values by name."""
    typed = options.read_flags(ProxySettings, flags)
    path = typed.values.get("config", "")
    file = options.read_file(
        ProxySettings, noderoot.given(path or DEFAULT_PATH), is_required=bool(path)
    )
    # By default only a service keeps a history: a proxy that is tried by hand leaves no files.
    state_dir = (environ or {}).get("STATE_DIRECTORY", "").partition(":")[0]
    values: dict[str, Any] = {"state_dir": state_dir, **file.values, **typed.values}
    if "upstream" not in values and find_upstream is not None and not values.get("reloads"):
        values["upstream"] = find_upstream()
    values["limit"], values["limit_origin"] = _limit(typed, file, values)
    quotas = values.get("copy_size_limit_bytes"), values.get("copies_per_pod")
    kubelet = KubeletConfig(values.get("kubelet_config", ""))
    if kubelet.path and None in quotas:
        kubelet = read_kubelet_config(kubelet.path)
    values["copy_size_limit_bytes"], values["copies_per_pod"] = copy_quotas(kubelet, *quotas)
    found = ProxySettings(**values)
    if not found.upstream and not found.reloads:
        raise UsageError(
            "no runtime is given",
            hint="for example --upstream unix:///run/containerd/containerd.sock",
        )
    if len({found.upstream, found.listen, found.admin_socket}) < 3:
        raise UsageError("upstream, listen and admin-socket must be three different sockets")
    return found


def _limit(typed: Given, file: Given, values: Mapping[str, Any]) -> tuple[int, str]:
    for source in (typed, file):
        if (limit := source.values.get("limit")) is not None:
            return limit, source.path or "flag"
    if named := values.get("kubelet_config"):
        limit = read_kubelet_config(named).limit
        if limit is not None:
            return min(limit, options.MAX_COUNT), named
    return 0, "default"
