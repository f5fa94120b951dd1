"""Settings for image pulls and copies in kubelet's own configuration (``KubeletConfiguration``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from pycrictl.base import noderoot, yamltree
from pycrictl.base.config import read_text
from pycrictl.base.errors import ConfigError
from pycrictl.base.foreign import count, flag, strict
from pycrictl.base.units import parse_size, quote
from pycrictl.node.kubelet import ROOT, Kubelet
from pycrictl.node.kubelet import read_text as read_named

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
    return read_kubelet_config(path, lambda: read_named(path, root))


def read_kubelet_config(path: str, read: Callable[[], str] | None = None) -> KubeletConfig:
    """Read kubelet's configuration file; ``read`` is None to read ``path`` as a local file."""
    name = quote(path, 4096)
    try:
        root = yamltree.parse(read() if read is not None else read_text(noderoot.given(path)))
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise ConfigError(f"cannot read kubelet's configuration {name}: {reason}") from None
    except ConfigError as exc:
        raise ConfigError(f"kubelet's configuration {name}: {exc.message}") from None
    except yamltree.Problem as exc:
        raise ConfigError(f"kubelet's configuration {name}, line {exc.line}: {exc}") from None
    if root.type != "mapping":
        raise ConfigError(f"kubelet's configuration {name} is not a mapping")
    values = {member.key: member.node.value for member in root.members}

    def field(key: str, read: Callable[[object], T], kind: str) -> T | None:
        try:
            return strict(values.get(key), read)
        except ValueError:
            raise ConfigError(f"{name}: {key}: it is not {kind}") from None

    serialize = field("serializeImagePulls", flag, "true or false")
    number = field("maxParallelImagePulls", lambda one: count(one) or -1, "a number of 1 or more")
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
