"""Where containerd looks for the images of a registry: its ``certs.d`` (``hosts.toml``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import tomli

from pycrictl import noderoot
from pycrictl.containerd.config_toml import CRI_PLUGINS, configurations
from pycrictl.errors import PycrictlError
from pycrictl.foreign import mapping, text

DEFAULT_FOLDER: Final = "/etc/containerd/certs.d"


class Site(NamedTuple):
    """A server of a registry's images; ``ca`` is a file for this process."""

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
    for document in configurations(config):
        plugins = mapping(document.get("plugins"))
        for plugin in CRI_PLUGINS:
            registry = mapping(plugins, plugin, "registry")
            if path := text(registry.get("config_path")):
                named = [Path(part) for part in path.split(":") if part]
    return named or [Path(DEFAULT_FOLDER)]


def _hosts(host: str, folders: list[Path]) -> tuple[Path, dict[str, Any] | None]:
    for folder in folders:
        for name in (host, host.replace(":", "_") + "_", "_default"):
            file = folder / name / "hosts.toml"
            try:
                text = noderoot.read_named(noderoot.locate(str(file))).decode()
                return file.parent, tomli.loads(text)
            except (OSError, ValueError, RecursionError, PycrictlError):
                continue
    return Path(), None
