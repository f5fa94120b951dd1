"""A runtime that streams a list of containers, as fast as a server in Python can.

    python -m benchmarks.stream_server SOCKET

Writes a line when it is ready and ends when its standard input does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

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

    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(stream)
    service = "runtime.v1.RuntimeService"
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {"StreamContainers": handler})]
    )
    server.add_insecure_port(f"unix://{sys.argv[1]}")
    server.start()
    print("ready", flush=True)
    sys.stdin.read()
    server.stop(0).wait()


if __name__ == "__main__":
    main()
