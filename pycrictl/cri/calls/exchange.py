"""Making one call over a connection of its own, and waiting for what comes of it.

On a socket of the same machine a connection costs less than a tenth of a millisecond.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator
from contextlib import suppress
from typing import Final

from pycrictl.cri.calls.diagnose import Obstacle, try_connect
from pycrictl.cri.calls.errmap import Status
from pycrictl.errors import RemoteProtocolError
from pycrictl.wire import codes
from pycrictl.wire.client_call import ClientCall

_READ_BYTES: Final = 256 * 1024
_LONGEST_WAIT_S: Final = 3600.0
"""The system cannot count up to what a deadline may be."""


def exchange(
    path: str, call: ClientCall, *, timeout_s: float | None, handshake_s: float
) -> Generator[bytes, None, Status]:
    """Make a call, and yield the messages of its stream as they come.

    Ctrl-C, and closing the generator, cancel the call.

    Args:
        path: of the server's unix socket.
        call: which has not begun.
        timeout_s: the limit of all of it, None for none.
        handshake_s: how long the server may take to begin to speak.

    Returns:
        How it ended, whether the server said so or not.
    """
    now = time.monotonic()
    end_at = None if timeout_s is None else now + timeout_s
    ready_at = now + (handshake_s if timeout_s is None else min(timeout_s, handshake_s))
    connection = try_connect(path, ready_at - now)
    if isinstance(connection, Obstacle):
        return Status(codes.UNAVAILABLE, connection.reason)
    with connection:
        try:
            while call.answer is None:
                if failed := _step(connection, call, end_at if call.is_ready else ready_at):
                    is_late = end_at is not None and time.monotonic() >= end_at
                    late = Status(codes.DEADLINE_EXCEEDED, "Deadline Exceeded")
                    return late if is_late else failed
                while call.messages:
                    yield call.messages.popleft()
        finally:
            if call.answer is None:
                call.cancel()
                connection.setblocking(False)  # a server that reads nothing would hold this up
                with suppress(OSError):
                    connection.send(call.data_to_send())
    return Status(call.answer.code, call.answer.message, call.http_status)


def _step(connection: socket.socket, call: ClientCall, limit_at: float | None) -> Status | None:
    """Send what there is to send and wait for the server; what went wrong if anything did."""
    try:
        _set_timeout(connection, limit_at)
        with suppress(BrokenPipeError):  # what it has said before may tell why
            connection.sendall(call.data_to_send())
        data = _received(connection, limit_at)
        if not data:
            return Status(codes.UNAVAILABLE, "it closed the connection")
        call.receive_data(data, time.monotonic())
    except TimeoutError:
        return Status(codes.UNAVAILABLE, "it does not answer")
    except OSError as exc:
        reason = os.strerror(exc.errno or 0).lower()
        return Status(codes.UNAVAILABLE, f"the connection broke: {reason}")
    except RemoteProtocolError as exc:
        return Status(codes.UNAVAILABLE, exc.message)
    return None


def _received(connection: socket.socket, limit_at: float | None) -> bytes:
    while True:
        try:
            return connection.recv(_READ_BYTES)
        except TimeoutError:
            if limit_at is not None and time.monotonic() >= limit_at:
                raise
            _set_timeout(connection, limit_at)


def _set_timeout(connection: socket.socket, limit_at: float | None) -> None:
    left_s = _LONGEST_WAIT_S if limit_at is None else limit_at - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    connection.settimeout(min(left_s, _LONGEST_WAIT_S))
