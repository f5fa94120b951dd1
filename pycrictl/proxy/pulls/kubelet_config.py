"""What kubelet's own configuration says about image pulls (``KubeletConfiguration``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pycrictl import noderoot
from pycrictl.config import read_text
from pycrictl.errors import ConfigError
from pycrictl.kube.kubelet import ROOT, below, find_kubelet
from pycrictl.units import quote

KUBELET_CONFIG: Final = "/var/lib/kubelet/config.yaml"


@dataclass(frozen=True, slots=True)
class KubeletPulls:
    """What is configured; None where nothing is.

    Attributes:
        path: the file.
        serialize: ``serializeImagePulls``.
        max_parallel: ``maxParallelImagePulls``.
    """

    path: str
    serialize: bool | None = None
    max_parallel: int | None = None

    @property
    def limit(self) -> int | None:
        """The limit that is configured, 0 for none; None if nothing is."""
        if self.serialize:
            return 1
        if self.max_parallel is not None:
            return self.max_parallel
        return None if self.serialize is None else 0

    @property
    def own_limit(self) -> int:
        """How many pulls kubelet sends at once, by its own defaults; 0 for any number."""
        if self.serialize is None and (self.max_parallel or 0) < 2:
            return 1
        return self.limit or 0


def find_kubelet_config(pids: Iterable[int], *, root: Path = ROOT) -> str:
    """Return where the kubelet's configuration is: its ``--config``, else the usual place.

    Args:
        pids: the processes that are connected to the proxy, the kubelet perhaps among them.
        root: where its process is looked for.
    """
    kubelet = find_kubelet(root, pids)
    if not kubelet.config:
        return KUBELET_CONFIG
    own = below(root, kubelet.config)
    # A kubelet in a container has files of its own.
    inside = root / f"proc/{kubelet.pid}/root{kubelet.config}"
    return str(inside if not own.exists() and inside.exists() else own)


def read_kubelet_config(path: str) -> KubeletPulls:
    """Read kubelet's configuration file.

    Raises:
        ConfigError: it cannot be read, or a value in it is not what kubelet takes.
    """
    from pycrictl import yamltree  # takes a tenth of the proxy's start

    name = quote(path, 4096)
    try:
        root = yamltree.parse(read_text(noderoot.given(path)))
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
    serialize = values.get("serializeImagePulls")
    if serialize is not None and not isinstance(serialize, bool):
        raise ConfigError(f"{name}: serializeImagePulls: it is not true or false")
    number = values.get("maxParallelImagePulls")
    if number is not None and (type(number) is not int or number < 1):
        raise ConfigError(f"{name}: maxParallelImagePulls: it is not a number of 1 or more")
    if serialize and number is not None and number > 1:
        raise ConfigError(
            f"{name}: maxParallelImagePulls: it is {number}, but serializeImagePulls is true"
        )
    return KubeletPulls(path, serialize, number)
