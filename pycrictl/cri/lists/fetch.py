"""Whole lists from a runtime, in parts where it offers them so.

A runtime that streams its lists is asked for a stream, so that no answer exceeds the limit on the
size of a message. Any other answers ``Unimplemented`` at once and is asked for one message.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.methods import method
from pycrictl.errors import Unimplemented, UsageError
from pycrictl.units import quote

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient

    class Created(Protocol):
        created_at: int

    C = TypeVar("C", bound=Created)


def containers(
    client: CriClient, condition: cri_pb2.ContainerFilter | None = None
) -> list[cri_pb2.Container]:
    condition = condition or cri_pb2.ContainerFilter()
    return whole(client, "StreamContainers", "ListContainers", filter=condition)


def pods(
    client: CriClient, condition: cri_pb2.PodSandboxFilter | None = None
) -> list[cri_pb2.PodSandbox]:
    condition = condition or cri_pb2.PodSandboxFilter()
    return whole(client, "StreamPodSandboxes", "ListPodSandbox", filter=condition)


def images(client: CriClient) -> list[cri_pb2.Image]:
    """Use no filter of the API: one runtime ignores it, another one compares whole references."""
    condition = cri_pb2.ImageFilter(image=cri_pb2.ImageSpec())
    return whole(client, "StreamImages", "ListImages", filter=condition)


def image(client: CriClient, name: str, what: str) -> cri_pb2.Image | None:
    """Return the object with a name or an ID; None if there is none."""
    request = cri_pb2.ImageStatusRequest(image=cri_pb2.ImageSpec(image=name))
    answer = client.call("ImageStatus", request, what=what)
    return answer.image if answer.HasField("image") else None


def whole(client: CriClient, stream: str, unary: str, **fields: Any) -> list[Any]:
    """Return all of a list, by the call that streams it if the runtime has that."""
    # Asking in vain takes half a millisecond, less than it is worth to remember the answer.
    try:
        parts = client.stream(stream, method(stream).request_type(**fields), what=unary)
        return [item for part in parts for item in _items(part)]
    except Unimplemented:
        return list(_items(client.call(unary, method(unary).request_type(**fields))))


def _items(answer: Any) -> Iterable[Any]:
    """Return the elements of a list, which are the only field of its answers."""
    items: Iterable[Any] = getattr(answer, answer.DESCRIPTOR.fields[0].name)
    return items


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
