"""One remote command (exec, attach) from the stream URL to its outcome."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from pycrictl.errors import UpgradeRefused
from pycrictl.streaming.dial import TlsFiles
from pycrictl.streaming.pump import Ends, pump
from pycrictl.streaming.transport import Opened, Transport, open_transport
from pycrictl.wire.channels import SPDY_PROTOCOLS, WEBSOCKET_PROTOCOLS, remote_command
from pycrictl.wire.command import ExitReported, Streams

__all__ = ["Choice", "run_command", "run_session"]

Choice = Literal["auto", "spdy", "websocket"]

T = TypeVar("T")


def attempts(choice: Choice, streams: Streams) -> list[tuple[Transport, tuple[str, ...]]]:
    """What to try one after the other: a transport, and the protocols to offer on it.

    Only the newest WebSocket protocol can end a standard input, so with one the others are left
    to those who ask for WebSocket by name.
    """
    spdy: tuple[Transport, tuple[str, ...]] = ("spdy", SPDY_PROTOCOLS)
    if choice == "spdy":
        return [spdy]
    if choice == "websocket":
        return [("websocket", WEBSOCKET_PROTOCOLS)]
    return [("websocket", WEBSOCKET_PROTOCOLS[:1] if streams.stdin else WEBSOCKET_PROTOCOLS), spdy]


async def run_command(
    ask_url: Callable[[], str],
    streams: Streams,
    ends: Ends,
    *,
    choice: Choice = "auto",
    timeout_s: float,
    tls: TlsFiles | None = None,
) -> ExitReported | None:
    """Run a command to its end; return its outcome, None if the user left by the detach keys.

    Args:
        ask_url: asks the runtime for a stream URL. Called in a thread, once for each transport
            that is tried, because a URL is good for one request.
        streams: exactly those that the URL was asked for with.
        timeout_s: limit for connecting. A command may take as long as it wants.

    Raises:
        StreamError: a transport was refused, or the connection broke.
        ConnectError: the server cannot be reached.
        OSError: our own output cannot be written.
    """
    opened = await _open(ask_url, streams, choice, timeout_s, tls)
    transport, connection = opened
    try:
        core = remote_command(transport, connection.protocol, streams)
        outcome = await pump(connection.wire, core, ends)
    except BaseException:
        connection.wire.abort()
        raise
    await connection.wire.close()
    return outcome


async def _open(
    ask_url: Callable[[], str],
    streams: Streams,
    choice: Choice,
    timeout_s: float,
    tls: TlsFiles | None,
) -> tuple[Transport, Opened]:
    *others, (transport, protocols) = attempts(choice, streams)
    for first, offered in others:
        url = await asyncio.to_thread(ask_url)
        try:
            opened = await open_transport(first, url, offered, timeout_s=timeout_s, tls=tls)
        except UpgradeRefused:
            continue
        return first, opened
    url = await asyncio.to_thread(ask_url)
    opened = await open_transport(transport, url, protocols, timeout_s=timeout_s, tls=tls)
    return transport, opened


def run_session(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop of its own. SIGINT and SIGTERM cancel it, and go on after that.

    Raises:
        KeyboardInterrupt: SIGINT came.
    """
    with asyncio.Runner() as runner, _terminable(runner.get_loop()):
        return runner.run(main)


@contextmanager
def _terminable(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_terminated = False

    def terminate() -> None:
        nonlocal is_terminated
        is_terminated = True
        for task in asyncio.all_tasks(loop):
            task.cancel()

    handler = signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, handler)
        if is_terminated:
            signal.raise_signal(signal.SIGTERM)
