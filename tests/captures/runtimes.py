"""The runtimes that the recordings were made with, as answers for ``tests.fakecri``.

``real`` is containerd 1.6.20 with the scene of pods, containers and images; ``empty`` is the same
after everything was removed; ``prepared`` has everything that containerd 1.6.20 lacks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import grpc
import yaml
from google.protobuf import json_format

from pycrictl._proto import cri_pb2
from tests.captures import capture, scene
from tests.fakecri import FakeServer, Status

IDS = {
    "PW": "828a2a0f55e3622efb89a585cbd33b56feb70c8857fd8dcd2c28b876a81fad8c",
    "PD": "7d87daf4284ae92f457f4ab3e08c303131d012c586e8e366711d4bba4fd8d081",
    "PB": "4350756c3f2de2b2fcf3553f267651baabf6610ff820d3caa4eb9ff9ef5412d8",
    "CW": "21c7ba9b9b3adf5d6699a97b5b709c3e18a3bb2784bfb1cfc0ea0ed9e901ac0a",
    "CC": "8f1d882724873",
    "CO": "909523d979f8d",
    "CF": "9ccfefedc7c7621c1bc7ffa65739d5d1bb9e18cbe8589cb33177659d7c644b9a",
    "CR": "cde668df3555e0c609fa682330417b2b2a94fd2aaee17c1f58c96d801c254228",
}
"""The scene's variables; IDs given as prefixes are completed from the recordings."""

_TIMES = ("createdAt", "startedAt", "finishedAt")


def whole_id(start: str) -> str:
    return next(
        container.id for container in scene.real_containers() if container.id.startswith(start)
    )


IDS.update({name: whole_id(start) for name, start in IDS.items() if name in ("CC", "CO")})


def with_ids(command: str) -> str:
    """Return a recorded command with the scene's variables replaced: ``$CW``, ``${CW:0:4}``."""
    command = re.sub(r"\$\{(\w\w):0:(\d)\}", lambda match: IDS[match[1]][: int(match[2])], command)
    return re.sub(r"\$(\w\w)\b", lambda match: IDS[match[1]], command)


def real(server: FakeServer) -> None:
    """Respond as containerd 1.6.20 did, with its filters and its matching of ID prefixes."""
    containers, pods, images = scene.real_containers(), scene.real_pods(), scene.real_images()
    container_answers = _real_container_statuses()
    pod_answers = _real_pod_statuses()
    image_info = json.loads(capture("inspecti").output)["info"]
    stats = list(scene.from_yaml("stats-yaml", cri_pb2.ListContainerStatsResponse()).stats)
    samples = iter(range(1000))

    def list_containers(request: Any, context: Any) -> cri_pb2.ListContainersResponse:
        condition = request.filter
        matches = [
            container
            for container in _of_id(containers, condition.id)
            if container.pod_sandbox_id.startswith(condition.pod_sandbox_id)
            and (not condition.HasField("state") or container.state == condition.state.state)
            and _has_labels(container, condition)
        ]
        return cri_pb2.ListContainersResponse(containers=matches)

    def list_pods(request: Any, context: Any) -> cri_pb2.ListPodSandboxResponse:
        condition = request.filter
        matches = [
            pod
            for pod in _of_id(pods, condition.id)
            if (not condition.HasField("state") or pod.state == condition.state.state)
            and _has_labels(pod, condition)
        ]
        return cri_pb2.ListPodSandboxResponse(items=matches)

    def container_status(request: Any, context: Any) -> Any:
        matches = [
            container for container in containers if container.id.startswith(request.container_id)
        ]
        if len(matches) != 1:
            return _not_one("container", request.container_id, len(matches))
        return _without_info(container_answers[matches[0].id], request.verbose)

    def pod_status(request: Any, context: Any) -> Any:
        matches = [pod for pod in pods if pod.id.startswith(request.pod_sandbox_id)]
        if len(matches) != 1:
            return _not_one("sandbox", request.pod_sandbox_id, len(matches))
        return _without_info(pod_answers[matches[0].id], request.verbose)

    def image_status(request: Any, context: Any) -> cri_pb2.ImageStatusResponse:
        name = request.image.image
        for image in images:
            is_named = name in (*image.repo_tags, *image.repo_digests)
            if is_named or image.id.removeprefix("sha256:").startswith(
                name.removeprefix("sha256:")
            ):
                info = {"info": json.dumps(image_info)} if request.verbose else {}
                return cri_pb2.ImageStatusResponse(image=image, info=info)
        return cri_pb2.ImageStatusResponse()

    def list_stats(request: Any, context: Any) -> cri_pb2.ListContainerStatsResponse:
        sample = next(samples)
        answer = cri_pb2.ListContainerStatsResponse(stats=_of_id(stats, request.filter.id))
        for measured in answer.stats:
            if measured.HasField("cpu"):
                measured.cpu.timestamp += sample * 10**9
        pod = request.filter.pod_sandbox_id
        for index in reversed(range(len(answer.stats))):
            if not _pod_of(containers, answer.stats[index].attributes.id).startswith(pod):
                del answer.stats[index]
        return answer

    server.offer("ListContainers", list_containers)
    server.offer("ListPodSandbox", list_pods)
    server.offer("ListImages", cri_pb2.ListImagesResponse(images=images))
    server.offer("ContainerStatus", container_status)
    server.offer("PodSandboxStatus", pod_status)
    server.offer("ImageStatus", image_status)
    server.offer("ImageFsInfo", scene.real_image_fs_info())
    server.offer("ListContainerStats", list_stats)
    no_cgroup = Status(grpc.StatusCode.UNKNOWN, "failed to obtain metrics: cgroupPath is empty")
    server.offer("ListPodSandboxStats", no_cgroup)
    server.offer("PodSandboxStats", no_cgroup)
    server.offer("Status", scene.from_json("info-quiet", cri_pb2.StatusResponse()))


def empty(server: FakeServer) -> None:
    server.offer("ListContainers", None)
    server.offer("ListPodSandbox", None)
    server.offer("ListImages", None)
    server.offer("ListContainerStats", None)


def prepared(server: FakeServer, now: float) -> None:
    """Respond as the prepared runtime did at ``now``, in seconds since 1970."""
    samples = iter(range(1, 1000))

    def container_stats(request: Any, context: Any) -> cri_pb2.ListContainerStatsResponse:
        sample = next(samples)
        stats = scene.fake_container_stats(sample, sample * 10**9)
        return cri_pb2.ListContainerStatsResponse(stats=stats)

    def pod_stats(request: Any, context: Any) -> cri_pb2.ListPodSandboxStatsResponse:
        sample = next(samples)
        stats = scene.fake_pod_stats(sample, sample * 10**9)
        return cri_pb2.ListPodSandboxStatsResponse(stats=stats)

    def images(request: Any, context: Any) -> cri_pb2.ListImagesResponse:
        return cri_pb2.ListImagesResponse(images=scene.fake_images(request.filter.image.image))

    server.offer(
        "ListContainers", cri_pb2.ListContainersResponse(containers=scene.fake_containers(now))
    )
    server.offer("ListPodSandbox", cri_pb2.ListPodSandboxResponse(items=scene.fake_pods(now)))
    server.offer("ListImages", images)
    server.offer("ListContainerStats", container_stats)
    server.offer("ListPodSandboxStats", pod_stats)
    for name in (
        *("ContainerStatus", "PodSandboxStatus", "ImageFsInfo", "Status", "RuntimeConfig"),
        *("ListMetricDescriptors", "ListPodSandboxMetrics", "GetContainerEvents"),
    ):
        server.offer(name, scene.prepared(name))


def _real_container_statuses() -> dict[str, cri_pb2.ContainerStatusResponse]:
    documents = [
        json.loads(capture("inspect").output),
        *json.loads(capture("inspect-two").output),
        *json.loads(capture("inspect-no-args").output),
    ]
    return {
        document["status"]["id"]: json_format.ParseDict(
            message_of(document), cri_pb2.ContainerStatusResponse()
        )
        for document in reversed(documents)
    }


def _real_pod_statuses() -> dict[str, cri_pb2.PodSandboxStatusResponse]:
    documents = [
        json.loads(capture("inspectp").output),
        json.loads(capture("inspectp-quiet").output),
        yaml.safe_load(capture("inspectp-yaml").output),
    ]
    answers = {
        document["status"]["id"]: json_format.ParseDict(
            message_of(document), cri_pb2.PodSandboxStatusResponse()
        )
        for document in documents
    }
    shown = re.search(r"^Info: map\[info:(.*)\]$", capture("inspectp-table-verbose").output, re.M)
    assert shown
    answers[IDS["PB"]].info["info"] = shown[1]
    return answers


def message_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return, as JSON, the response from which a recorded document was made."""
    status = {key: value for key, value in document["status"].items() if value is not None}
    status.update({key: _nanoseconds(status[key]) for key in _TIMES if key in status})
    if "stopSignal" in status:
        status["stopSignal"] = f"SIGNAL_{status['stopSignal']}"
    extras: dict[str, Any] = {
        key: document[key] for key in ("runtimeHandlers", "features") if key in document
    }
    info = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in document.items()
        if key != "status" and key not in extras
    }
    return {"status": status, "info": info, **extras}


def _nanoseconds(text: str) -> str:
    seconds, _, fraction = text.removesuffix("Z").partition(".")
    if seconds.startswith("0001"):
        return "0"
    moment = datetime.fromisoformat(seconds).replace(tzinfo=UTC)
    return str(int(moment.timestamp()) * 10**9 + int(fraction.ljust(9, "0")))


def _of_id(items: Iterable[Any], start: str) -> list[Any]:
    """Filter a list by an ID or its prefix; a prefix that fits several matches nothing."""
    fitting = [item for item in items if _id(item).startswith(start)]
    return fitting if not start or len(fitting) == 1 else []


def _id(item: Any) -> str:
    identifier: str = item.attributes.id if hasattr(item, "attributes") else item.id
    return identifier


def _pod_of(containers: Iterable[cri_pb2.Container], container_id: str) -> str:
    return next(
        container.pod_sandbox_id for container in containers if container.id == container_id
    )


def _has_labels(item: Any, condition: Any) -> bool:
    wanted = condition.label_selector.items()
    return all(item.labels.get(key) == value for key, value in wanted)


def _not_one(kind: str, start: str, count: int) -> Status:
    text = f'an error occurred when try to find {kind} "{start}"'
    if count:
        return Status(
            grpc.StatusCode.UNKNOWN, f"{text}: Multiple IDs found with provided prefix: {start}"
        )
    return Status(grpc.StatusCode.NOT_FOUND, f"{text}: not found")


def _without_info(answer: Any, verbose: bool) -> Any:
    if verbose:
        return answer
    bare = type(answer)()
    bare.CopyFrom(answer)
    bare.ClearField("info")
    return bare
