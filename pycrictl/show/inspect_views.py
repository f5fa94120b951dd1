"""Views of the inspect commands: a response's document, and its block of fields. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import Message

from pycrictl._proto import cri_pb2
from pycrictl.base.units import format_size
from pycrictl.show.list_views import NEVER, SIZE_DIGITS, age, block_of, enum_name, go_time, rfc3339
from pycrictl.show.protodata import Document, status_document
from pycrictl.show.render import Block

# Values of ContainerState.
_CREATED: Final = 0
_EXITED: Final = 2
_UNKNOWN: Final = 3


def container_document(answer: cri_pb2.ContainerStatusResponse) -> Document:
    times = container_times(answer.status)
    return status_document(answer.status, answer.info, unset_as_null=True, times=times)


def pod_document(answer: cri_pb2.PodSandboxStatusResponse) -> Document:
    times = {"createdAt": rfc3339(answer.status.created_at)}
    return status_document(answer.status, answer.info, unset_as_null=True, times=times)


def image_document(answer: cri_pb2.ImageStatusResponse) -> Document:
    return status_document(answer.image, answer.info)


def runtime_document(answer: cri_pb2.StatusResponse) -> Document:
    return status_document(answer.status, answer.info, extras=runtime_extras(answer))


def container_status_block(answer: cri_pb2.ContainerStatusResponse, *, now: float) -> Block:
    status = answer.status
    has_started, has_ended = status.state != _CREATED, status.state == _EXITED
    return block_of(
        ("ID", status.id),
        ("Name", status.metadata.name),
        ("Attempt", str(status.metadata.attempt) if status.metadata.attempt else None),
        ("State", enum_name(status, "state")),
        ("Created", f"{age(status.created_at, now)} ago"),
        ("Started", f"{age(status.started_at, now)} ago" if has_started else None),
        ("Finished", f"{age(status.finished_at, now)} ago" if has_ended else None),
        ("Exit Code", str(status.exit_code) if has_ended else None),
        ("Labels", status.labels or None),
        ("Annotations", status.annotations or None),
        ("Info", _info(answer.info)),
    )


def container_times(status: cri_pb2.ContainerStatus) -> dict[str, str]:
    has_finished = status.state == _EXITED or (status.state == _UNKNOWN and status.finished_at)
    return {
        "createdAt": rfc3339(status.created_at),
        "startedAt": NEVER if status.state == _CREATED else rfc3339(status.started_at),
        "finishedAt": rfc3339(status.finished_at) if has_finished else NEVER,
    }


def pod_status_block(answer: cri_pb2.PodSandboxStatusResponse) -> Block:
    status = answer.status
    return block_of(
        ("ID", status.id),
        ("Name", status.metadata.name),
        ("UID", status.metadata.uid),
        ("Namespace", status.metadata.namespace),
        ("Attempt", str(status.metadata.attempt)),
        ("Status", enum_name(status, "state")),
        ("Created", go_time(status.created_at)),
        ("IP Addresses", status.network.ip),
        *(("Additional IP", address.ip) for address in status.network.additional_ips),
        ("Labels", status.labels or None),
        ("Annotations", status.annotations or None),
        ("Info", _info(answer.info)),
    )


def image_status_block(answer: cri_pb2.ImageStatusResponse) -> Block:
    image = answer.image
    return block_of(
        ("ID", image.id),
        *(("Tag", tag) for tag in image.repo_tags),
        *(("Digest", digest) for digest in image.repo_digests),
        ("Size", format_size(image.size, 3)),
        ("Info", _info(answer.info)),
    )


def runtime_extras(response: cri_pb2.StatusResponse) -> dict[str, Any]:
    extras: dict[str, Any] = {}
    if response.runtime_handlers:
        extras["runtimeHandlers"] = [_declared(handler) for handler in response.runtime_handlers]
    if response.HasField("features"):
        extras["features"] = _declared(response.features)
    return extras


def _declared(message: Message) -> Document:
    """Return the fields that are set, by their names in the proto file."""
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415 - slow, only for `info`

    return MessageToDict(message, preserving_proto_field_name=True)


def image_filesystems(response: cri_pb2.ImageFsInfoResponse) -> Mapping[str, list[Block]]:
    # The titles end with a space in crictl's output too.
    return {
        "Container Filesystem ": [*map(_filesystem, response.container_filesystems)],
        "Image Filesystem ": [*map(_filesystem, response.image_filesystems)],
    }


def _filesystem(usage: cri_pb2.FilesystemUsage) -> Block:
    return [
        ("TimeStamp", str(usage.timestamp)),
        ("Disk", format_size(usage.used_bytes.value, SIZE_DIGITS)),
        ("Inodes", str(usage.inodes_used.value)),
        ("Mountpoint", usage.fs_id.mountpoint),
    ]


def _info(info: Mapping[str, str]) -> str | None:
    return f"map[{' '.join(f'{key}:{info[key]}' for key in sorted(info))}]" if info else None
