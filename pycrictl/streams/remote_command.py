"""Remote commands (exec, attach) from the stream URL to the outcome."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from http import HTTPStatus
from typing import Final, Literal

from websockets.http11 import Response

from pycrictl.base.environ import Environment
from pycrictl.base.errors import (
    PycrictlError,
    RemoteProtocolError,
    RuntimeFault,
    UpgradeRefused,
)
from pycrictl.streams.bytestream import ByteStream, dial
from pycrictl.streams.loop import in_thread, run_in_loop
from pycrictl.streams.opening import Exchange
from pycrictl.streams.pump import Ends, Input, Output, Pump, Terminal
from pycrictl.streams.target import Target, TlsFiles, parse_url
from pycrictl.streams.wire.command import PROTOCOL, ExitReported, Streams, remote_command
from pycrictl.streams.wire.websocket import ClientHandshake

Transport = Literal["spdy", "websocket"]

_SPDY_UPGRADE: Final = "SPDY/3.1"
_PROTOCOL_FIELD: Final = "X-Stream-Protocol-Version"


async def open_transport(
    transport: Transport,
    url: str,
    protocol: str,
    *,
    timeout_s: float,
    tls: TlsFiles | None = None,
) -> ByteStream:
    """Connect to a stream URL and upgrade; return the connection.

    The caller closes or aborts the connection. The URL is used up afterwards, even if the server
    refuses. ``timeout_s`` limits connecting, and then the response.
    """
    target = parse_url(url)
    if transport == "websocket":
        handshake = ClientHandshake(protocol)
        method, fields, check = "GET", handshake.headers, handshake.check
    else:
        upgrade = [("Connection", "Upgrade"), ("Upgrade", _SPDY_UPGRADE)]
        fields = [*upgrade, (_PROTOCOL_FIELD, protocol)]
        method, check = "POST", partial(_check_spdy, target, protocol)
    connection = await dial(target, timeout_s=timeout_s, tls=tls)
    try:
        exchange = Exchange(connection, target, method, fields)
        response = await exchange.request(timeout_s=timeout_s)
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            raise await exchange.refused()
        check(response)
        return connection
    except BaseException:
        connection.abort()
        raise


def _check_spdy(target: Target, protocol: str, response: Response) -> None:
    upgrades = [name.upper() for name in response.headers.get_all("Upgrade")]
    protocols = response.headers.get_all(_PROTOCOL_FIELD)
    if (upgrades, protocols) != ([_SPDY_UPGRADE], [protocol]):
        raise RemoteProtocolError(f'"{target.label}" chose a protocol that was not offered')


def usable(wanted: Transport, streams: Streams, *, is_attach: bool = False) -> Transport:
    """Return the wanted transport, or SPDY where WebSocket cannot do what is needed.

    WebSocket cannot end a standard input: a command that reads it to the end would never exit,
    unless it has a terminal, where a key ends it. Nor can WebSocket omit standard input: if
    it was not requested, the server ends it, and a container that we attach to may then exit.
    """
    needs_spdy = (streams.stdin and not streams.tty) or (is_attach and not streams.stdin)
    return "spdy" if needs_spdy else wanted


async def run_command(
    ask_url: Callable[[], str],
    streams: Streams,
    ends: Ends,
    *,
    transport: Transport = "spdy",
    timeout_s: float,
    opening_s: float = 30.0,
    tls: TlsFiles | None = None,
) -> ExitReported | None:
    """Run a command to its end; return its outcome, None if the user left with the detach keys.

    Args:
        ask_url: requests a stream URL from the runtime. Called in a thread.
        transport: as returned by ``usable``.
        timeout_s: limits connecting, and then the response.
        opening_s: how long the server may then take to open the streams.
    """
    url = await in_thread(ask_url)
    try:
        connection = await open_transport(transport, url, PROTOCOL, timeout_s=timeout_s, tls=tls)
    except UpgradeRefused as exc:
        exc.hint = exc.hint or (None if transport == "spdy" else "use --transport spdy")
        raise
    try:
        core = remote_command(transport, streams)
        outcome = await Pump(connection, core, ends, opening_s=opening_s).run()
        core.connection.close()
        connection.send(core.connection.data_to_send())
        await connection.close()
        return outcome
    finally:
        connection.abort()


Outcome = ExitReported | PycrictlError | None
"""The outcome of a command; None if the user left it with the detach keys."""


def stream_all(
    env: Environment,
    ask_urls: Sequence[Callable[[], str]],
    streams: Streams,
    *,
    wanted: Transport = "spdy",
    is_attach: bool = False,
    timeout_s: float,
    tls: TlsFiles | None = None,
    spares: Callable[[int], bool] | None = None,
) -> list[Outcome]:
    """Run commands concurrently until all have ended, even if some of them fail.

    With a terminal or standard input there must be only one command. Once the runtime has returned
    a URL, signals for which ``spares`` returns true are ignored.
    """
    is_up = False
    transport = usable(wanted, streams, is_attach=is_attach)
    if transport != wanted:
        env.warn("this runtime's WebSocket cannot signal the end of standard input; using SPDY")

    def ask(ask_url: Callable[[], str]) -> str:
        nonlocal is_up
        url = ask_url()
        is_up = True
        return url

    async def run(ask_url: Callable[[], str], ends: Ends) -> Outcome:
        try:
            return await run_command(
                partial(ask, ask_url),
                streams,
                ends,
                transport=transport,
                timeout_s=timeout_s,
                tls=tls,
            )
        except PycrictlError as error:
            return error

    async def run_all(terminal: Terminal | None) -> list[Outcome]:
        stdout, stderr = Output(env.stdout), Output(env.stderr)
        stdin = Input(env.stdin) if streams.stdin else None
        ends = Ends(stdout, stderr, stdin, terminal)
        outcomes = await asyncio.gather(*(run(ask_url, ends) for ask_url in ask_urls))
        await stdout.finish()
        await stderr.finish()
        return outcomes

    screen = env.stdout.fileno() if streams.tty and env.stdout.isatty() else None
    with Terminal(env.stdin.fileno(), screen=screen) if streams.tty else nullcontext() as terminal:
        return run_in_loop(
            run_all(terminal), spares=lambda number: is_up and spares is not None and spares(number)
        )


class CommandMissing(RuntimeFault):
    exit_code = 127


class CommandRefused(RuntimeFault):
    exit_code = 126


_NO_SHELL: Final = r'exec: "(?:[^"]*/)?(?:ba|da|a|z|k)?sh": '


def not_started(action: str, outcome: ExitReported) -> PycrictlError:
    """Return the error for a command that did not start, with the exit status that shells use."""
    details = outcome.message
    hint = None
    if re.search(_NO_SHELL, details):
        hint = (
            "the container has no shell: 'pycrictl cp' copies files without one,"
            " and 'pycrictl debug' provides one"
        )
    message = f"{action}: {details}"
    if "executable file not found" in details or "no such file or directory" in details:
        return CommandMissing(message, details=details, hint=hint)
    if "permission denied" in details:
        return CommandRefused(message, details=details)
    return RuntimeFault(message, details=details)
