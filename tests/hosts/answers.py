"""Answers of the runtimes behind test hosts."""

from __future__ import annotations

from pycrictl._proto import cri_pb2


def containers(*names: str, image: str = "busybox") -> cri_pb2.ListContainersResponse:
    return cri_pb2.ListContainersResponse(
        containers=[
            cri_pb2.Container(
                id=f"{number:x}" * 64,
                metadata=cri_pb2.ContainerMetadata(name=name),
                state=cri_pb2.CONTAINER_RUNNING,
                created_at=1,
                image=cri_pb2.ImageSpec(image=image),
                labels={"io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "ns"},
            )
            for number, name in enumerate(names, 1)
        ]
    )


def images(*names: str) -> cri_pb2.ListImagesResponse:
    made = [
        cri_pb2.Image(id=f"sha256:{number:x}".ljust(71, "0"), repo_tags=[name], size=1000)
        for number, name in enumerate(names, 1)
    ]
    return cri_pb2.ListImagesResponse(images=made)
