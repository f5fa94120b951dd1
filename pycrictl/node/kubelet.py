"""The kubelet of this node, from its process and files: command line, paths, node name.

All paths are relative to a root, so a node mounted at ``/host`` can be read as well.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from pycrictl.base import config, noderoot
from pycrictl.base.errors import ConfigError, PycrictlError
from pycrictl.base.processes import flags_in
from pycrictl.base.units import quote

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
    manifests: str = ""
    runtime_endpoint: str = ""
    image_endpoint: str = ""
    root_dir: str = ""
    provider_config: str = ""
    provider_bin_dir: str = ""


def find_kubelet(root: Path = ROOT) -> Kubelet:
    """Return the flags of the node's own kubelet; an empty record if there is none."""
    found = (
        _kubelet(pid, flags_in(words[1:]))
        for pid, words in _command_lines(root / "proc")
        if words
        and words[0].rpartition("/")[2] in _PROGRAMS
        and noderoot.is_nodes_own(pid, str(root))
    )
    return next(found, Kubelet())


def _kubelet(pid: int, flags: Mapping[str, str]) -> Kubelet:
    def path(flag: str) -> str:
        given = flags.get(flag, "")
        return given if given.startswith("/") else ""  # no distribution uses relative paths

    return Kubelet(
        pid,
        path("kubeconfig"),
        path("config"),
        flags.get("hostname-override", ""),
        path("pod-manifest-path"),
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
    from pycrictl.base import yamltree  # noqa: PLC0415 - kubectl's plugins read no files of a node

    name = quote(path, 4096)
    try:
        document = yamltree.parse(content).data
    except yamltree.Problem as exc:
        raise ConfigError(f"{name}, line {exc.line}: {exc}") from None
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
