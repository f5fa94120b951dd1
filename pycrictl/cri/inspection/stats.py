"""What containers and pods use, even where some of them cannot be measured.

Runtimes refuse the whole list when one element fails; containerd does so for a pod that has no
cgroup parent. Then the elements are asked for one by one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pycrictl import noderoot
from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.client import call_each
from pycrictl.cri.lists import fetch
from pycrictl.cri.lists.lookup import SHOWN_ID_CHARS, select_by_id
from pycrictl.errors import (
    Cancelled,
    DeadlineExceeded,
    Denied,
    NotFound,
    PycrictlError,
    RuntimeFault,
    Unavailable,
    Unimplemented,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from pycrictl.cri.calls.client import CriClient


T = TypeVar("T")

_ABOUT_ALL: Final = (Unimplemented, DeadlineExceeded, Unavailable, Cancelled, Denied)
"""Failures that asking for less would only meet again."""


@dataclass(frozen=True, slots=True)
class Sample(Generic[T]):
    """One measurement, sorted by ID, and why others could not be measured."""

    stats: list[T]
    failures: tuple[PycrictlError, ...] = ()


def sample_containers(
    client: CriClient, condition: cri_pb2.ContainerStatsFilter
) -> Sample[cri_pb2.ContainerStats]:
    """Measure the containers that meet a condition, or raise if none can be measured."""
    select_by_id(client, condition)
    wanted = cri_pb2.ContainerFilter(
        id=condition.id,
        pod_sandbox_id=condition.pod_sandbox_id,
        label_selector=condition.label_selector,
    )

    def requests() -> Iterator[tuple[str, Message]]:
        for each in fetch.containers(client, wanted):
            what = f"container {each.id[:SHOWN_ID_CHARS]} ({each.metadata.name})"
            yield what, cri_pb2.ContainerStatsRequest(container_id=each.id)

    return _sample(
        client, "ContainerStats", lambda: fetch.container_stats(client, condition), requests
    )


def sample_pods(
    client: CriClient, condition: cri_pb2.PodSandboxStatsFilter
) -> Sample[cri_pb2.PodSandboxStats]:
    select_by_id(client, condition)
    wanted = cri_pb2.PodSandboxFilter(id=condition.id, label_selector=condition.label_selector)

    def requests() -> Iterator[tuple[str, Message]]:
        for each in fetch.pods(client, wanted):
            what = f"pod {each.id[:SHOWN_ID_CHARS]} ({each.metadata.name})"
            yield what, cri_pb2.PodSandboxStatsRequest(pod_sandbox_id=each.id)

    return _sample(client, "PodSandboxStats", lambda: fetch.pod_stats(client, condition), requests)


def _sample(
    client: CriClient,
    name: str,
    whole: Callable[[], list[Any]],
    one_by_one: Callable[[], Iterable[tuple[str, Message]]],
) -> Sample[Any]:
    failures: list[PycrictlError] = []
    try:
        stats = whole()
    except RuntimeFault as fault:
        if isinstance(fault, _ABOUT_ALL):
            raise
        stats = []
        for answer in call_each(client, name, one_by_one()):
            if isinstance(answer, NotFound):
                continue  # it is gone, or not running
            if isinstance(answer, PycrictlError):
                failures.append(answer)
            else:
                stats.append(answer.stats)
        if not stats:
            raise
    return Sample(sorted(stats, key=lambda each: each.attributes.id), tuple(failures))


def space(mountpoint: str) -> tuple[int, int] | None:
    """Return size and free bytes of a file system of the node; None if that cannot be found out."""
    try:
        found = os.statvfs(noderoot.locate(mountpoint))
    except (OSError, ValueError, PycrictlError):
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
