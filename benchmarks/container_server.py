"""A gRPC server with a fixed list of containers, so that nothing but the client's time varies.

    python -m benchmarks.container_server SOCKET COUNT

Writes a line when it is ready and ends when its standard input does.
"""

from __future__ import annotations

import sys

import grpc

from benchmarks.serving import serve
from pycrictl._proto import cri_pb2

NOW_NS = 1_795_209_010_000_000_000


def container(number: int) -> cri_pb2.Container:
    """A container as kubelet makes them."""
    return cri_pb2.Container(
        id=f"{number:064x}",
        pod_sandbox_id=f"{number // 2:064x}",
        metadata=cri_pb2.ContainerMetadata(name=f"app-{number}", attempt=number % 3),
        image=cri_pb2.ImageSpec(image=f"registry.example/team/app-{number % 40}:1.{number}"),
        image_ref=f"sha256:{number % 40:064x}",
        state=cri_pb2.CONTAINER_RUNNING,
        created_at=NOW_NS - number * 10**9,
        labels={
            "io.kubernetes.container.name": f"app-{number}",
            "io.kubernetes.pod.name": f"web-{number // 2}",
            "io.kubernetes.pod.namespace": f"team-{number % 7}",
            "io.kubernetes.pod.uid": f"11111111-aaaa-bbbb-cccc-{number // 2:012d}",
        },
        annotations={
            "io.kubernetes.container.hash": f"{number:08x}",
            "io.kubernetes.container.restartCount": "0",
            "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
            "io.kubernetes.container.terminationMessagePolicy": "File",
            "io.kubernetes.pod.terminationGracePeriod": "30",
        },
    )


def main() -> None:
    count = int(sys.argv[2])
    listed = cri_pb2.ListContainersResponse(containers=map(container, range(count)))
    answer = listed.SerializeToString()
    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "ListContainers": grpc.unary_unary_rpc_method_handler(lambda request, context: answer)
    }
    serve("RuntimeService", methods)


if __name__ == "__main__":
    main()
