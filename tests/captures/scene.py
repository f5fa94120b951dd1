"""The responses of the two runtimes that the recordings were made with.

``fake_*`` build the responses of the prepared runtime. ``real_*`` read those of containerd from
recordings of commands that print everything they receive.
"""

from __future__ import annotations

from typing import TypeVar

import yaml
from google.protobuf import json_format
from google.protobuf.message import Message

from pycrictl._proto import cri_pb2
from tests.captures import capture

M = TypeVar("M", bound=Message)


def hex_id(number: int) -> str:
    """Return an ID of 64 hex digits that repeats one byte."""
    return f"{number:02x}" * 32


def digest(repository: str, number: int) -> str:
    return f"{repository}@sha256:{hex_id(number)}"


def fake_images(name: str = "") -> list[cri_pb2.Image]:
    """Return the images in the runtime's order, filtered by an exact ``name`` as CRI-O does."""

    def image(
        number: int, tags: list[str], digests: list[str], size: int, **fields: object
    ) -> cri_pb2.Image:
        return cri_pb2.Image(
            id=f"sha256:{hex_id(number)}",
            repo_tags=tags,
            repo_digests=digests,
            size=size,
            **fields,  # type: ignore[arg-type]  # mixed types
        )

    two = [digest("b.io/two", 21), digest("b.io/alias", 22)]
    images = [
        image(1, ["b.io/two:1", "b.io/two:2"], two, 999),
        image(2, ["a.io/one:latest"], [digest("a.io/one", 23)], 1000, pinned=True),
        image(3, [], [digest("c.io/dig", 24)], 1_234_567, username="joe"),
        image(4, [], [], 12_345_678_901, uid=cri_pb2.Int64Value(value=0)),
        image(5, ["<none>:<none>"], [digest("d.io/none", 25)], 999_999),
        image(6, ["localhost:5000/x/y:tag"], [], 1_000_000),
        image(7, ["notag"], ["baddigest"], 99_950_000),
        image(8, ["e.io/big:v1"], [digest("e.io/big", 26)], 2**63),
    ]
    return [
        image
        for image in images
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


def fake_status() -> cri_pb2.StatusResponse:
    response = cri_pb2.StatusResponse()
    conditions = response.status.conditions
    conditions.add(type="RuntimeReady", status=True)
    conditions.add(type="NetworkReady", reason="NetworkPluginNotReady", message='cni <not> "ready"')
    response.runtime_handlers.add().features.recursive_read_only_mounts = True
    response.runtime_handlers.add(name="kata")
    response.features.supplemental_groups_policy = True
    return response


def fake_runtime_config() -> cri_pb2.RuntimeConfigResponse:
    response = cri_pb2.RuntimeConfigResponse()
    response.linux.cgroup_driver = cri_pb2.CGROUPFS
    return response


def fake_metric_descriptors() -> cri_pb2.ListMetricDescriptorsResponse:
    descriptor = cri_pb2.MetricDescriptor(
        name="container_x", help="an x", label_keys=["id", "name"]
    )
    return cri_pb2.ListMetricDescriptorsResponse(descriptors=[descriptor])


def fake_pod_metrics() -> cri_pb2.ListPodSandboxMetricsResponse:
    response = cri_pb2.ListPodSandboxMetricsResponse()
    pod = response.pod_metrics.add(pod_sandbox_id=hex_id(1))
    metric = pod.metrics.add(
        name="container_x", timestamp=1, metric_type=cri_pb2.GAUGE, label_values=["a", "b"]
    )
    metric.value.value = 42
    pod.container_metrics.add(container_id=hex_id(2))
    return response


def fake_events() -> list[cri_pb2.ContainerEventResponse]:
    events = [
        cri_pb2.ContainerEventResponse(
            container_id=hex_id(1),
            container_event_type=kind,  # type: ignore[arg-type]  # a number
            created_at=1_700_000_000_000_000_000 + kind,
        )
        for kind in range(4)
    ]
    events[1].pod_sandbox_status.CopyFrom(fake_pod_status().status)
    events[1].containers_statuses.append(fake_container_status().status)
    return events


def fake_container_status() -> cri_pb2.ContainerStatusResponse:
    status = cri_pb2.ContainerStatus(
        id=hex_id(1),
        metadata=cri_pb2.ContainerMetadata(name="ctr0", attempt=1),
        state=cri_pb2.CONTAINER_UNKNOWN,
        created_at=1_700_000_000_123_456_789,
        started_at=1_700_000_001_000_000_000,
        finished_at=1_700_000_002_000_000_000,
        exit_code=137,
        reason="OOMKilled",
        message="m",
        image=cri_pb2.ImageSpec(
            image="docker.io/library/busybox:1", user_specified_image="busybox:1"
        ),
        image_ref=f"sha256:{hex_id(7)}",
        image_id=f"sha256:{hex_id(7)}",
        log_path="/x/y.log",
        stop_signal=cri_pb2.SIGNAL_SIGPOLL,
    )
    status.mounts.add(
        container_path="/c",
        host_path="/h",
        readonly=True,
        propagation=cri_pb2.PROPAGATION_BIDIRECTIONAL,
    )
    status.user.linux.uid = 1000
    status.user.linux.gid = 1000
    status.user.linux.supplemental_groups.extend([1, 2])
    status.resources.linux.cpu_shares = 2
    status.resources.linux.unified["memory.high"] = "max"
    info = {"info": '{"pid":1,"z":[1,{"y":2,"x":null}],"rate":9007199254740993}'}
    return cri_pb2.ContainerStatusResponse(status=status, info=info)


def fake_pod_status() -> cri_pb2.PodSandboxStatusResponse:
    status = cri_pb2.PodSandboxStatus(
        id=hex_id(1),
        metadata=cri_pb2.PodSandboxMetadata(name="pod0", namespace="ns", uid="u0"),
        created_at=1_700_000_000_123_456_789,
        runtime_handler="kata",
    )
    status.network.ip = "10.0.0.5"
    status.network.additional_ips.add(ip="fd00::5")
    return cri_pb2.PodSandboxStatusResponse(status=status)


HOUR_S = 3600
DAY_S = 24 * HOUR_S
AGES_S = (
    *(0.2, 1.2, 2.2, 59.5, 60.5, 119.5, 120.5, 3599, 3601, 5399, 5401),
    *(47.4 * HOUR_S, 47.6 * HOUR_S, 49 * HOUR_S, 13.9 * DAY_S, 14.1 * DAY_S, 59.4 * DAY_S),
    *(60.1 * DAY_S, 729 * DAY_S, 731 * DAY_S, 1100 * DAY_S),
)


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


def fake_image_fs_info() -> cri_pb2.ImageFsInfoResponse:
    response = cri_pb2.ImageFsInfoResponse()
    filesystems = (response.image_filesystems, response.container_filesystems)
    for index, filesystem in enumerate(filesystems):
        usage = filesystem.add(timestamp=1_700_000_000_000_000_000)
        usage.fs_id.mountpoint = f"/var/lib/x{index}"
        usage.used_bytes.value = 123_456_789_012 * (index + 1)
        usage.inodes_used.value = 7 + index
    return response


def real_pods() -> list[cri_pb2.PodSandbox]:
    return list(from_json("pods-json", cri_pb2.ListPodSandboxResponse()).items)


def real_containers() -> list[cri_pb2.Container]:
    return list(from_yaml("ps-all-yaml", cri_pb2.ListContainersResponse()).containers)
