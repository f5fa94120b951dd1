"""containerd's settings for pulls: download limit, progress timeout, mirrors.

The file is TOML, of version 2 (containerd 1.x) or 3 (2.x), and may import others. The servers of a
registry are listed in its ``certs.d`` directory (``hosts.toml``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import tomli

from pycrictl import noderoot
from pycrictl.errors import PycrictlError
from pycrictl.foreign import mapping, text, texts
from pycrictl.units import parse_duration

DEFAULT_PATH: Final = Path("/etc/containerd/config.toml")
CRI_PLUGINS: Final = ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images")
_KEYS: Final = (
    *("image_pull_progress_timeout", "max_concurrent_downloads", "snapshotter"),
    "containerd",  # holds the snapshotter before version 3
)
CERTS_D: Final = "/etc/containerd/certs.d"
_FILES_LIMIT: Final = 64


@dataclass(frozen=True, slots=True)
class PullSettings:
    """Pull settings; None means containerd's default.

    ``progress_timeout_s`` is 0 for no limit, ``origin`` the file that the settings come from.
    """

    progress_timeout_s: float | None = None
    max_concurrent_downloads: int | None = None
    snapshotter: str | None = None
    origin: str = ""


def config_path(pid: int | None) -> Path:
    """Return the configuration file of a containerd: its ``--config``, else the usual place.

    A command line is trusted only for the node's own processes. The result is a path on the node.
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
    """Read a configuration file and its imports; return empty settings if it is unreadable.

    An imported file overrides the importing one: key by key in a version 3 configuration, a
    plugin's whole section in older ones.
    """
    table: dict[str, Any] = {}
    origin, version = "", 0
    for file, document in _documents(path):
        version = version or document.get("version", 1)
        for plugin in CRI_PLUGINS:
            section = mapping(document.get("plugins"), plugin)
            known: dict[str, Any] = {key: section[key] for key in _KEYS if key in section}
            if known or (section and version != 3):
                table, origin = {**table, **known} if version == 3 else known, str(file)
    timeout, downloads = (table.get(key) for key in _KEYS[:2])
    timeout_s = None
    if isinstance(timeout, str):
        with suppress(ValueError):
            timeout_s = parse_duration(timeout)
    snapshotter = table.get("snapshotter") or mapping(table.get("containerd")).get("snapshotter")
    return PullSettings(
        progress_timeout_s=timeout_s,
        max_concurrent_downloads=downloads if type(downloads) is int else None,
        snapshotter=text(snapshotter) or None,
        origin=origin,
    )


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
    # Links before the first wildcard are resolved as on the node.
    fixed = absolute.parent if "*" not in str(absolute.parent) else Path("/")
    here = Path(noderoot.locate(str(fixed)))
    with suppress(OSError, ValueError, NotImplementedError, PycrictlError):
        found = sorted(here.glob(str(absolute.relative_to(fixed))))
        return [fixed / file.relative_to(here) for file in found]
    return []


# The servers of a registry


class Site(NamedTuple):
    """A server of a registry's images; ``ca`` is a path as this process sees it."""

    url: str
    is_mirror: bool = False
    ca: str = ""
    verifies: bool = True


def sites_of(host: str, config: Path) -> list[Site]:
    scheme = "http" if host.partition(":")[0] in ("localhost", "127.0.0.1") else "https"
    own = Site(f"{scheme}://{'registry-1.docker.io' if host == 'docker.io' else host}")
    folder, document = _hosts(host, _folders(config))
    if document is None:
        return [own]
    found = []
    for url, settings in mapping(document.get("host")).items():
        if isinstance(settings, dict):
            found.append(_site(url, settings, folder, is_mirror=True))
    if server := text(document.get("server")):
        own = _site(server, document, folder, is_mirror=False)
    return [*found, own]


def _site(url: str, settings: dict[str, Any], folder: Path, *, is_mirror: bool) -> Site:
    ca = settings.get("ca")
    name = text(ca[0] if isinstance(ca, list) and ca else ca)
    path = noderoot.locate(str(folder / name)) if name else ""
    verifies = settings.get("skip_verify") is not True
    whole = url if "://" in url else f"https://{url}"
    return Site(whole.rstrip("/").removesuffix("/v2"), is_mirror, path, verifies)


def _folders(config: Path) -> list[Path]:
    named = []
    for _, document in _documents(config):
        plugins = mapping(document.get("plugins"))
        for plugin in CRI_PLUGINS:
            registry = mapping(plugins, plugin, "registry")
            if path := text(registry.get("config_path")):
                named = [Path(part) for part in path.split(":") if part]
    return named or [Path(CERTS_D)]


def _hosts(host: str, folders: list[Path]) -> tuple[Path, dict[str, Any] | None]:
    for folder in folders:
        for name in (host, host.replace(":", "_") + "_", "_default"):
            file = folder / name / "hosts.toml"
            if (document := _read(file)) is not None:
                return file.parent, document
    return Path(), None
