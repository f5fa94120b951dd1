"""Calls that run while the program does something else, several over one connection: by gRPC.

Its import takes longer than most calls, so only what needs it pays for it.
"""

from __future__ import annotations

import os
import re
from typing import Any

import grpc

from pycrictl.cri.calls.call import Attempt
from pycrictl.cri.calls.errmap import status_of
from pycrictl.signals import undisturbed


def open_channel(path: str, *, handshake_s: float, limit_bytes: int) -> grpc.Channel:
    """A channel to the socket at an absolute path, which other channels do not share.

    Args:
        handshake_s: how long the server may take to begin to speak.
        limit_bytes: the largest message either way.
    """
    return grpc.insecure_channel(
        _target(path),
        options=(
            ("grpc.default_authority", "localhost"),
            ("grpc.max_receive_message_length", limit_bytes),
            ("grpc.max_send_message_length", limit_bytes),
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


class PendingCall:
    """A unary call that runs. Its methods are those of a ``grpc.Future`` that callers need."""

    def __init__(self, channel: grpc.Channel, request: bytes, attempt: Attempt) -> None:
        # The answer is decoded here: grpc would log a traceback when it cannot.
        remote: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            attempt.method.path
        )
        # gRPC that is interrupted while it begins or cancels a call would not see the end of that,
        # and a channel waits for the ends of all its calls when it is closed.
        with undisturbed():
            self._future = remote.future(
                request, timeout=attempt.deadline_s, metadata=attempt.metadata
            )
        self._attempt = attempt

    def done(self) -> bool:
        """Whether it has ended in any way."""
        return bool(self._future.done())

    def cancel(self) -> None:
        """Cancel it at the runtime; nothing happens when it has ended."""
        with undisturbed():
            self._future.cancel()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the answer, for ``timeout`` seconds or until it comes; Ctrl-C cancels the call.

        Raises:
            grpc.FutureTimeoutError: it has not ended yet, and goes on.
            PycrictlError: as ``CriClient.call``; ``Cancelled`` after ``cancel``.
        """
        future: Any = self._future
        try:
            answer = future.result(timeout=timeout)
        except grpc.FutureCancelledError:
            raise self._attempt.failure(status_of(future)) from None
        except grpc.RpcError as exc:
            raise self._attempt.failure(status_of(exc)) from None
        except KeyboardInterrupt:
            self.cancel()
            self._attempt.end("interrupted")
            raise
        self._attempt.end()
        return self._attempt.decoded(answer)


def _target(path: str) -> str:
    """The socket of an absolute path as gRPC wants it: a URI, so odd characters are escaped."""
    if re.fullmatch(r"[A-Za-z0-9/._-]+", path):
        return f"unix:{path}"
    from urllib.parse import quote as percent_encoded

    return f"unix:{percent_encoded(os.fsencode(path))}"
