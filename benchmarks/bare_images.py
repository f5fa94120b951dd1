"""The yardstick of process starts: the least program of Typer and gRPC that lists images.

python benchmarks/bare_images.py SOCKET
"""

from __future__ import annotations

import grpc
import typer

from pycrictl._proto import cri_pb2


def main(socket: str) -> None:
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        call = channel.unary_unary(
            "/runtime.v1.ImageService/ListImages",
            request_serializer=cri_pb2.ListImagesRequest.SerializeToString,
            response_deserializer=cri_pb2.ListImagesResponse.FromString,
        )
        for image in call(cri_pb2.ListImagesRequest(), timeout=2).images:
            print(*image.repo_tags, image.id, image.size)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(main)
    app()
