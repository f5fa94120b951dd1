"""Responses with all required fields, for tests to modify."""

from __future__ import annotations

from typing import Any

from pycrictl._proto import cri_pb2

VERSION = cri_pb2.VersionResponse(
    version="0.1.0", runtime_name="fake", runtime_version="1", runtime_api_version="v1"
)


def container_status(container_id: str = "c", **fields: Any) -> cri_pb2.ContainerStatus:
    """Return the status of a container; ``fields`` are set in addition."""
    complete = cri_pb2.ContainerStatus(
        id=container_id,
        metadata=cri_pb2.ContainerMetadata(name="main"),
        created_at=1,
        image=cri_pb2.ImageSpec(image="x/app:1"),
        image_ref="sha256:1",
    )
    complete.MergeFrom(cri_pb2.ContainerStatus(**fields))
    return complete


def pod_status(pod_sandbox_id: str = "p", **fields: Any) -> cri_pb2.PodSandboxStatus:
    """Return the status of a pod sandbox; ``fields`` are set in addition."""
    complete = cri_pb2.PodSandboxStatus(
        id=pod_sandbox_id,
        metadata=cri_pb2.PodSandboxMetadata(name="web", namespace="default", uid="u"),
        created_at=1,
    )
    complete.MergeFrom(cri_pb2.PodSandboxStatus(**fields))
    return complete
