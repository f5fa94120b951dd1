"""containerd's settings for pulls: download limit, snapshotter, registries.

The file is TOML, of version 2 (containerd 1.x) or 3 (2.x), and may import others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import tomli

from pycrictl.base import noderoot, processes
from pycrictl.base.errors import PycrictlError
from pycrictl.base.foreign import mapping, text, texts

DEFAULT_PATH: Final = Path("/etc/containerd/config.toml")
CRI_PLUGINS: Final = ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images")
_DOWNLOADS: Final = 3
_LOCAL_PULLS: Final = (
    "use_local_image_pull",
    "discard_unpacked_layers",
    "image_pull_with_sync_fs",
)
_FILES_LIMIT: Final = 64


def config_path(pid: int | None) -> Path:
    """Return the configuration file of a containerd: its ``--config``, else the usual place.

    A command line is trusted only for the node's own processes. The result is a path on the node.
    """
    if pid and noderoot.is_nodes_own(pid):
        flags = processes.flags_in(processes.command_line(pid)[1:])
        path = flags.get("config") or flags.get("c") or ""
        if path.startswith("/"):
            return Path(path)
        with suppress(OSError):
            return (processes.file_of(pid, "cwd").readlink() / path) if path else DEFAULT_PATH
    return DEFAULT_PATH


@dataclass(frozen=True, slots=True)
class CriSettings:
    """The settings of the CRI plugin.

    Attributes:
        table: those that its files set, by name, as in the file.
        registry_origin: the file that sets ``registry``; empty if none does.
    """

    table: dict[str, Any] = field(default_factory=dict)
    registry_origin: str = ""

    @property
    def max_concurrent_downloads(self) -> int:
        """How many layers of an image are downloaded at once; 0 for no limit."""
        number = self.table.get("max_concurrent_downloads")
        return number if type(number) is int else _DOWNLOADS

    @property
    def snapshotter(self) -> str:
        before_3 = mapping(self.table.get("containerd"))
        name = self.table.get("snapshotter") or before_3.get("snapshotter")
        return text(name) or "overlayfs"

    @property
    def pulls_locally(self) -> bool:
        """Whether containerd 2.1 and later pulls without its transfer service.

        It does for settings that the service does not know (``CheckLocalImagePullConfigs``).
        """
        table, registry = self.table, mapping(self.table.get("registry"))
        return (
            any(table.get(key) is True for key in _LOCAL_PULLS)
            or table.get("disable_snapshot_annotations") is False
            or table.get("max_concurrent_downloads", _DOWNLOADS) != _DOWNLOADS
            or any(registry.get(key) for key in ("mirrors", "configs", "auths"))
        )


def read_settings(path: Path) -> CriSettings:
    """Read a configuration file and its imports; return empty settings if it is unreadable.

    An imported file overrides the importing one: key by key in a version 3 configuration, a
    plugin's whole section in older ones.
    """
    table: dict[str, Any] = {}
    origin, version = "", 0
    for file, document in _documents(path):
        version = version or document.get("version", 1)
        for plugin in CRI_PLUGINS:
            if section := mapping(document.get("plugins"), plugin):
                table = _merged(table if version == 3 else {}, section)
                if "registry" in section or "registry" not in table:
                    origin = str(file) if "registry" in table else ""
    return CriSettings(table, origin)


def _merged(table: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(table[key], other[key])
        for key in table.keys() & other.keys()
        if isinstance(table[key], dict) and isinstance(other[key], dict)
    }
    return {**table, **other, **both}


def _documents(path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    todo, seen = [path], set[Path]()
    while todo and len(seen) < _FILES_LIMIT:
        file = todo.pop(0)
        if file in seen:
            continue
        seen.add(file)
        document = read_document(noderoot.locate(str(file)))
        yield file, document
        for pattern in texts(document.get("imports")):
            if pattern:
                todo.extend(_matches(file.parent, pattern))


def read_document(path: str) -> dict[str, Any]:
    """Return the content of a TOML file; empty if it cannot be read."""
    with suppress(OSError, ValueError, RecursionError, PycrictlError):
        return tomli.loads(noderoot.read_named(path).decode())
    return {}


def _matches(folder: Path, pattern: str) -> list[Path]:
    absolute = folder / pattern
    # Links before the first wildcard are resolved as on the node.
    fixed = absolute.parent if "*" not in str(absolute.parent) else Path("/")
    here = Path(noderoot.locate(str(fixed)))
    with suppress(OSError, ValueError, NotImplementedError, PycrictlError):
        files = sorted(here.glob(str(absolute.relative_to(fixed))))
        return [fixed / file.relative_to(here) for file in files]
    return []
