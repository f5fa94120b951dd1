"""Leases of this program: what they hold is kept by containerd until they are deleted.

The ID of a lease names the process that created it, so that the remains of a killed process can be
recognized. containerd itself removes them after a day.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from pycrictl._proto.containerd import snapshots_pb2
from pycrictl.base.errors import NotFound, Unimplemented
from pycrictl.base.units import quote
from pycrictl.runtime.containerd.daemon import start_ticks
from pycrictl.runtime.containerd.grpc_client import ContainerdClient

EXPIRY_LABEL: Final = "containerd.io/gc.expire"
LOAD_PREFIX: Final = "pycrictl-load-"
LOAD_LABEL: Final = "pycrictl.io/load"
"""On the lease of a load: its name for those who watch it."""

_EXPIRY: Final = timedelta(days=1)
_VIEW_PREFIX: Final = "pycrictl-view-"
_SNAPSHOTS: Final = "snapshots/"


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


# Views: an image's unpacked layers, kept for as long as a program reads them, even if the image is
# removed meanwhile


@contextmanager
def view(client: ContainerdClient, snapshotter: str, chain_id: str) -> Iterator[list[Path]]:
    """Yield an image's layer directories, uppermost first, or raise ``Unimplemented``."""
    name = create(client, _VIEW_PREFIX)
    try:
        answer = client.call(
            "Snapshots.View", lease=name, snapshotter=snapshotter, key=name, parent=chain_id
        )
        yield _directories(answer)
    finally:
        _remove(client, name)


def sweep(client: ContainerdClient) -> int:
    """Remove the views of dead processes; return how many there were."""
    names = [lease.id for lease in client.leases() if is_abandoned(lease.id, _VIEW_PREFIX)]
    for name in names:
        _remove(client, name)
    return len(names)


def _remove(client: ContainerdClient, name: str) -> None:
    for resource in client.resources([name]).get(name, ()):
        snapshotter = resource.type.removeprefix(_SNAPSHOTS)
        with suppress(NotFound):
            client.call("Snapshots.Remove", snapshotter=snapshotter, key=resource.id)
    delete(client, name)


def _directories(answer: snapshots_pb2.ViewSnapshotResponse) -> list[Path]:
    if len(answer.mounts) == 1:
        (mount,) = answer.mounts
        if mount.type == "bind":
            return [Path(mount.source)]
        for option in mount.options if mount.type == "overlay" else ():
            if option.startswith("lowerdir="):
                return [Path(name) for name in option.removeprefix("lowerdir=").split(":")]
    kinds = ", ".join(mount.type for mount in answer.mounts)
    raise Unimplemented(f"images are unpacked to {quote(kinds)}, which has no directories")
