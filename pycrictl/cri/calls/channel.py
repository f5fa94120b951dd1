"""Calls by gRPC's own library: those that last, and containerd's, many over one connection.

Its import takes longer than most calls, so only ``transport`` imports this, for those.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Final, Self

import grpc

from pycrictl.cri.calls.errmap import Status
from pycrictl.cri.calls.obstacle import Obstacle
from pycrictl.errors import ConnectError
from pycrictl.signals import undisturbed
from pycrictl.units import quote
from pycrictl.wire import codes, limits
from pycrictl.wire.grpc_http2 import Metadata

DESCRIPTORS: Final = 6
"""How many the library must be able to open: it ends the whole program if it cannot."""

_UNREACHED: Final = (codes.UNAVAILABLE, codes.DEADLINE_EXCEEDED)
_ENDS: Final = (grpc.RpcError, grpc.FutureCancelledError)


class Channel:
    """A connection to one unix socket that calls share; it is made again when it breaks.

    Args:
        path: of the socket, absolute.
        look: returns what keeps a server from answering there, None if it answers.
        handshake_s: how long the server may take to begin to speak.

    Raises:
        ConnectError: too few descriptors are left.
    """

    def __init__(
        self, path: str, *, look: Callable[[], Obstacle | None], handshake_s: float
    ) -> None:
        self.look = look
        _check_descriptors(path)
        self.grpc = grpc.insecure_channel(
            _target(path),
            options=(
                ("grpc.default_authority", "localhost"),
                ("grpc.max_receive_message_length", limits.MESSAGE_BYTES),
                ("grpc.max_send_message_length", limits.MESSAGE_BYTES),
                ("grpc.primary_user_agent", "pycrictl"),
                ("grpc.enable_http_proxy", 0),
                ("grpc.enable_retries", 0),
                ("grpc.service_config_disable_resolution", 1),
                # Clients must not share a connection, or a failure of one delays another.
                ("grpc.use_local_subchannel_pool", 1),
                # The default would rule calls without a deadline, such as PullImage, on a runtime
                # that hangs.
                ("grpc.min_reconnect_backoff_ms", int(handshake_s * 1000)),
            ),
        )

    def close(self) -> None:
        """End its calls and the connection."""
        with undisturbed():
            self.grpc.close()


class ChannelCall:
    """One call over a channel, in the manner of ``transport.Connection``.

    Args:
        channel: carries the call.
        method: full path of the method.
        message: the serialised request.
        metadata: what goes with it.
        timeout_s: limit of the call, None for none.
        is_stream: the server answers with any number of messages instead of one.
        owns_channel: whether the channel is closed when the call has ended.

    Attributes:
        status: how the call ended; None until then.
    """

    def __init__(
        self,
        channel: Channel,
        method: str,
        message: bytes,
        *,
        metadata: Metadata = (),
        timeout_s: float | None,
        is_stream: bool,
        owns_channel: bool = False,
    ) -> None:
        self.status: Status | None = None
        self._channel = channel
        self._owns_channel = owns_channel
        self._is_stream = is_stream
        self._is_cancelled = False
        terms: dict[str, Any] = {"timeout": timeout_s, "metadata": metadata}
        # gRPC that is interrupted while it begins or cancels a call would not see the end of that,
        # and a channel waits for the ends of all its calls when it is closed.
        with undisturbed():
            if is_stream:
                stream: grpc.UnaryStreamMultiCallable[bytes, bytes]
                stream = channel.grpc.unary_stream(method)
                self._call: Any = stream(message, **terms)
            else:
                unary: grpc.UnaryUnaryMultiCallable[bytes, bytes]
                unary = channel.grpc.unary_unary(method)
                self._call = unary.future(message, **terms)

    def messages(self) -> Generator[bytes, None, None]:
        """Yield what the server answers, until the call has ended."""
        with self:
            with suppress(*_ENDS):
                if self._is_stream:
                    yield from self._call
                else:
                    yield self._call.result()
            self._end()

    def receive(self, until: float = math.inf) -> None:
        """Wait for the end of a call with one answer.

        Args:
            until: when to return if it has not ended, on the monotonic clock.
        """
        timeout_s = None if until == math.inf else max(0.0, until - time.monotonic())
        try:
            self._call.result(timeout_s)
        except grpc.FutureTimeoutError:
            return
        except _ENDS:
            pass
        self._end()

    def cancel(self) -> None:
        """Cancel the call, from any thread; nothing happens when it has ended."""
        if self.status is None:
            self._is_cancelled = True
            with undisturbed():
                self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        if self._owns_channel:
            self._channel.close()

    def _end(self) -> None:
        if self._is_cancelled:
            self.status = Status(codes.CANCELLED)
            return
        code = self._call.code().value[0]
        # Whether the server said so or was not reached stands in gRPC's prose only: look again.
        obstacle = self._channel.look() if code in _UNREACHED else None
        self.status = Status(code, self._call.details() or "", obstacle)


def _check_descriptors(path: str) -> None:
    taken: list[int] = []
    try:
        for _ in range(DESCRIPTORS // 2):
            taken += os.pipe()
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise ConnectError(f"cannot connect to {quote(path, 4096)}: {reason}") from None
    finally:
        for descriptor in taken:
            os.close(descriptor)


def _target(path: str) -> str:
    """Return the socket of an absolute path as gRPC wants it: a URI, odd characters escaped."""
    if re.fullmatch(r"[A-Za-z0-9/._-]+", path):
        return f"unix:{path}"
    from urllib.parse import quote as percent_encoded

    return f"unix:{percent_encoded(os.fsencode(path))}"
