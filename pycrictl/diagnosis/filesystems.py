"""The file systems that images and containers are on, measured."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pycrictl import noderoot
from pycrictl._proto import cri_pb2
from pycrictl.diagnosis.disks import Disk

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient

OTHERS: Final = (("/var/lib/kubelet", "pods' volumes"), ("/var/log/pods", "logs"))
USUAL: Final = (
    ("/var/lib/containerd", "images"),
    ("/var/lib/containers", "images"),
    ("/var/lib/rancher", "images"),
    *OTHERS,
)
"""Where they are usually, if the runtime does not say."""


def disks_of(images: CriClient) -> list[Disk]:
    """Return the file systems of images, containers, volumes and logs, each once.

    Args:
        images: of the image service (``ImageFsInfo``).

    Raises:
        PycrictlError: the runtime does not say where images are.
    """
    answer = images.call("ImageFsInfo", cri_pb2.ImageFsInfoRequest())
    places = [*places_of(answer), *OTHERS]
    return once_each(filter(None, (disk_at(*place) for place in places)))


def places_of(answer: cri_pb2.ImageFsInfoResponse) -> list[tuple[str, str]]:
    """Return directories of the file systems that a runtime names, and what they are for."""
    return [
        *((one.fs_id.mountpoint, "images") for one in answer.image_filesystems),
        *((one.fs_id.mountpoint, "containers") for one in answer.container_filesystems),
    ]


def disk_at(path: str, use: str) -> tuple[int, Disk] | None:
    """Return the device and the file system of a directory of the node; None if there is none."""
    here = noderoot.locate(path)
    try:
        device, sizes = os.stat(here).st_dev, os.statvfs(here)  # noqa: PTH116 (a node's path)
    except OSError:
        return None
    return device, Disk(
        path,
        use,
        sizes.f_blocks * sizes.f_frsize,
        sizes.f_bavail * sizes.f_frsize,
        sizes.f_files,
        sizes.f_favail,
    )


def once_each(found: Iterable[tuple[int, Disk]]) -> list[Disk]:
    """Return file systems, of each device the first."""
    first: dict[int, Disk] = {}
    for device, disk in found:
        first.setdefault(device, disk)
    return list(first.values())
