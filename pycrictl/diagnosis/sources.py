"""What collectors share: sources that fail are recorded, and file systems measured."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from pycrictl._proto import cri_pb2
from pycrictl.base import noderoot
from pycrictl.base.errors import PycrictlError
from pycrictl.diagnosis.findings import Disk, Missing, RuntimeCondition

OTHERS: Final = (("/var/lib/kubelet", "pods' volumes"), ("/var/log/pods", "logs"))
USUAL: Final = (
    ("/var/lib/containerd", "images"),
    ("/var/lib/containers", "images"),
    ("/var/lib/rancher", "images"),
    *OTHERS,
)
"""The usual directories, for when the runtime does not report its own."""


class Collector:
    def __init__(self) -> None:
        self._missing: list[Missing] = []

    @contextmanager
    def _optional(self, source: str, *, but: type[Exception] | tuple[()] = ()) -> Iterator[None]:
        """Record a source that fails, and continue; errors of the type ``but`` are raised."""
        try:
            yield
        except but:
            raise
        except (PycrictlError, OSError) as exc:
            reason = exc.message if isinstance(exc, PycrictlError) else (exc.strerror or str(exc))
            self._missing.append(Missing(source, reason))


def unmet(status: cri_pb2.RuntimeStatus) -> tuple[RuntimeCondition, ...]:
    return tuple(
        RuntimeCondition(condition.type, condition.message or condition.reason)
        for condition in status.conditions
        if not condition.status
    )


def places_of(answer: cri_pb2.ImageFsInfoResponse) -> list[tuple[str, str]]:
    return [
        *((usage.fs_id.mountpoint, "images") for usage in answer.image_filesystems),
        *((usage.fs_id.mountpoint, "containers") for usage in answer.container_filesystems),
        *OTHERS,
    ]


def disks_at(places: Iterable[tuple[str, str]]) -> tuple[Disk, ...]:
    """Return the file systems of directories of the node, each once, by paths and uses."""
    by_device: dict[int, Disk] = {}
    for path, use in places:
        here = noderoot.locate(path)
        try:
            device, sizes = os.stat(here).st_dev, os.statvfs(here)  # noqa: PTH116 (a node's path)
        except OSError:
            continue  # it does not exist
        size_bytes, free_bytes = sizes.f_blocks * sizes.f_frsize, sizes.f_bavail * sizes.f_frsize
        disk = Disk(path, use, size_bytes, free_bytes, sizes.f_files, sizes.f_favail)
        by_device.setdefault(device, disk)
    return tuple(by_device.values())
