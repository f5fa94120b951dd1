"""containerd's settings for pulls: download limit, progress timeout, registries.

The file is TOML, of version 2 (containerd 1.x) or 3 (2.x), and may import others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tomli

from pycrictl.base import noderoot, processes
from pycrictl.base.errors import PycrictlError
from pycrictl.base.foreign import mapping, text, texts

DEFAULT_PATH: Final = Path("/etc/containerd/config.toml")
CRI_PLUGINS: Final = ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images")
_KEYS: Final = (
    "max_concurrent_downloads",
    "snapshotter",
    "containerd",  # holds the snapshotter before version 3
)
_LOCAL_PULLS: Final = (
    "use_local_image_pull",
    "discard_unpacked_layers",
    "image_pull_with_sync_fs",
)
_FILES_LIMIT: Final = 64


@dataclass(frozen=True, slots=True)
class PullSettings:
    """Pull settings; None means containerd's default, ``origin`` is the file they come from."""

    max_concurrent_downloads: int | None = None
    snapshotter: str = "overlayfs"
    origin: str = ""


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
    """The settings of the CRI plugin that its files set.

    Attributes:
        table: by name, as in the file.
        origins: the file that sets each of them, the last file last.
    """

    table: dict[str, Any]
    origins: dict[str, str]

    @property
    def pulls_locally(self) -> bool:
        """Whether containerd 2.1 and later pulls without its transfer service.

        It does for settings that the service does not know (``CheckLocalImagePullConfigs``).
        """
        table, registry = self.table, mapping(self.table.get("registry"))
        return (
            any(table.get(key) is True for key in _LOCAL_PULLS)
            or table.get("disable_snapshot_annotations") is False
            or table.get("max_concurrent_downloads", 3) != 3
            or any(registry.get(key) for key in ("mirrors", "configs", "auths"))
        )


def read_settings(path: Path) -> CriSettings:
    """Read a configuration file and its imports; return empty settings if it is unreadable.

    An imported file overrides the importing one: key by key in a version 3 configuration, a
    plugin's whole section in older ones.
    """
    table: dict[str, Any] = {}
    origins: dict[str, str] = {}
    version = 0
    for file, document in _documents(path):
        version = version or document.get("version", 1)
        for plugin in CRI_PLUGINS:
            if section := mapping(document.get("plugins"), plugin):
                if version != 3:
                    table, origins = {}, {}
                table = _merged(table, section)
                kept = {key: origin for key, origin in origins.items() if key not in section}
                origins = {**kept, **dict.fromkeys(section, str(file))}
    return CriSettings(table, origins)


def _merged(table: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(table[key], other[key])
        for key in table.keys() & other.keys()
        if isinstance(table[key], dict) and isinstance(other[key], dict)
    }
    return {**table, **other, **both}


def from_file(path: Path) -> PullSettings:
    settings = read_settings(path)
    table = settings.table
    downloads = table.get("max_concurrent_downloads")
    snapshotter = table.get("snapshotter") or mapping(table.get("containerd")).get("snapshotter")
    origins = [file for key, file in settings.origins.items() if key in _KEYS]
    return PullSettings(
        max_concurrent_downloads=downloads if type(downloads) is int else None,
        snapshotter=text(snapshotter) or "overlayfs",
        origin=origins[-1] if origins else "",
    )


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
        found = sorted(here.glob(str(absolute.relative_to(fixed))))
        return [fixed / file.relative_to(here) for file in found]
    return []
