"""The proxy's settings: from flags, from a TOML file with the flags' names, from kubelet's own.

Each setting takes the first of: its flag, its key in the file, for the limit and the quotas of
copies kubelet's configuration, the default. Flags and file are checked by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

import tomli

from pycrictl import noderoot
from pycrictl.config import Setting, socket_path
from pycrictl.copy.rules.policy import MAX_ENTRIES
from pycrictl.copy.tree.content import DEFAULT_FOLDER
from pycrictl.errors import ConfigError, PycrictlError, UsageError
from pycrictl.kube.kubelet_config import KubeletConfig, copy_quotas, read_kubelet_config
from pycrictl.proxy.pulls.decisions import Policy
from pycrictl.proxy.serve.stream_server import Address, parse_address
from pycrictl.servicelog import LogFormat, LogLevel
from pycrictl.units import parse_duration, parse_size, quote

DEFAULT_PATH: Final = "/etc/pycrictl.toml"
DEFAULT_LISTEN: Final = "unix:///run/pycrictl/cri.sock"
DEFAULT_ADMIN: Final = "unix:///run/pycrictl/admin.sock"

OWN_KUBECONFIG: Final = "kubelet"
ChoiceT = TypeVar("ChoiceT", bound=StrEnum)

MAX_LIMIT: Final = 10_000
_FILE_LIMIT_BYTES: Final = 1024 * 1024
_LONGEST_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """The settings of a proxy. Sockets are absolute paths.

    Attributes:
        limit: the most images pulled at once; 0 for no limit.
        limit_origin: ``flag``, a file's path or ``default``.
        policy: for callers that find no free slot.
        kubelet_config: the file given; empty if none was.
        copy_size_limit_bytes: of one copy, as an archive; 0 for no limit.
        drain_timeout_s: how long pulls and copies may go on at the end; None without a limit.
        copy_entry_limit: the most entries of one copy's archive; 0 for no limit.
        copies_per_pod: the most copies of a pod at once; 0 for no limit.
        spool_dir: where copies out of containers are spooled.
        state_dir: where the history of pulls is kept; empty for none.
        metrics_address: where metrics are served; None for nowhere.
        tracing_endpoint: ``HOST:PORT`` of a collector of traces; empty for none.
        events: the kubeconfig to write Events with, or ``kubelet`` for its own; empty for none.
        wants_manifests: whether registries may be asked for what CRI-O does not show.
    """

    upstream: str
    listen: str
    admin_socket: str
    stream_address: Address
    limit: int
    limit_origin: str
    policy: Policy
    retry_interval_s: float
    retries: int
    drain_timeout_s: float | None
    kubelet_config: str
    copy_size_limit_bytes: int
    copy_entry_limit: int
    copies_per_pod: int
    spool_dir: str
    state_dir: str
    log_format: LogFormat
    log_level: LogLevel
    metrics_address: Address | None
    tracing_endpoint: str
    events: str
    wants_manifests: bool


def load(
    flags: Mapping[str, object],
    find_upstream: Callable[[], str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ProxySettings:
    """Return the settings in force.

    Args:
        flags: values by the file's keys and ``config``, as typed: durations are strings. None
            means not given.
        find_upstream: finds the socket of a runtime where none is given.
        environ: of the process; systemd names a service's ``StateDirectory=`` there.

    Raises:
        UsageError: a flag has a bad value, or no runtime is given.
        ConfigError: a file cannot be read or has a bad value; the message names file and key.
    """
    given = {key: value for key, value in flags.items() if value is not None}
    path = str(given.pop("config", ""))
    source = _Source("", given)
    file = _read(noderoot.given(path or DEFAULT_PATH), is_required=bool(path))
    # The history is the service's: a proxy that is tried by hand leaves nothing behind.
    state_dir = (environ or {}).get("STATE_DIRECTORY", "").partition(":")[0]
    values = {**_DEFAULTS, "state-dir": state_dir, **file.checked(), **source.checked()}
    if "upstream" not in values and find_upstream is not None:
        values["upstream"] = find_upstream()
    if "upstream" not in values:
        raise UsageError(
            "no runtime is given",
            hint="for example --upstream unix:///run/containerd/containerd.sock",
        )
    sockets = [values["upstream"], values["listen"], values["admin-socket"]]
    if len(set(sockets)) < len(sockets):
        raise UsageError("upstream, listen and admin-socket must be three different sockets")
    limit, origin = _limit(source, file, values)
    quotas = values["container-copy-size-limit"], values["container-copies-per-pod"]
    kubelet = KubeletConfig(values["kubelet-config"])
    if kubelet.path and None in quotas:
        kubelet = read_kubelet_config(kubelet.path)
    size_limit_bytes, copies_per_pod = copy_quotas(kubelet, *quotas)
    return ProxySettings(
        upstream=values["upstream"],
        listen=values["listen"],
        admin_socket=values["admin-socket"],
        stream_address=values["stream-address"],
        limit=limit,
        limit_origin=origin,
        policy=values["when-full"],
        retry_interval_s=values["retry-interval"],
        retries=values["retries"],
        drain_timeout_s=values["drain-timeout"],
        kubelet_config=values["kubelet-config"],
        copy_size_limit_bytes=size_limit_bytes,
        copy_entry_limit=values["container-copy-entry-limit"],
        copies_per_pod=copies_per_pod,
        spool_dir=values["spool-dir"],
        state_dir=values["state-dir"],
        log_format=values["log-format"],
        log_level=values["log-level"],
        metrics_address=values["metrics-listen"],
        tracing_endpoint=values["tracing-endpoint"],
        events=values["events"],
        wants_manifests=not values["no-manifest"],
    )


class _Source(NamedTuple):
    """Values as given, and the file they came from; no path for flags."""

    path: str
    given: Mapping[str, object]

    def checked(self) -> dict[str, Any]:
        """Return the values, checked."""
        return {key: self.read(key, value) for key, value in self.given.items()}

    def read(self, key: str, value: object) -> Any:
        """Check one value.

        Raises:
            UsageError: a flag's value is bad.
            ConfigError: a file's value is bad.
        """
        reader = _READERS.get(key)
        if reader is None:
            hint = f"known keys: {', '.join(_READERS)}"
            raise ConfigError(f"{quote(self.path, 4096)}: unknown key {quote(key)}", hint=hint)
        try:
            return reader(value)
        except ValueError as exc:
            if self.path:
                raise ConfigError(f"{quote(self.path, 4096)}: {key}: {exc}") from None
            raise UsageError(f"--{key}: {exc}") from None


def _limit(flags: _Source, file: _Source, values: Mapping[str, Any]) -> tuple[int, str]:
    """Return the limit and its origin, from the first source that says anything about it."""
    for source in (flags, file):
        found = source.checked()
        is_serial = found.get("serialize-image-pulls")
        number = found.get("max-parallel-image-pulls")
        if is_serial and number not in (None, 1):
            where = f"{quote(source.path, 4096)}: " if source.path else "--"
            raise (ConfigError if source.path else UsageError)(
                f"{where}serialize-image-pulls: it means a limit of 1, "
                f"but max-parallel-image-pulls is {number}"
            )
        if is_serial or number is not None:
            return (1 if is_serial else number or 0), source.path or "flag"
        if is_serial is False:
            return 0, source.path or "flag"
    if named := values["kubelet-config"]:
        limit = read_kubelet_config(named).limit
        if limit is not None:
            return min(limit, MAX_LIMIT), named
    return 0, "default"


def _read(path: str, *, is_required: bool) -> _Source:
    try:
        with Path(path).open("rb") as file:
            text = file.read(_FILE_LIMIT_BYTES).decode()
        return _Source(path, tomli.loads(text))
    except FileNotFoundError:
        if not is_required:
            return _Source(path, {})
        raise ConfigError(f"config file {quote(path, 4096)} does not exist") from None
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise ConfigError(f"cannot read the config file {quote(path, 4096)}: {reason}") from None
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{quote(path, 4096)} is not valid TOML: {exc}") from None


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("it is not a string")
    return value


def _socket(value: object) -> str:
    try:
        path = socket_path(Setting(_text(value), "flag"), "endpoint")
    except PycrictlError as exc:
        raise ValueError(exc.message) from None
    return str(Path(path).absolute())


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_LIMIT:
        raise ValueError(f"it is not a number from 0 to {MAX_LIMIT}")
    return value


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("it is not a number from 0")
    return value


def _size(value: object) -> int:
    """Read a number of bytes, or a string such as ``10Gi``."""
    if type(value) is int and value >= 0:
        return value
    return parse_size(_text(value))


def _folder(value: object) -> str:
    path = _text(value)
    if not Path(path).is_absolute():
        raise ValueError("it is not an absolute path")
    return path


def _host_and_port(value: object) -> str:
    host, colon, port = _text(value).rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("it is not HOST:PORT, such as 127.0.0.1:4317")
    return _text(value)


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("it is not true or false")
    return value


def _duration(value: object) -> float:
    seconds = parse_duration(_text(value))
    if not 0 <= seconds <= _LONGEST_S:
        raise ValueError("it is not a duration from 0s to 24h")
    return seconds


def _interval(value: object) -> float:
    seconds = _duration(value)
    if not seconds:
        raise ValueError("it must be longer than 0s")
    return seconds


def _one_of(kind: type[ChoiceT], value: object) -> ChoiceT:
    try:
        return kind(cast("str", value))
    except ValueError:
        *others, last = (str(choice) for choice in kind)
        raise ValueError(f"it is not {', '.join(others)} or {last}") from None


_READERS: Final[dict[str, Callable[[object], Any]]] = {
    "upstream": lambda value: noderoot.given(_socket(value)),
    "listen": _socket,
    "max-parallel-image-pulls": _count,
    "serialize-image-pulls": _switch,
    "when-full": lambda value: _one_of(Policy, value),
    "retry-interval": _interval,
    "retries": _count,
    "kubelet-config": _text,
    "drain-timeout": _duration,
    "admin-socket": _socket,
    "stream-address": lambda value: parse_address(_text(value)),
    "container-copy-size-limit": _size,
    "container-copy-entry-limit": _number,
    "container-copies-per-pod": _count,
    "spool-dir": _folder,
    "state-dir": lambda value: _folder(value) if value else "",
    "log-format": lambda value: _one_of(LogFormat, value),
    "log-level": lambda value: _one_of(LogLevel, value),
    "metrics-listen": lambda value: parse_address(_text(value), may_be_any=True) if value else None,
    "tracing-endpoint": lambda value: _host_and_port(value) if value else "",
    "events": lambda value: value if value in ("", OWN_KUBECONFIG) else _folder(value),
    "no-manifest": _switch,
}

_DEFAULTS: Final[dict[str, Any]] = {
    "listen": _socket(DEFAULT_LISTEN),
    "admin-socket": _socket(DEFAULT_ADMIN),
    "when-full": Policy.WAIT,
    "retry-interval": 10.0,
    "retries": 3,
    "kubelet-config": "",
    "drain-timeout": None,
    "stream-address": Address("127.0.0.1", 0),
    "container-copy-size-limit": None,
    "container-copy-entry-limit": MAX_ENTRIES,
    "container-copies-per-pod": None,
    "spool-dir": DEFAULT_FOLDER,
    "log-format": LogFormat.TEXT,
    "log-level": LogLevel.INFO,
    "metrics-listen": None,
    "tracing-endpoint": "",
    "events": "",
    "no-manifest": False,
}
