"""A proxy's stream of pulls."""

from __future__ import annotations

from typing import Any

from pycrictl._proto import cri_pb2

WEB = "ab" * 32
DB = "ac" * 32
IMAGE = "registry.example/app:v1"
LAYERS = ["sha256:" + digit * 64 for digit in "12"]


def pod(pod_id: str, name: str, *, namespace: str = "default", **fields: Any) -> cri_pb2.PodSandbox:
    metadata = cri_pb2.PodSandboxMetadata(name=name, namespace=namespace, uid=f"uid-{pod_id[:4]}")
    return cri_pb2.PodSandbox(id=pod_id, metadata=metadata, **fields)


PODS = cri_pb2.ListPodSandboxResponse(items=[pod(WEB, "web"), pod(DB, "db", namespace="prod")])


def record(layer: int, progress: int, total: int = 100, **fields: Any) -> dict[str, Any]:
    return {"image": IMAGE, "layer": LAYERS[layer], "progress": progress, "total": total, **fields}


STORY = [record(0, 0), record(1, 10), record(0, 60), record(0, 100), record(1, 100)]


def url(text: str) -> cri_pb2.ImagePullProgressResponse:
    return cri_pb2.ImagePullProgressResponse(url=text)
