"""One remote command (exec, attach) from the stream URL to its outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

from pycrictl.base.errors import RemoteProtocolError, UpgradeRefused
from pycrictl.streams.bytestream import ByteStream, dial
from pycrictl.streams.loop import in_thread
from pycrictl.streams.opening import Exchange
from pycrictl.streams.pump import Ends, Pump
from pycrictl.streams.target import Target, TlsFiles, parse_url
from pycrictl.streams.wire.command import (
    SPDY_PROTOCOLS,
    WEBSOCKET_PROTOCOLS,
    ExitReported,
    Streams,
    remote_command,
)
from pycrictl.streams.wire.http1 import ResponseHead, tokens
from pycrictl.streams.wire.upgrade import ClientHandshake

Transport = Literal["spdy", "websocket"]

_SPDY_UPGRADE: Final = "SPDY/3.1"
_PROTOCOL_FIELD: Final = "X-Stream-Protocol-Version"


async def open_transport(
    transport: Transport,
    url: str,
    protocols: Sequence[str],
    *,
    timeout_s: float,
    tls: TlsFiles | None = None,
) -> tuple[ByteStream, str]:
    """Connect to a stream URL and upgrade; return the connection and the protocol chosen.

    The caller closes or aborts the connection. The URL is used up afterwards, even if the server
    refuses. ``protocols`` are offered in their order; ``timeout_s`` limits connecting, and then the
    response.
    """
    target = parse_url(url)
    if transport == "websocket":
        handshake = ClientHandshake(protocols)
        method, fields, check = "GET", handshake.headers, handshake.check
    else:
        fields = [("Connection", "Upgrade"), ("Upgrade", _SPDY_UPGRADE)]
        fields += [(_PROTOCOL_FIELD, protocol) for protocol in protocols]
        method, check = "POST", partial(_spdy_protocol, target, protocols)
    connection = await dial(target, timeout_s=timeout_s, tls=tls)
    try:
        exchange = Exchange(connection, target, method, fields)
        response = await exchange.request(timeout_s=timeout_s)
        if response.status != 101:
            raise await exchange.refused()
        return connection, check(response)
    except BaseException:
        connection.abort()
        raise


def _spdy_protocol(target: Target, protocols: Sequence[str], response: ResponseHead) -> str:
    chosen = response.headers.get_all(_PROTOCOL_FIELD)
    is_spdy = _SPDY_UPGRADE.lower() in tokens(response.headers, "Upgrade")
    if not is_spdy or len(chosen) != 1 or chosen[0] not in protocols:
        raise RemoteProtocolError(f'"{target.label}" chose a protocol that was not offered')
    return chosen[0]


SILENCE_S: Final = 30.0
"""How long a server may be silent when a response is known to be due."""

Choice = Literal["auto", "spdy", "websocket"]
Attempt = tuple[Transport, tuple[str, ...]]

_SPDY: Final[Attempt] = ("spdy", SPDY_PROTOCOLS)
_WEBSOCKET: Final[Attempt] = ("websocket", WEBSOCKET_PROTOCOLS)
_NEWEST_WEBSOCKET: Final[Attempt] = ("websocket", WEBSOCKET_PROTOCOLS[:1])


def attempts(choice: Choice, streams: Streams, *, is_attach: bool = False) -> list[Attempt]:
    """Return the attempts in order: a transport, and the protocols to offer on it.

    Only the newest WebSocket protocol can end a standard input, so for a command with one, the
    others are offered only if WebSocket is chosen and a terminal ends the input by a character.
    Without them, a command that waits for the end of its input would never end.

    With the older protocols, the server treats a standard input that was not requested as open and
    ended. For a command of our own this is the same as no input. But it may end the input that
    keeps a container alive, so those protocols are not offered if we only attach without input.
    """
    if choice == "spdy":
        return [_SPDY]
    if streams.stdin:
        only_newest = choice == "auto" or not streams.tty
    else:
        only_newest = is_attach
    websocket = _NEWEST_WEBSOCKET if only_newest else _WEBSOCKET
    has_other = choice == "auto" or (only_newest and streams.stdin)
    return [websocket, _SPDY] if has_other else [websocket]


async def run_command(
    ask_url: Callable[[], str],
    streams: Streams,
    ends: Ends,
    *,
    choice: Choice = "auto",
    is_attach: bool = False,
    timeout_s: float,
    tls: TlsFiles | None = None,
    silence_s: float = SILENCE_S,
) -> ExitReported | None:
    """Run a command to its end; return its outcome, None if the user left with the detach keys.

    Args:
        ask_url: requests a stream URL from the runtime. Called in a thread, once for each
            transport that is tried, because a URL is valid for one request.
        is_attach: the command runs already, and is not ours to end.
        silence_s: time for the server to open the streams; and how long it may be silent after it
            has ended the outputs of a command with input, before we ping it and again after that.
    """
    tried = attempts(choice, streams, is_attach=is_attach)
    transport, connection, protocol = await _open(ask_url, tried, timeout_s, tls)
    if choice == "websocket" and transport == "spdy":
        ends.note("WebSocket of this runtime cannot signal the end of standard input; using SPDY")
    try:
        core = remote_command(transport, protocol, streams)
        outcome = await Pump(connection, core, ends, silence_s=silence_s).run()
        core.connection.close()
        connection.send(core.connection.data_to_send())
        await connection.close()
        return outcome
    finally:
        connection.abort()


async def _open(
    ask_url: Callable[[], str], tried: Sequence[Attempt], timeout_s: float, tls: TlsFiles | None
) -> tuple[Transport, ByteStream, str]:
    for transport, protocols in tried:
        url = await in_thread(ask_url)
        try:
            opened = await open_transport(transport, url, protocols, timeout_s=timeout_s, tls=tls)
        except UpgradeRefused as exc:
            if (transport, protocols) == tried[-1]:
                exc.hint = exc.hint or (None if transport == "spdy" else "use --transport spdy")
                raise
        else:
            return transport, *opened
    raise AssertionError("nothing was tried")
