"""Calls to a gRPC server by grpcio: the one client of the CRI and of containerd.

gRPC's messages about an unreachable server are written for programmers. So after a failed call,
``errmap.probe`` checks the socket again and returns a readable reason.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any, Final, Self, TypeAlias
from urllib.parse import quote as percent_encoded

from pycrictl.base import limits
from pycrictl.base.errors import ConnectError, reason_of
from pycrictl.base.signals import blocked, undisturbed
from pycrictl.base.units import quote_path
from pycrictl.runtime.cri.calls.errmap import Status, probe
from pycrictl.streams.wire import codes

Metadata: TypeAlias = tuple[tuple[str, str], ...]

DESCRIPTORS: Final = 6
"""How many descriptors gRPC must be able to open: otherwise it aborts the whole program."""

LONGEST_HANDSHAKE_S: Final = 20.0
"""Maximum time for the handshake: otherwise a hanging server would block calls that have no
deadline, such as PullImage."""

_PROBE_S: Final = 1.0
"""Maximum time to look for the obstacle behind a failed call."""

_LAST_PROBE_S: Final = 0.05
"""The same if the call has used up its time: enough for a server that is alive to answer."""

_LONGEST_S: Final = 1e9
"""Thirty years; gRPC's clock cannot represent all deadlines that callers may set."""

_UNREACHED: Final = (codes.UNAVAILABLE, codes.DEADLINE_EXCEEDED)


class GrpcChannel:
    """A connection to a unix socket, by its absolute path, shared by calls of any thread.

    It reconnects when it breaks.

    Raises:
        ConnectError: too few file descriptors are left.
    """

    def __init__(self, path: str, *, handshake_s: float = LONGEST_HANDSHAKE_S) -> None:
        self.path = path
        target = f"unix:{percent_encoded(os.fsencode(path))}"
        _check_descriptors(target)
        self.handshake_s = handshake_s = min(max(handshake_s, 0.1), LONGEST_HANDSHAKE_S)
        options = (
            ("grpc.default_authority", "localhost"),
            ("grpc.max_receive_message_length", limits.MESSAGE_BYTES),
            ("grpc.max_send_message_length", limits.MESSAGE_BYTES),
            ("grpc.primary_user_agent", "pycrictl"),
            ("grpc.enable_http_proxy", 0),
            ("grpc.service_config_disable_resolution", 1),
            # Clients must not share a connection: a failure of one would delay the others.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.min_reconnect_backoff_ms", int(handshake_s * 1000)),
        )
        with blocked():
            self.grpc = _library().insecure_channel(target, options)

    def close(self) -> None:
        """End all calls and close the connection."""
        with undisturbed():
            self.grpc.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class GrpcCall:
    """One call; as a context manager, it is cancelled on exit if it has not ended.

    Messages from an iterator are sent as fast as the server takes them. The iterator runs in
    another thread and must not raise.

    ``status`` is the result of the call, None until it has ended.
    """

    def __init__(
        self,
        channel: GrpcChannel,
        method: str,
        message: bytes | Iterator[bytes],
        *,
        metadata: Metadata = (),
        timeout_s: float | None,
        is_stream: bool = False,
    ) -> None:
        self.status: Status | None = None
        self._channel = channel
        self._is_stream = is_stream
        self._is_cancelled = False
        if timeout_s is not None and timeout_s > _LONGEST_S:
            timeout_s = None
        # A connection that is not made in time ends the call before its own deadline.
        limits_s = (channel.handshake_s, math.inf if timeout_s is None else timeout_s)
        self._give_up_at = time.monotonic() + min(limits_s)
        terms: dict[str, Any] = {"timeout": timeout_s, "metadata": metadata}
        # If gRPC is interrupted while it starts or cancels a call, it misses the call's end, and
        # closing a channel waits for the ends of all its calls.
        with undisturbed(), blocked():
            if not isinstance(message, bytes):
                self._call: Any = channel.grpc.stream_stream(method)(message, **terms)
            elif is_stream:
                self._call = channel.grpc.unary_stream(method)(message, **terms)
            else:
                self._call = channel.grpc.unary_unary(method).future(message, **terms)

    @property
    def failure(self) -> Status | None:
        """The status if the call failed, else None."""
        return None if self.status is None or self.status.code == codes.OK else self.status

    def messages(self) -> Generator[bytes, None, None]:
        """Yield the messages of the answer until the call has ended."""
        with self:
            with suppress(*_ends()):
                if self._is_stream:
                    yield from self._call
                else:
                    yield self._call.result()
            self._end()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of a unary call; return whether it has ended."""
        if self.status is None:
            try:
                self._call.result(timeout_s)
            except _library().FutureTimeoutError:
                return False
            except _ends():
                pass
            self._end()
        return True

    def cancel(self) -> None:
        """Cancel the call, from any thread; does nothing if it has ended."""
        if self.status is None:
            self._is_cancelled = True
            with undisturbed():
                self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def _end(self) -> None:
        if self._is_cancelled:
            self.status = Status(codes.CANCELLED)
            return
        code, details = self._call.code().value[0], self._call.details() or ""
        obstacle = None
        if code in _UNREACHED:
            left_s = self._give_up_at - time.monotonic()
            limit_s = min(max(left_s, _LAST_PROBE_S), _PROBE_S)
            obstacle = probe(self._channel.path, limit_s)
        self.status = Status(code, details, obstacle)


def _library() -> Any:
    """Load gRPC with the first connection: help and completion often need none."""
    import grpc  # noqa: PLC0415

    return grpc


def _ends() -> tuple[type[Exception], ...]:
    """Return the errors with which gRPC ends a call."""
    grpc = _library()
    return grpc.RpcError, grpc.FutureCancelledError


def _check_descriptors(target: str) -> None:
    taken: list[int] = []
    try:
        for _ in range(DESCRIPTORS // 2):
            taken += os.pipe()
    except OSError as exc:
        reason = reason_of(exc)
        raise ConnectError(f"cannot connect to {quote_path(target)}: {reason}") from None
    finally:
        for descriptor in taken:
            os.close(descriptor)
