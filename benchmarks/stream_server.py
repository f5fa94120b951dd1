"""A runtime that streams a list of containers, as fast as a server in Python can.

    python -m benchmarks.stream_server SOCKET

Writes a line when it is ready and ends when its standard input does.
"""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from benchmarks.serving import serve
from pycrictl._proto import cri_pb2

CONTAINERS = 1000


def _messages() -> list[bytes]:
    """Each container is a message of its own, already serialised."""
    found = []
    for number in range(CONTAINERS):
        container = cri_pb2.Container(
            id=f"{number:064x}",
            pod_sandbox_id=f"{number // 3:064x}",
            metadata=cri_pb2.ContainerMetadata(name=f"container-{number}"),
            image=cri_pb2.ImageSpec(image=f"registry.example/team/app-{number}:1"),
            state=cri_pb2.CONTAINER_RUNNING,
            labels={f"example.io/label-{index}": "value" * 4 for index in range(6)},
        )
        response = cri_pb2.ListContainersResponse(containers=[container])
        found.append(response.SerializeToString())
    return found


def main() -> None:
    messages = _messages()

    def stream(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        return iter(messages)

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(stream)
    serve("RuntimeService", {"StreamContainers": handler})


if __name__ == "__main__":
    main()
