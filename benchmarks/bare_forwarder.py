"""Yardstick for the proxy: a minimal forwarder of unary calls, in asyncio and gRPC alone.

python benchmarks/bare_forwarder.py RUNTIME-SOCKET SOCKET

Prints a line once it listens.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

# As in pycrictl: bytes change threads one time less.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

import grpc
from grpc import aio


class Forwarder(grpc.GenericRpcHandler):
    def __init__(self, runtime: str) -> None:
        options = (("grpc.default_authority", "localhost"),)
        self._channel = aio.insecure_channel(f"unix://{runtime}", options=options)
        self._handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        path = handler_call_details.method
        if path not in self._handlers:
            method: Any = self._channel.unary_unary(path)

            async def serve(request: bytes, context: Any) -> bytes:
                response: bytes = await method(request, timeout=context.time_remaining())
                return response

            self._handlers[path] = grpc.unary_unary_rpc_method_handler(serve)
        return self._handlers[path]


async def main(runtime: str, socket: str) -> None:
    server = aio.server()
    server.add_generic_rpc_handlers((Forwarder(runtime),))
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    print("listening", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
