"""Finds how the runtime of this node reaches registries, from its process and its files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Final

from pycrictl.base import noderoot
from pycrictl.base.processes import command_line, environ_of, flags_in
from pycrictl.base.units import escape
from pycrictl.pulls.registries.containerd_hosts import ContainerdAccess
from pycrictl.pulls.registries.endpoint import RegistryAccess
from pycrictl.pulls.registries.registries_conf import CrioAccess
from pycrictl.runtime.containerd.config_toml import config_path, read_settings
from pycrictl.runtime.containerd.daemon import runtime_pid

_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where Go's ``crypto/x509`` finds the system's authorities on Linux; it takes the first."""


def access_of(endpoint: str, name: str, version: str) -> RegistryAccess:
    """Return the access of the runtime behind a socket.

    Args:
        endpoint: the URL of the socket.
        name, version: its ``runtime_name`` and ``runtime_version`` (CRI ``Version``); empty if it
            does not answer.
    """
    program = {"containerd": "containerd", "cri-o": "crio"}.get(name.lower(), "")
    if not program:
        what = f"how {escape(name)} reaches registries" if name else "the runtime does not answer"
        return RegistryAccess(doubt=what)
    pid = runtime_pid(endpoint, program)
    environ, doubt = environ_of(pid), ""
    if not pid:
        doubt = f"the process of {program} is not visible from here"
    elif not environ:
        doubt = f"only root sees the environment of {program}, which may name a proxy"
    if program == "crio":
        return crio_access(pid, noderoot.directory().rstrip("/"), doubt=doubt)
    bundle = bundle_of(environ, noderoot.locate)
    settings = read_settings(config_path(pid or None))
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    release = (int(numbers[1]), int(numbers[2])) if numbers else (1, 0)
    return ContainerdAccess(settings, release, environ, bundle=bundle, doubt=doubt)


def crio_access(pid: int, root: str, *, doubt: str = "") -> CrioAccess:
    """Return the access of a CRI-O process whose files are below ``root``."""
    environ = environ_of(pid)
    bundle = bundle_of(environ, lambda path: f"{root}{path}")
    return CrioAccess(flags_in(command_line(pid)), environ, root, bundle=bundle, doubt=doubt)


def bundle_of(environ: Mapping[str, str], local: Callable[[str], str]) -> str:
    """Return the file of authorities that a Go program trusts; empty if there is none."""
    named = environ.get("SSL_CERT_FILE")
    files = map(local, [named] if named else _BUNDLES)
    return next((file for file in files if os.path.isfile(file)), "")
