"""Code shared by collectors: it records sources that fail, and measures file systems."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pycrictl._proto import cri_pb2
from pycrictl.base import noderoot
from pycrictl.base.errors import PycrictlError
from pycrictl.base.units import format_duration
from pycrictl.diagnosis.findings import Condition, Disk, Missing

if TYPE_CHECKING:
    from pycrictl.runtime.cri.calls.client import CriClient

OTHERS: Final = (("/var/lib/kubelet", "pods' volumes"), ("/var/log/pods", "logs"))
USUAL: Final = (
    ("/var/lib/containerd", "images"),
    ("/var/lib/containers", "images"),
    ("/var/lib/rancher", "images"),
    *OTHERS,
)
"""The usual directories, for when the runtime does not report its own."""


class Asking:
    def __init__(self) -> None:
        self._missing: list[Missing] = []
        self._jobs: list[tuple[str, threading.Thread]] = []

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

    def _begin(self, source: str, ask: Callable[[], object]) -> None:
        """Query a source in a daemon thread of its own."""

        def run() -> None:
            with self._optional(source):
                ask()

        thread = threading.Thread(target=run, daemon=True)
        self._jobs.append((source, thread))
        thread.start()

    def _end(self, within_s: float) -> None:
        """Wait for all queries, including those they begin; record any that take longer."""
        until = time.monotonic() + within_s
        for source, thread in self._jobs:  # may grow meanwhile
            thread.join(max(until - time.monotonic(), 0.0))
            if thread.is_alive():
                reason = f"no answer within {format_duration(within_s)}"
                self._missing.append(Missing(source, reason))


def unmet(status: cri_pb2.RuntimeStatus) -> tuple[Condition, ...]:
    return tuple(
        Condition(condition.type, condition.message or condition.reason)
        for condition in status.conditions
        if not condition.status
    )


def disks_of(images: CriClient) -> list[Disk]:
    answer = images.call("ImageFsInfo", cri_pb2.ImageFsInfoRequest())
    places = [*places_of(answer), *OTHERS]
    return once_each(filter(None, (disk_at(*place) for place in places)))


def places_of(answer: cri_pb2.ImageFsInfoResponse) -> list[tuple[str, str]]:
    return [
        *((usage.fs_id.mountpoint, "images") for usage in answer.image_filesystems),
        *((usage.fs_id.mountpoint, "containers") for usage in answer.container_filesystems),
    ]


def disk_at(path: str, use: str) -> tuple[int, Disk] | None:
    """Return the device and file system of a directory on the node; None if it does not exist."""
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


def once_each(pairs: Iterable[tuple[int, Disk]]) -> list[Disk]:
    first: dict[int, Disk] = {}
    for device, disk in pairs:
        first.setdefault(device, disk)
    return list(first.values())
