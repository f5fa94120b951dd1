"""Whole lists from a runtime, in parts where it offers them so.

A runtime that streams its lists is asked for a stream, so that no answer exceeds the limit on the
size of a message. Any other answers ``Unimplemented`` at once and is asked for one message.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.methods import method
from pycrictl.errors import Unimplemented, UsageError
from pycrictl.units import quote

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient

    class Created(Protocol):
        created_at: int

    C = TypeVar("C", bound=Created)


class _List(NamedTuple):
    stream: str
    stream_field: str
    unary: str
    unary_field: str


_CONTAINERS: Final = _List("StreamContainers", "containers", "ListContainers", "containers")
_PODS: Final = _List("StreamPodSandboxes", "pod_sandboxes", "ListPodSandbox", "items")
_IMAGES: Final = _List("StreamImages", "images", "ListImages", "images")
_CONTAINER_STATS: Final = _List(
    "StreamContainerStats", "container_stats", "ListContainerStats", "stats"
)
_POD_STATS: Final = _List(
    "StreamPodSandboxStats", "pod_sandbox_stats", "ListPodSandboxStats", "stats"
)
_POD_METRICS: Final = _List(
    "StreamPodSandboxMetrics", "pod_sandbox_metrics", "ListPodSandboxMetrics", "pod_metrics"
)


def containers(
    client: CriClient, condition: cri_pb2.ContainerFilter | None = None
) -> list[cri_pb2.Container]:
    return _fetch(client, _CONTAINERS, filter=condition or cri_pb2.ContainerFilter())


def pods(
    client: CriClient, condition: cri_pb2.PodSandboxFilter | None = None
) -> list[cri_pb2.PodSandbox]:
    return _fetch(client, _PODS, filter=condition or cri_pb2.PodSandboxFilter())


def images(client: CriClient) -> list[cri_pb2.Image]:
    """Use no filter of the API: one runtime ignores it, another one compares whole references."""
    condition = cri_pb2.ImageFilter(image=cri_pb2.ImageSpec())
    return _fetch(client, _IMAGES, filter=condition)


def container_stats(
    client: CriClient, condition: cri_pb2.ContainerStatsFilter
) -> list[cri_pb2.ContainerStats]:
    return _fetch(client, _CONTAINER_STATS, filter=condition)


def pod_stats(
    client: CriClient, condition: cri_pb2.PodSandboxStatsFilter
) -> list[cri_pb2.PodSandboxStats]:
    return _fetch(client, _POD_STATS, filter=condition)


def pod_metrics(client: CriClient) -> list[cri_pb2.PodSandboxMetrics]:
    return _fetch(client, _POD_METRICS)


def _fetch(client: CriClient, listing: _List, **fields: Any) -> list[Any]:
    # Asking in vain takes half a millisecond, less than it is worth to remember the answer.
    try:
        stream = client.stream(
            listing.stream,
            method(listing.stream).request_type(**fields),
            what=listing.unary,
        )
        return [item for part in stream for item in getattr(part, listing.stream_field)]
    except Unimplemented:
        answer = client.call(listing.unary, method(listing.unary).request_type(**fields))
        return list(getattr(answer, listing.unary_field))


def newest_count(*, latest: bool, last: int) -> int | None:
    """``last`` beats ``latest``; None is all."""
    if last > 0:
        return last
    return 1 if latest else None


def newest_first(found: Iterable[C], count: int | None = None) -> list[C]:
    return sorted(found, key=lambda each: each.created_at, reverse=True)[:count]


def pattern(text: str, *, option: str) -> re.Pattern[str]:
    """Compile what an option gives to search names with.

    The dialect is Python's, with classes of ASCII as for crictl. What the dialects read
    differently, such as ``[[:alpha:]]``, is refused.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        try:
            return re.compile(text, re.ASCII)
        except FutureWarning:
            reason = "write [a-z] in place of classes such as [[:lower:]]"
        except (re.error, OverflowError, RecursionError) as exc:
            reason = str(exc)
    raise UsageError(f"{quote(text)} for {option} is not a valid regular expression: {reason}")
