"""A relay in front of a runtime's socket that notes what its clients call."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import grpc

OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1024 * 1024),
    ("grpc.absolute_max_metadata_size", 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
)
_FOREVER_S: Final = 1e8
_THREADS: Final = 64


@dataclass
class Call:
    """One call, as its client made it.

    Attributes:
        path: of its method, such as ``/runtime.v1.ImageService/ListImages``.
        timeout_s: the deadline that the client gave it; None without one.
        message: the first message of the request, serialised.
    """

    path: str
    timeout_s: float | None
    message: bytes = field(default=b"", repr=False)


class Recorder(grpc.GenericRpcHandler):
    """A context manager that relays calls to ``path`` to the socket at ``upstream``.

    A call is noted before it is passed on: who has its answer finds it in ``calls``.

    Attributes:
        path: of the relay's socket.
        calls: all calls so far, in the order of their arrival, whatever the connection.
    """

    def __init__(self, upstream: Path, path: Path) -> None:
        self.path = path
        self.calls: list[Call] = []
        self._upstream = upstream

    @property
    def endpoint(self) -> str:
        return f"unix://{self.path}"

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        path = handler_call_details.method

        def relay(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            remaining_s = context.time_remaining()
            timeout_s = remaining_s if remaining_s and remaining_s < _FOREVER_S else None
            request = next(requests, b"")
            self.calls.append(Call(path, timeout_s, request))
            call = self._channel.unary_stream(path)(
                request, timeout=timeout_s, metadata=_passed_on(context)
            )
            context.add_callback(call.cancel)
            try:
                yield from call
            except grpc.RpcError:
                context.set_trailing_metadata(tuple(call.trailing_metadata() or ()))
                context.abort(call.code(), call.details() or "")

        return grpc.stream_stream_rpc_method_handler(relay)

    def __enter__(self) -> Self:
        self.path.unlink(missing_ok=True)
        self._channel: Any = grpc.insecure_channel(f"unix:{self._upstream}", options=OPTIONS)
        self._server = grpc.server(ThreadPoolExecutor(_THREADS), options=OPTIONS)
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(f"unix:{self.path}")
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()
        self._channel.close()


def _passed_on(context: grpc.ServicerContext) -> tuple[tuple[str, str | bytes], ...]:
    pairs = context.invocation_metadata() or ()
    return tuple((key, value) for key, value in pairs if key != "user-agent")
