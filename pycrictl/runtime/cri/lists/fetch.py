"""Whole lists from a runtime, streamed in parts where supported.

A stream keeps each part below the limit on the size of a message. A runtime without streams answers
``Unimplemented`` at once; the list is then requested as one message.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import Unimplemented, UsageError
from pycrictl.base.units import quote
from pycrictl.runtime.cri.calls.client import CriClient, method

if TYPE_CHECKING:

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
    """Return all images: one runtime ignores a filter, another one compares whole references."""
    condition = cri_pb2.ImageFilter(image=cri_pb2.ImageSpec())
    return whole(client, "StreamImages", "ListImages", filter=condition)


def image(client: CriClient, name: str, what: str) -> cri_pb2.Image | None:
    """Return the image with this name or ID, None if there is none."""
    request = cri_pb2.ImageStatusRequest(image=cri_pb2.ImageSpec(image=name))
    answer = client.call("ImageStatus", request, what=what)
    return answer.image if answer.HasField("image") else None


def image_folder(client: CriClient) -> Path | None:
    """Return the folder in which the runtime keeps images (CRI ``ImageFsInfo``), None if none."""
    filesystems = client.call("ImageFsInfo", cri_pb2.ImageFsInfoRequest()).image_filesystems
    return Path(filesystems[0].fs_id.mountpoint) if filesystems else None


def whole(client: CriClient, stream: str, unary: str, **fields: Any) -> list[Any]:
    """Return a whole list, as a stream if the runtime supports that."""
    # An unsupported call takes half a millisecond: not worth caching that it is unsupported.
    try:
        parts = client.stream(stream, method(stream).request_type(**fields), what=unary)
        return [item for part in parts for item in _items(part)]
    except Unimplemented:
        return list(_items(client.call(unary, method(unary).request_type(**fields))))


def _items(answer: Any) -> Iterable[Any]:
    """Return the elements in an answer, whose only field is the list."""
    items: Iterable[Any] = getattr(answer, answer.DESCRIPTOR.fields[0].name)
    return items


def newest_count(*, latest: bool, last: int) -> int | None:
    """Return how many of the newest to list, None for all; ``last`` overrides ``latest``."""
    if last > 0:
        return last
    return 1 if latest else None


def newest_first(items: Iterable[C], count: int | None = None) -> list[C]:
    return sorted(items, key=lambda item: item.created_at, reverse=True)[:count]


def pattern(text: str, *, option: str) -> re.Pattern[str]:
    """Compile the regular expression by which an option filters names.

    The syntax is Python's, with ASCII classes as in crictl. Expressions with different meanings in
    the two syntaxes, such as ``[[:alpha:]]``, are rejected.
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
