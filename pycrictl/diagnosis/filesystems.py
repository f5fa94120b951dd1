"""The file systems that images and containers are on, measured."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from pycrictl import noderoot
from pycrictl._proto import cri_pb2
from pycrictl.diagnosis.disks import Disk

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient

_OTHERS: Final = (("/var/lib/kubelet", "pods' volumes"), ("/var/log/pods", "logs"))


def disks_of(images: CriClient) -> list[Disk]:
    """Return the file systems of images, containers, volumes and logs, each once.

    Args:
        images: of the image service (``ImageFsInfo``).

    Raises:
        PycrictlError: the runtime does not say where images are.
    """
    answer = images.call("ImageFsInfo", cri_pb2.ImageFsInfoRequest())
    places = [
        *((one.fs_id.mountpoint, "images") for one in answer.image_filesystems),
        *((one.fs_id.mountpoint, "containers") for one in answer.container_filesystems),
        *_OTHERS,
    ]
    found: dict[int, Disk] = {}
    for path, use in places:
        here = noderoot.locate(path)
        try:
            device, sizes = os.stat(here).st_dev, os.statvfs(here)  # noqa: PTH116 (a node's path)
        except OSError:
            continue
        found.setdefault(
            device,
            Disk(
                path,
                use,
                sizes.f_blocks * sizes.f_frsize,
                sizes.f_bavail * sizes.f_frsize,
                sizes.f_files,
                sizes.f_favail,
            ),
        )
    return list(found.values())
