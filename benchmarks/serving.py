"""What the servers of the benchmarks have in common."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc


def serve(
    service: str, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]], *, ready: str = "ready"
) -> None:
    """Serve a service of ``runtime.v1`` on the socket that the program's first argument names.

    Print the line ``ready`` when clients may connect, and return at the end of standard input.
    """
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(f"runtime.v1.{service}", dict(methods))]
    )
    server.add_insecure_port(f"unix://{sys.argv[1]}")
    server.start()
    print(ready, flush=True)
    sys.stdin.read()
    server.stop(0).wait()
