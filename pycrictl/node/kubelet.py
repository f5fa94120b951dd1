"""The kubelet of this node, from its process and files: command line, paths, settings, node name.

All paths are relative to a root, so a node mounted at ``/host`` can be read as well.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from pycrictl.base import config, noderoot
from pycrictl.base.errors import ConfigError, PycrictlError, reason_of
from pycrictl.base.foreign import count, flag, strict
from pycrictl.base.processes import flags_in
from pycrictl.base.units import parse_size, quote_path

ROOT: Final = Path("/")

CONFIGS: Final = (
    "/var/lib/kubelet/config.yaml",
    "/etc/kubernetes/kubelet/kubelet-config.json",
    "/etc/kubernetes/kubelet/config.json",
)
_PROGRAMS: Final = ("kubelet", "kubelite")


class Kubelet(NamedTuple):
    """Flags of the running kubelet; ``pid`` is 0 if there is none (k3s embeds it)."""

    pid: int = 0
    kubeconfig: str = ""
    config: str = ""
    hostname: str = ""
    runtime_endpoint: str = ""
    image_endpoint: str = ""
    root_dir: str = ""
    provider_config: str = ""
    provider_bin_dir: str = ""


def find_kubelet(root: Path = ROOT) -> Kubelet:
    """Return the flags of the node's own kubelet; an empty record if there is none."""
    running = (
        _kubelet(pid, flags_in(words[1:]))
        for pid, words in _command_lines(root / "proc")
        if words
        and words[0].rpartition("/")[2] in _PROGRAMS
        and noderoot.is_nodes_own(pid, str(root))
    )
    return next(running, Kubelet())


def _kubelet(pid: int, flags: Mapping[str, str]) -> Kubelet:
    def path(option: str) -> str:
        given = flags.get(option, "")
        return given if given.startswith("/") else ""  # no distribution uses relative paths

    return Kubelet(
        pid,
        path("kubeconfig"),
        path("config"),
        flags.get("hostname-override", ""),
        flags.get("container-runtime-endpoint", ""),
        flags.get("image-service-endpoint", ""),
        path("root-dir"),
        path("image-credential-provider-config"),
        path("image-credential-provider-bin-dir"),
    )


def host_name(kubelet: Kubelet) -> str:
    """Return the node's name as a kubelet without a certificate chooses it."""
    return (kubelet.hostname or os.uname().nodename).strip().lower()


def configuration(kubelet: Kubelet, root: Path = ROOT) -> dict[str, Any]:
    for path in filter(None, (kubelet.config, *CONFIGS)):
        with suppress(OSError, ConfigError):
            return read_document(path, root)
    return {}


def read_document(path: str, root: Path = ROOT) -> dict[str, Any]:
    """Read a mapping from a YAML or JSON file of the node; raise ConfigError or OSError."""
    return parse_document(path, read_text(path, root))


def parse_document(path: str, content: str) -> dict[str, Any]:
    from pycrictl.base import yamldata  # noqa: PLC0415 - kubectl's plugins read no files of a node

    name = quote_path(path)
    try:
        document = yamldata.parse(content)
    except ConfigError as exc:
        raise ConfigError(f"{name}, {exc.message}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{name} is not a mapping")
    return document


def read_text(path: str, root: Path = ROOT) -> str:
    """Read a file of the node, resolving its absolute links as on the node."""
    return config.decoded(noderoot.read_named(str(below(root, path))))


def below(root: Path, path: str) -> Path:
    """Return the local path of a file on the node, with links resolved as on the node."""
    if root == ROOT:
        return Path(path)
    try:
        return Path(noderoot.below(str(root), path))
    except PycrictlError as error:
        raise OSError(errno.ELOOP, error.message) from None


def _command_lines(proc: Path) -> Iterator[tuple[int, list[str]]]:
    with suppress(OSError):
        for pid in sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()):
            with suppress(OSError):
                words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
                yield pid, [word.decode("utf-8", "replace") for word in words if word]


KUBELET_CONFIG: Final = "/var/lib/kubelet/config.yaml"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KubeletConfig:
    """Fields of the file at ``path``; None if not set, 0 for no limit."""

    path: str
    serialize: bool | None = None
    max_parallel: int | None = None
    copy_size_limit_bytes: int | None = None
    copies_per_pod: int | None = None
    debugs: bool = True

    @property
    def limit(self) -> int | None:
        """The configured limit of parallel pulls, 0 for no limit; None if none is configured."""
        if self.serialize:
            return 1
        if self.max_parallel is not None:
            return self.max_parallel
        return None if self.serialize is None else 0

    @property
    def own_limit(self) -> int:
        """How many pulls kubelet sends at once, with its defaults applied; 0 for no limit."""
        if self.serialize is None and (self.max_parallel or 0) < 2:
            return 1
        return self.limit or 0


def find_kubelet_config(kubelet: Kubelet, root: Path = ROOT) -> KubeletConfig:
    path = kubelet.config or KUBELET_CONFIG
    return read_kubelet_config(path, lambda: read_text(path, root))


def read_kubelet_config(path: str, read: Callable[[], str] | None = None) -> KubeletConfig:
    """Read kubelet's configuration file by ``read``; None reads ``path`` as a local file."""
    name = f"the kubelet's configuration {quote_path(path)}"
    try:
        content = read() if read is not None else config.read_text(noderoot.given(path))
    except OSError as exc:
        reason = reason_of(exc)
        raise ConfigError(f"cannot read {name}: {reason}") from None
    except ConfigError as exc:
        raise ConfigError(f"{name}: {exc.message}") from None
    values = parse_document(path, content)

    def field(key: str, read: Callable[[object], T], kind: str) -> T | None:
        try:
            return strict(values.get(key), read)
        except ValueError:
            raise ConfigError(f"{name}: {key}: it is not {kind}") from None

    serialize = field("serializeImagePulls", flag, "true or false")
    number = field(
        "maxParallelImagePulls", lambda value: count(value) or -1, "a number of 1 or more"
    )
    if serialize and number is not None and number > 1:
        raise ConfigError(
            f"{name}: maxParallelImagePulls: it is {number}, but serializeImagePulls is true"
        )
    size = values.get("containerCopySizeLimit")
    if isinstance(size, str):  # as the kubelet reads its other sizes
        try:
            values["containerCopySizeLimit"] = parse_size(size)
        except ValueError as exc:
            raise ConfigError(f"{name}: containerCopySizeLimit: {exc}") from None
    natural = "a number of 0 or more"
    return KubeletConfig(
        path,
        serialize,
        number,
        field("containerCopySizeLimit", count, natural),
        field("containerCopiesPerPod", count, natural),
        field("enableDebuggingHandlers", flag, "true or false") is not False,
    )


def copy_quotas(
    kubelet: KubeletConfig, size_limit_bytes: int | None, copies_per_pod: int | None
) -> tuple[int, int]:
    """Return the quotas of copies, 0 for no quota: the given ones, else kubelet's."""
    if size_limit_bytes is None:
        size_limit_bytes = kubelet.copy_size_limit_bytes
    if copies_per_pod is None:
        copies_per_pod = kubelet.copies_per_pod
    return size_limit_bytes or 0, copies_per_pod or 0
