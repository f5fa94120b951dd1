"""Opens the URL of a copy stream, as its client.

The rules are those of ``streaming.dial`` and ``streaming.websocket``, which serve the other streams
by asyncio; this one is for a thread that blocks (see ``copy.messages``).
"""

from __future__ import annotations

import socket
import time
from typing import Final

from pycrictl.copy.stream.messages import PROTOCOL, Messages
from pycrictl.errors import ConnectError, RemoteProtocolError, StreamError, UpgradeRefused
from pycrictl.streaming.target import Target, TlsFiles, parse_url, reason_of, tls_context
from pycrictl.streaming.upgrade import Upgrade
from pycrictl.units import quote
from pycrictl.wire.http1 import (
    DataReceived,
    ResponseParser,
    ResponseReceived,
    serialize_request,
)

_READ_BYTES: Final = 16384
_REFUSAL_S: Final = 1.0
_MAX_REFUSAL_BYTES: Final = 1024
_MAX_REFUSAL_CHARACTERS: Final = 200


def open_stream(
    url: str, *, timeout_s: float, idle_s: float, tls: TlsFiles | None = None
) -> Messages:
    """Connect and upgrade. The URL is spent afterwards, also when the server refuses.

    Args:
        url: http, https, ws or wss.
        timeout_s: limit for connecting, and again for the answer.
        idle_s: see ``Messages``.
        tls: as for ``streaming.dial.dial``.

    Raises:
        ConnectError: the server cannot be reached or does not answer in time.
        UpgradeRefused: it does not offer the stream.
        StreamError: the connection broke, or the answer is not one to the request.
        ConfigError: the files of ``tls`` cannot be used.
    """
    target = parse_url(url)
    sock = _connect(target, timeout_s, tls)
    try:
        early = _shake_hands(sock, target, timeout_s)
        return Messages(
            sock, label=quote(target.label), is_server=False, early=early, idle_s=idle_s
        )
    except BaseException:
        sock.close()
        raise


def _connect(target: Target, timeout_s: float, tls: TlsFiles | None) -> socket.socket:
    context = tls_context(tls) if target.is_tls else None
    try:
        sock = socket.create_connection((target.host, target.port), timeout_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is None:
                return sock
            server_name = (tls.server_name if tls else None) or target.host
            return context.wrap_socket(sock, server_hostname=server_name)
        except BaseException:
            sock.close()
            raise
    except TimeoutError as exc:
        reason = f"no connection within {timeout_s:g} s"
        raise ConnectError(f"cannot connect to {quote(target.label)}: {reason}") from exc
    except (OSError, UnicodeError) as exc:
        raise ConnectError(f"cannot connect to {quote(target.label)}: {reason_of(exc)}") from exc


def _shake_hands(sock: socket.socket, target: Target, timeout_s: float) -> bytes:
    """Return what came beyond the handshake."""
    upgrade = Upgrade([PROTOCOL])
    fields = [("Host", target.authority), ("User-Agent", "pycrictl"), *upgrade.headers]
    parser = ResponseParser()
    answer: ResponseReceived | None = None
    body = b""
    give_up_at = time.monotonic() + timeout_s
    try:
        sock.sendall(serialize_request("GET", target.path, fields))
        while not parser.is_finished and len(body) < _MAX_REFUSAL_BYTES:
            sock.settimeout(max(give_up_at - time.monotonic(), 0.001))
            if data := sock.recv(_READ_BYTES):
                parser.receive_data(data)
            else:
                parser.receive_eof()
            for event in parser.events_received():
                if isinstance(event, ResponseReceived):
                    answer = event
                    give_up_at = min(give_up_at, time.monotonic() + _REFUSAL_S)
                elif isinstance(event, DataReceived):
                    body += event.data
    except OSError as exc:
        if answer is None and isinstance(exc, TimeoutError):
            raise ConnectError(
                f"{quote(target.label)} accepts connections but does not answer"
                f" within {timeout_s:g} s"
            ) from exc
        if answer is None:
            reason = reason_of(exc)
            raise StreamError(f"the connection to {quote(target.label)} broke: {reason}") from exc
    if answer is None:
        error = parser.error or RemoteProtocolError("the answer is no HTTP response")
        raise type(error)(f"{error.message} (from {quote(target.label)})")
    if answer.status != 101:
        raise _refusal(target, answer, body)
    if upgrade.check(answer) != PROTOCOL:
        raise RemoteProtocolError(f"{quote(target.label)} does not speak {PROTOCOL}")
    return parser.leftover


def _refusal(target: Target, answer: ResponseReceived, body: bytes) -> UpgradeRefused:
    text = body[:_MAX_REFUSAL_BYTES].decode(errors="replace").strip() or answer.reason
    said = f": {quote(text, _MAX_REFUSAL_CHARACTERS)}" if text else ""
    return UpgradeRefused(
        f"{quote(target.label)} answered with status {answer.status}{said}", status=answer.status
    )
