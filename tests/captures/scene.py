"""The responses of the two runtimes that the recordings were made with.

``prepared`` and ``fake_*`` have those of the prepared runtime; ``data/prepared.json`` holds what
does not depend on the time. ``real_*`` read those of containerd from recordings of commands that
print everything they receive.
"""

from __future__ import annotations

import json
from typing import Any, Final, TypeVar

import yaml
from google.protobuf import json_format
from google.protobuf.message import Message

from pycrictl._proto import cri_pb2
from pycrictl.runtime.cri.calls.client import method
from tests.captures import DATA, capture

M = TypeVar("M", bound=Message)

_PREPARED: Final[dict[str, Any]] = json.loads((DATA / "prepared.json").read_text("utf-8"))


def hex_id(number: int) -> str:
    """Return an ID of 64 hex digits that repeats one byte."""
    return f"{number:02x}" * 32


def prepared(name: str) -> Any:
    """Return the prepared runtime's response to a call; a list of responses for a stream."""
    called, documents = method(name), _PREPARED[name]
    if called.is_stream:
        return [json_format.ParseDict(document, called.response_type()) for document in documents]
    return json_format.ParseDict(documents, called.response_type())


def fake_images(name: str = "") -> list[cri_pb2.Image]:
    """Return the images in the runtime's order, filtered by an exact ``name`` as CRI-O does."""
    return [
        image
        for image in prepared("ListImages").images
        if not name or name in image.repo_tags or name in image.repo_digests
    ]


def real_version() -> cri_pb2.VersionResponse:
    return cri_pb2.VersionResponse(
        version="0.1.0",
        runtime_name="containerd",
        runtime_version="1.6.20~ds1",
        runtime_api_version="v1",
    )


def real_images() -> list[cri_pb2.Image]:
    return list(from_yaml("images-yaml", cri_pb2.ListImagesResponse()).images)


def real_image_fs_info() -> cri_pb2.ImageFsInfoResponse:
    recorded = yaml.safe_load(capture("imagefsinfo").output)["status"]
    return json_format.ParseDict(recorded, cri_pb2.ImageFsInfoResponse())


def from_yaml(name: str, message: M) -> M:
    return json_format.ParseDict(yaml.safe_load(capture(name).output), message)


def from_json(name: str, message: M) -> M:
    return json_format.Parse(capture(name).output, message)


HOUR_S = 3600
DAY_S = 24 * HOUR_S
AGES_S = (
    0.2, 1.2, 2.2, 59.5, 60.5, 119.5, 120.5, 3599, 3601, 5399, 5401,
    47.4 * HOUR_S, 47.6 * HOUR_S, 49 * HOUR_S, 13.9 * DAY_S, 14.1 * DAY_S, 59.4 * DAY_S,
    60.1 * DAY_S, 729 * DAY_S, 731 * DAY_S, 1100 * DAY_S,
)  # fmt: skip


def fake_pods(now: float) -> list[cri_pb2.PodSandbox]:
    """Return a pod of each age at ``now``, in seconds since 1970."""
    pods = [
        cri_pb2.PodSandbox(
            id=hex_id(index + 1),
            metadata=cri_pb2.PodSandboxMetadata(
                name=f"pod{index}", namespace="ns", uid=f"u{index}", attempt=index
            ),
            state=index % 2,  # type: ignore[arg-type]  # a number
            created_at=int((now - age) * 1e9),
            runtime_handler="kata" if index == 1 else "",
        )
        for index, age in enumerate(AGES_S)
    ]
    pods[0].labels.update({"zz": "1", "aa": "x=y"})
    return pods


def fake_containers(now: float) -> list[cri_pb2.Container]:
    """Return a container of each age at ``now``, in seconds since 1970."""
    return [
        cri_pb2.Container(
            id=hex_id(index + 1),
            pod_sandbox_id=hex_id(index + 101),
            metadata=cri_pb2.ContainerMetadata(name=f"ctr{index}", attempt=index),
            state=index % 4,  # type: ignore[arg-type]  # a number
            created_at=int((now - age) * 1e9),
            image=cri_pb2.ImageSpec(
                image=f"sha256:{hex_id(7)}" if index % 2 else "docker.io/library/busybox:1"
            ),
            image_ref=f"sha256:{hex_id(7)}",
        )
        for index, age in enumerate(AGES_S)
    ]


def fake_container_stats(sample: int, timestamp_ns: int) -> list[cri_pb2.ContainerStats]:
    """Return the runtime's ``sample``-th response; the second container is not running."""
    answer = []
    for number in (3, 1, 2):
        stats = cri_pb2.ContainerStats()
        stats.attributes.id = hex_id(number)
        stats.attributes.metadata.name = f"c{number}"
        if number != 2:
            stats.cpu.timestamp = timestamp_ns
            stats.cpu.usage_core_nano_seconds.value = 5 * 10**9 + sample * 10**9 // 4 * number
            stats.memory.working_set_bytes.value = 123_456_789 * number
            stats.writable_layer.used_bytes.value = 999_999 * number
            stats.writable_layer.inodes_used.value = 12 * number
            stats.swap.swap_usage_bytes.value = 4096 * number
        answer.append(stats)
    return answer


def fake_pod_stats(sample: int, timestamp_ns: int) -> list[cri_pb2.PodSandboxStats]:
    """Return the runtime's ``sample``-th response; the third pod is not running."""
    answer = []
    for number in (2, 1, 3):
        stats = cri_pb2.PodSandboxStats()
        stats.attributes.id = hex_id(number)
        stats.attributes.metadata.name = f"pod{number}"
        stats.attributes.metadata.namespace = "ns"
        if number != 3:
            stats.linux.cpu.timestamp = timestamp_ns
            stats.linux.cpu.usage_core_nano_seconds.value = 10**9 + sample * 10**9 // 2 * number
            stats.linux.memory.working_set_bytes.value = 1024**3 * number
        answer.append(stats)
    return answer


def real_pods() -> list[cri_pb2.PodSandbox]:
    return list(from_json("pods-json", cri_pb2.ListPodSandboxResponse()).items)


def real_containers() -> list[cri_pb2.Container]:
    return list(from_yaml("ps-all-yaml", cri_pb2.ListContainersResponse()).containers)
