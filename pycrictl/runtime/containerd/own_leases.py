"""Leases of this program: what they hold is kept by containerd until they are deleted.

The ID of a lease names the process that created it, so that the remains of a killed process can be
recognized. containerd itself removes them after a day.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from pycrictl.base.errors import NotFound
from pycrictl.runtime.containerd.daemon import start_ticks
from pycrictl.runtime.containerd.grpc_client import ContainerdClient

EXPIRY_LABEL: Final = "containerd.io/gc.expire"
LOAD_PREFIX: Final = "pycrictl-load-"
LOAD_LABEL: Final = "pycrictl.io/load"
"""On the lease of a load: its name for those who watch it."""

_EXPIRY: Final = timedelta(days=1)


def create(client: ContainerdClient, prefix: str, labels: dict[str, str] | None = None) -> str:
    """Create a lease of this process and return its ID, which begins with ``prefix``."""
    name = f"{prefix}{os.getpid()}-{start_ticks(os.getpid())}"
    expiry = (datetime.now(UTC) + _EXPIRY).strftime("%Y-%m-%dT%H:%M:%SZ")
    client.call("Leases.Create", id=name, labels={EXPIRY_LABEL: expiry, **(labels or {})})
    return name


def delete(client: ContainerdClient, name: str, *, sync: bool = False) -> None:
    """Delete a lease; with ``sync``, return once what it alone held has been collected."""
    with suppress(NotFound):
        client.call("Leases.Delete", id=name, sync=sync)


def is_abandoned(name: str, prefix: str) -> bool:
    """Return whether a lease was created under ``prefix`` by a process that has ended."""
    if not name.startswith(prefix):
        return False
    pid, _, ticks = name.removeprefix(prefix).partition("-")
    return pid.isdecimal() and str(start_ticks(int(pid))) != ticks
