"""Yardstick for lists: a minimal program with Typer and gRPC that lists the containers.

python benchmarks/bare_containers.py SOCKET [json]

Prints their IDs, or with ``json`` all of their data.
"""

from __future__ import annotations

import json
from typing import Any

import grpc
import typer

from pycrictl._proto import cri_pb2


def data(container: cri_pb2.Container) -> dict[str, Any]:
    return {
        "id": container.id,
        "podSandboxId": container.pod_sandbox_id,
        "metadata": {"name": container.metadata.name, "attempt": container.metadata.attempt},
        "image": {
            "image": container.image.image,
            "annotations": dict(container.image.annotations),
            "userSpecifiedImage": container.image.user_specified_image,
            "runtimeHandler": container.image.runtime_handler,
            "imageRef": container.image.image_ref,
        },
        "imageRef": container.image_ref,
        "state": cri_pb2.ContainerState.Name(container.state),
        "createdAt": str(container.created_at),
        "labels": dict(container.labels),
        "annotations": dict(container.annotations),
        "imageId": container.image_id,
    }


def main(socket: str, form: str = typer.Argument("")) -> None:
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        call = channel.unary_unary(
            "/runtime.v1.RuntimeService/ListContainers",
            request_serializer=cri_pb2.ListContainersRequest.SerializeToString,
            response_deserializer=cri_pb2.ListContainersResponse.FromString,
        )
        containers = call(cri_pb2.ListContainersRequest(), timeout=5).containers
        if form == "json":
            print(
                json.dumps({"containers": [data(container) for container in containers]}, indent=2)
            )
        else:
            for container in containers:
                print(container.id)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(main)
    app()
