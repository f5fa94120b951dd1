"""Yardstick for short commands: minimal Python that runs one and reads its outcome.

python benchmarks/bare_exec.py SOCKET CONTAINER-ID COMMAND...
"""

from __future__ import annotations

import json
import sys

import grpc
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from pycrictl._proto import cri_pb2

PROTOCOLS = [Subprotocol("v5.channel.k8s.io"), Subprotocol("v4.channel.k8s.io")]
STATUS_CHANNEL = 3


def main() -> None:
    socket, container_id, *command = sys.argv[1:]
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        call = channel.unary_unary(
            "/runtime.v1.RuntimeService/Exec",
            request_serializer=cri_pb2.ExecRequest.SerializeToString,
            response_deserializer=cri_pb2.ExecResponse.FromString,
        )
        request = cri_pb2.ExecRequest(
            container_id=container_id, cmd=command, stdout=True, stderr=True
        )
        url = call(request, timeout=5).url
    with connect("ws" + url.removeprefix("http"), subprotocols=PROTOCOLS) as stream:
        try:
            while True:
                message = stream.recv()
                assert isinstance(message, bytes)
                if message[0] == STATUS_CHANNEL:
                    status = json.loads(message[1:])
                    sys.exit(status["status"] != "Success")
                sys.stdout.buffer.write(message[1:])
        except ConnectionClosed:
            sys.exit("the connection ended before the outcome was known")


if __name__ == "__main__":
    main()
