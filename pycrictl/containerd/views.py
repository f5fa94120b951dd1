"""Views: an image's unpacked layers, kept by containerd for as long as a program reads them.

A lease keeps each view and its layers when the image is removed. Remains of a killed process are
removed by ``sweep``, or by containerd after a day.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from google.protobuf.empty_pb2 import Empty

from pycrictl._proto.containerd import snapshots_pb2
from pycrictl.containerd import own_leases
from pycrictl.containerd.grpc_client import ContainerdClient
from pycrictl.errors import NotFound, Unimplemented
from pycrictl.units import quote

_PREFIX: Final = "pycrictl-view-"
_SNAPSHOTS: Final = "snapshots/"


@contextmanager
def view(client: ContainerdClient, snapshotter: str, chain_id: str) -> Iterator[list[Path]]:
    """Yield an image's layer directories, uppermost first, or raise ``Unimplemented``."""
    name = own_leases.create(client, _PREFIX)
    try:
        request = snapshots_pb2.ViewSnapshotRequest(
            snapshotter=snapshotter, key=name, parent=chain_id
        )
        method, answer_type = "snapshots.v1.Snapshots/View", snapshots_pb2.ViewSnapshotResponse
        yield _directories(client.call(method, request, answer_type, lease=name))
    finally:
        _remove(client, name)


def sweep(client: ContainerdClient) -> int:
    """Remove the views of dead processes; return how many there were."""
    names = [lease.id for lease in client.leases() if own_leases.is_abandoned(lease.id, _PREFIX)]
    for name in names:
        _remove(client, name)
    return len(names)


def _remove(client: ContainerdClient, name: str) -> None:
    for resource in client.resources(name) or ():
        request = snapshots_pb2.RemoveSnapshotRequest(
            snapshotter=resource.type.removeprefix(_SNAPSHOTS), key=resource.id
        )
        with suppress(NotFound):
            client.call("snapshots.v1.Snapshots/Remove", request, Empty)
    own_leases.delete(client, name)


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
