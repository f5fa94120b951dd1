"""What containerd's configuration says about pulls: download limit and progress timeout.

The file is TOML, of version 2 (containerd 1.x) or 3 (2.x), and may import others. containerd 1.6
also answers ``Status`` (CRI, verbose) with its settings in force; 2.x leaves those of images out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import tomli

from pycrictl import noderoot
from pycrictl.errors import PycrictlError
from pycrictl.foreign import mapping, parsed, text, texts
from pycrictl.units import parse_duration

DEFAULT_PATH: Final = Path("/etc/containerd/config.toml")
CRI_PLUGINS: Final = ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images")
_FILES_LIMIT: Final = 64


@dataclass(frozen=True, slots=True)
class PullSettings:
    """What is configured; None where nothing is, so that containerd's default holds.

    ``progress_timeout_s`` is 0 for no limit, ``origin`` the file or the call that it comes from.
    """

    progress_timeout_s: float | None = None
    max_concurrent_downloads: int | None = None
    snapshotter: str | None = None
    origin: str = ""

    @property
    def is_empty(self) -> bool:
        return self == PullSettings(origin=self.origin)


def pull_settings(status_info: Mapping[str, str], *, pid: int | None = None) -> PullSettings:
    answered = from_status(status_info)
    written = from_file(config_path(pid))
    if answered.is_empty:
        return written
    # What the daemon answers is in force; the file may have been edited since it was read.
    return _overridden(written, answered)


def from_status(status_info: Mapping[str, str]) -> PullSettings:
    if config := parsed(status_info.get("config", "")):
        keys = ("imagePullProgressTimeout", "maxConcurrentDownloads")
        return _settings(config, keys, origin="CRI Status")
    return PullSettings()


def config_path(pid: int | None) -> Path:
    """Return the configuration file of a containerd: its ``--config``, else the usual place.

    What names it is believed of the node's own processes only. It is a path of the node.
    """
    arguments: list[str] = []
    if pid and noderoot.is_nodes_own(pid):
        with suppress(OSError):
            text = (
                Path(noderoot.locate(f"/proc/{pid}/cmdline"))
                .read_bytes()
                .decode("utf-8", "surrogateescape")
            )
            arguments = text.rstrip("\0").split("\0")[1:]
    for position, argument in enumerate(arguments):
        name, has_value, value = argument.partition("=")
        if name not in ("-c", "--config", "-config", "--c"):
            continue
        if not has_value:
            value = arguments[position + 1] if position + 1 < len(arguments) else ""
        if value.startswith("/"):
            return Path(value)
        with suppress(OSError):
            return Path(noderoot.locate(f"/proc/{pid}/cwd")).readlink() / value
    return DEFAULT_PATH


def from_file(path: Path) -> PullSettings:
    """Read a configuration file and what it imports; empty if that cannot be read.

    An imported file overrides what imports it: key by key in a version 3 configuration, a plugin's
    whole section in older ones.
    """
    found, version = PullSettings(), 0
    for file, document in _documents(path):
        version = version or document.get("version", 1)
        plugins = mapping(document.get("plugins"))
        for plugin in CRI_PLUGINS:
            section = plugins.get(plugin)
            if isinstance(section, dict):
                keys = ("image_pull_progress_timeout", "max_concurrent_downloads")
                new = _settings(section, keys, origin=str(file))
                found = _overridden(found, new) if version == 3 else new
    return found


def configurations(path: Path) -> Iterator[dict[str, Any]]:
    for _, document in _documents(path):
        yield document


def _documents(path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    todo, seen = [path], set[Path]()
    while todo and len(seen) < _FILES_LIMIT:
        file = todo.pop(0)
        if file in seen:
            continue
        seen.add(file)
        document = _read(file)
        if document is None:
            continue
        yield file, document
        for pattern in texts(document.get("imports")):
            if pattern:
                todo.extend(_matches(file.parent, pattern))


def _read(file: Path) -> dict[str, Any] | None:
    try:
        return tomli.loads(noderoot.read_named(noderoot.locate(str(file))).decode())
    except (OSError, ValueError, RecursionError, PycrictlError):
        return None


def _matches(folder: Path, pattern: str) -> list[Path]:
    absolute = folder / pattern
    # Links before the first wildcard lead where they do on the node.
    fixed = absolute.parent if "*" not in str(absolute.parent) else Path("/")
    here = Path(noderoot.locate(str(fixed)))
    with suppress(OSError, ValueError, NotImplementedError, PycrictlError):
        found = sorted(here.glob(str(absolute.relative_to(fixed))))
        return [fixed / file.relative_to(here) for file in found]
    return []


def _settings(table: Mapping[str, Any], keys: tuple[str, str], *, origin: str) -> PullSettings:
    timeout, downloads = (table.get(key) for key in keys)
    of_version_3, older = table.get("snapshotter"), mapping(table.get("containerd"))
    snapshotter = text(of_version_3 or older.get("snapshotter"))
    timeout_s = None
    if isinstance(timeout, str):
        with suppress(ValueError):
            timeout_s = parse_duration(timeout)
    return PullSettings(
        progress_timeout_s=timeout_s,
        max_concurrent_downloads=downloads if type(downloads) is int else None,
        snapshotter=snapshotter or None,
        origin=origin,
    )


def _overridden(old: PullSettings, new: PullSettings) -> PullSettings:
    set_keys = {field.name for field in fields(new) if getattr(new, field.name) is not None}
    return old if new.is_empty else replace(old, **{key: getattr(new, key) for key in set_keys})
