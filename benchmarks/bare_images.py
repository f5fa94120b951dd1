"""The yardstick of process starts: the least Python that lists the images over gRPC.

python benchmarks/bare_images.py SOCKET
"""

from __future__ import annotations

import sys

import grpc

from pycrictl._proto import cri_pb2


def main() -> None:
    with grpc.insecure_channel(f"unix://{sys.argv[1]}") as channel:
        call = channel.unary_unary(
            "/runtime.v1.ImageService/ListImages",
            request_serializer=cri_pb2.ListImagesRequest.SerializeToString,
            response_deserializer=cri_pb2.ListImagesResponse.FromString,
        )
        for image in call(cri_pb2.ListImagesRequest(), timeout=2).images:
            print(*image.repo_tags, image.id, image.size)


if __name__ == "__main__":
    main()
