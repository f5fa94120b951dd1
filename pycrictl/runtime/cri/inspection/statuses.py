"""The status of containers, pods and images, how a container last ended, and resource usage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final, Literal

from google.protobuf.message import Message

from pycrictl._proto import cri_pb2
from pycrictl.base import noderoot
from pycrictl.base.errors import (
    ConnectError,
    DeadlineExceeded,
    NotFound,
    PycrictlError,
    RemoteProtocolError,
    Unavailable,
)
from pycrictl.runtime.cri.calls.client import CriClient, call_each, method
from pycrictl.runtime.cri.calls.redact import quote_reference
from pycrictl.runtime.cri.lists import lookup
from pycrictl.runtime.cri.lists.lookup import select_by_id

StatusKind = Literal["container", "pod", "image"]

_CALLS: Final[Mapping[StatusKind, tuple[str, str, str]]] = {
    "container": ("ContainerStatus", "container_id", "status"),
    "pod": ("PodSandboxStatus", "pod_sandbox_id", "status"),
    "image": ("ImageStatus", "image", "image"),
}
"""For each kind: the call, the request field with the name, and the field of the answer."""


def read(
    client: CriClient,
    kind: StatusKind,
    names: Iterable[str],
    *,
    verbose: bool = False,
    is_listed: bool = False,
    failed: Callable[[PycrictlError], None] | None = None,
) -> Iterator[Any]:
    """Yield the runtime's answer about each container, pod or image, in order.

    Args:
        is_listed: the names are from the runtime's own list; objects that are gone are skipped.
        failed: called with each error; without it, the first one is raised. A runtime that does
            not answer is not asked again.
    """
    call, name_field, field = _CALLS[kind]
    requests: list[tuple[str, Message]] = []
    for name in names:
        value = cri_pb2.ImageSpec(image=name) if kind == "image" else name
        request = method(call).request_type(**{name_field: value, "verbose": verbose})
        requests.append((f"{kind} {quote_reference(name)}", request))
    outcomes = call_each(client, call, requests)
    for (subject, _), answer in zip(requests, outcomes, strict=True):
        if not isinstance(answer, PycrictlError) and not answer.HasField(field):
            no_status = RemoteProtocolError(f"{subject}: the runtime answered without a status")
            answer = NotFound(f"no {subject}") if kind == "image" else no_status
        if isinstance(answer, NotFound):
            if is_listed:
                continue
            answer.hint = answer.hint or (lookup.IMAGES_HINT if kind == "image" else None)
        try:
            if isinstance(answer, PycrictlError):
                raise answer
            check(getattr(answer, field), subject)
        except PycrictlError as error:
            if failed is None:
                raise
            failed(error)
            if isinstance(error, ConnectError | Unavailable | DeadlineExceeded):
                return
        else:
            yield answer


def pod_addresses(client: CriClient, pods: Iterable[cri_pb2.PodSandbox]) -> dict[str, str]:
    """Return the IP addresses of pods by their IDs, separated by commas."""
    ids = [pod.id for pod in pods]
    addresses = {}
    for answer in read(client, "pod", ids, is_listed=True):
        network = answer.status.network
        known = [network.ip, *(other.ip for other in network.additional_ips)]
        addresses[answer.status.id] = ",".join(filter(None, known))
    return addresses


# The same fields as in crictl: both accept the same answers.
_REQUIRED: Final = {
    cri_pb2.VersionResponse: ("version", "runtime_name", "runtime_version", "runtime_api_version"),
    cri_pb2.PodSandboxStatus: (
        "id", "metadata.name", "metadata.namespace", "metadata.uid", "created_at",
    ),
    cri_pb2.ContainerStatus: ("id", "metadata.name", "created_at", "image.image", "image_ref"),
    cri_pb2.Image: ("id", "size"),
}  # fmt: skip

_CONDITIONS: Final = 2
"""The API requires RuntimeReady and NetworkReady."""


def check(message: Message, subject: str) -> None:
    """Raise if a ``VersionResponse``, pod or container status, or ``Image`` lacks a field."""
    missing = [path for path in _REQUIRED[type(message)] if not attrgetter(path)(message)]
    if missing:
        raise RemoteProtocolError(f"{subject}: the runtime answered without {', '.join(missing)}")


def check_conditions(status: cri_pb2.RuntimeStatus) -> None:
    if len(status.conditions) < _CONDITIONS:
        raise RemoteProtocolError(
            f"Status: the runtime answered with fewer than {_CONDITIONS} conditions"
        )


# The last termination of a container


MESSAGE_BYTES: Final = 4096
"""The kubelet's limit for a termination message."""

_MESSAGE_PATH: Final = "io.kubernetes.container.terminationMessagePath"


def attempt_before(
    client: CriClient, status: cri_pb2.ContainerStatus, listed: lookup.Lookup
) -> cri_pb2.ContainerStatus | None:
    """Return the last attempt before a given one, in any sandbox of its pod; None if it is gone."""
    of = {container.id: container.pod_sandbox_id for container in listed.containers}
    uids = {pod.metadata.uid for pod in listed.pods if pod.id == of.get(status.id)}
    sandboxes = {pod.id for pod in listed.pods if pod.metadata.uid in uids}
    earlier = [
        container
        for container in listed.containers
        if container.metadata.name == status.metadata.name
        and container.pod_sandbox_id in sandboxes
        and container.id != status.id
        and container.state == cri_pb2.CONTAINER_EXITED
    ]
    newest = sorted(earlier, key=lambda container: container.created_at)[-1:]
    ids = [container.id for container in newest]
    answers = read(client, "container", ids, is_listed=True)
    return next((answer.status for answer in answers), None)


def termination_message(status: cri_pb2.ContainerStatus) -> str:
    """Return the runtime's error, or what the container wrote to its termination log."""
    path = status.annotations.get(_MESSAGE_PATH, "/dev/termination-log")
    for mount in status.mounts:
        if mount.container_path == path and not status.message:
            with suppress(OSError):
                content = noderoot.read_named(noderoot.locate(mount.host_path))
                return content[-MESSAGE_BYTES:].decode("utf-8", "replace")
    return status.message


def measure(
    client: CriClient, condition: cri_pb2.ContainerStatsFilter | cri_pb2.PodSandboxStatsFilter
) -> list[Any]:
    """Measure the containers or pods that meet a condition; return their stats, sorted by ID."""
    is_pod = isinstance(condition, cri_pb2.PodSandboxStatsFilter)
    name = "PodSandboxStats" if is_pod else "ContainerStats"
    condition = select_by_id(client, condition)
    stats = lookup.whole(client, f"Stream{name}", f"List{name}", filter=condition)
    return sorted(stats, key=lambda item: item.attributes.id)
