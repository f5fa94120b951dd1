"""A gRPC server with a fixed list of images, so that nothing but the client's time varies.

    python -m benchmarks.image_server SOCKET

Writes a line when it is ready and ends when its standard input does.
"""

from __future__ import annotations

import grpc

from benchmarks.serving import serve
from pycrictl._proto import cri_pb2

IMAGES = 30


def _list_images(
    request: cri_pb2.ListImagesRequest, context: grpc.ServicerContext
) -> cri_pb2.ListImagesResponse:
    return cri_pb2.ListImagesResponse(
        images=[
            cri_pb2.Image(
                id=f"sha256:{number:064x}",
                repo_tags=[f"registry.example/team/app-{number}:1.{number}"],
                repo_digests=[f"registry.example/team/app-{number}@sha256:{number + 1:064x}"],
                size=1_000_003 * (number + 1),
            )
            for number in range(IMAGES)
        ]
    )


def main() -> None:
    methods = {
        "ListImages": grpc.unary_unary_rpc_method_handler(
            _list_images,
            request_deserializer=cri_pb2.ListImagesRequest.FromString,
            response_serializer=cri_pb2.ListImagesResponse.SerializeToString,
        )
    }
    serve("ImageService", methods)


if __name__ == "__main__":
    main()
