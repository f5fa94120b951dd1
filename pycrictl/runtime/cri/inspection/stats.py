"""Resource usage of containers and pods, even if some of them cannot be measured.

Runtimes fail the whole list if one element fails, as containerd does for a pod without a cgroup
parent. The elements are then requested one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import (
    Cancelled,
    DeadlineExceeded,
    Denied,
    NotFound,
    PycrictlError,
    RuntimeFault,
    Unavailable,
    Unimplemented,
)
from pycrictl.base.units import SHORT_ID_CHARS
from pycrictl.runtime.cri.calls.client import CriClient, call_each
from pycrictl.runtime.cri.lists import fetch
from pycrictl.runtime.cri.lists.lookup import select_by_id

T = TypeVar("T")

_ABOUT_ALL: Final = (Unimplemented, DeadlineExceeded, Unavailable, Cancelled, Denied)
"""Failures that would recur in the requests for single elements."""


@dataclass(frozen=True, slots=True)
class Sample(Generic[T]):
    """The measured elements, sorted by ID, and the failures of the others."""

    stats: list[T]
    failures: tuple[PycrictlError, ...] = ()


def measure(
    client: CriClient, condition: cri_pb2.ContainerStatsFilter | cri_pb2.PodSandboxStatsFilter
) -> Sample[Any]:
    """Measure the containers or pods that meet a condition, or raise if none can be measured."""
    is_pod = isinstance(condition, cri_pb2.PodSandboxStatsFilter)
    name = "PodSandboxStats" if is_pod else "ContainerStats"
    condition = select_by_id(client, condition)
    failures: list[PycrictlError] = []
    try:
        stats = fetch.whole(client, f"Stream{name}", f"List{name}", filter=condition)
    except RuntimeFault as fault:
        if isinstance(fault, _ABOUT_ALL):
            raise
        answers = list(call_each(client, name, _requests(client, condition)))
        stats = [answer.stats for answer in answers if not isinstance(answer, PycrictlError)]
        if not stats:
            raise
        failures = [
            answer
            for answer in answers  # NotFound: gone, or not running
            if isinstance(answer, PycrictlError) and not isinstance(answer, NotFound)
        ]
    return Sample(sorted(stats, key=lambda item: item.attributes.id), tuple(failures))


def _requests(client: CriClient, condition: Message) -> Iterator[tuple[str, Message]]:
    # List filters have the same fields as stats filters.
    given: dict[str, Any] = {field.name: value for field, value in condition.ListFields()}
    if isinstance(condition, cri_pb2.PodSandboxStatsFilter):
        for pod in fetch.pods(client, cri_pb2.PodSandboxFilter(**given)):
            what = f"pod {pod.id[:SHORT_ID_CHARS]} ({pod.metadata.name})"
            yield what, cri_pb2.PodSandboxStatsRequest(pod_sandbox_id=pod.id)
        return
    for container in fetch.containers(client, cri_pb2.ContainerFilter(**given)):
        what = f"container {container.id[:SHORT_ID_CHARS]} ({container.metadata.name})"
        yield what, cri_pb2.ContainerStatsRequest(container_id=container.id)
