"""One remote command (exec, attach) from the stream URL to its outcome."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeVar

from pycrictl.errors import StreamError, UpgradeRefused
from pycrictl.streaming.pump import Ends, pump
from pycrictl.streaming.target import TlsFiles
from pycrictl.streaming.transport import Opened, Transport, Wire, open_transport
from pycrictl.wire.channels import SPDY_PROTOCOLS, WEBSOCKET_PROTOCOLS, remote_command
from pycrictl.wire.command import ExitReported, OutcomeUnknown, RemoteCommand, Streams

__all__ = ["Choice", "run_command", "run_session"]

SILENCE_S: Final = 30.0
"""How long a server may be silent where it is known to be its turn."""

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
    silence_s: float = SILENCE_S,
) -> ExitReported | None:
    """Run a command to its end; return its outcome, None if the user left by the detach keys.

    Args:
        ask_url: asks the runtime for a stream URL. Called in a thread, once for each transport
            that is tried, because a URL is good for one request.
        streams: exactly those that the URL was asked for with.
        timeout_s: limit for connecting. A command may take as long as it wants.
        silence_s: time for the server to open the streams; and how long it may be silent when it
            has told the ends of both outputs of a command with input, before and after a question
            whether it is there.

    Raises:
        OutcomeUnknown: the connection broke or ended without the outcome.
        StreamError: a transport was refused, or the peer broke the protocol.
        ConnectError: the server cannot be reached.
        OSError: our own output cannot be written.
    """
    opened = await _open(ask_url, streams, choice, timeout_s, tls)
    transport, connection = opened
    core: RemoteCommand | None = None
    try:
        core = remote_command(transport, connection.protocol, streams)
        note = ends.note if streams.stdin else None
        wire = _ImpatientWire(connection.wire, core, silence_s=silence_s, note=note)
        outcome = await pump(wire, core, ends)
    except BaseException as exc:
        connection.wire.abort()
        error = core.error if core is not None else None
        if isinstance(exc, StreamError) and isinstance(error, OutcomeUnknown) and exc is not error:
            raise OutcomeUnknown(f"{error.message}: {exc.message}") from exc
        raise
    await connection.wire.close()
    return outcome


class _ImpatientWire:
    """A wire that gives up on a server that is stuck.

    containerd 1.6 sometimes is when a command has ended with input unread: it goes on writing that
    into a pipe which nobody empties, and never tells the outcome. A command that closes its outputs
    and works on looks the same, so what decides is whether the server takes anything at all.

    Args:
        silence_s: how long it may be silent while it is its turn.
        note: is told once that the outcome stays away; None for a command without input.
    """

    def __init__(
        self,
        wire: Wire,
        core: RemoteCommand,
        *,
        silence_s: float,
        note: Callable[[str], None] | None,
    ) -> None:
        self._wire = wire
        self._core = core
        self._silence_s = silence_s
        self._note = note
        self._has_input = note is not None
        self._drained = 0
        self.send = wire.send
        self.close = wire.close
        self.abort = wire.abort

    async def read(self) -> list[bytes | memoryview]:
        is_asked = False
        while not self._core.is_ready or (self._has_input and self._core.awaits_outcome_only):
            drained = self._drained
            try:
                async with asyncio.timeout(self._silence_s):
                    return await self._wire.read()
            except TimeoutError:
                pass
            if not self._core.is_ready:
                raise StreamError("it does not open the streams")
            if drained != self._drained:
                continue
            if is_asked:
                raise StreamError("it neither takes input nor answers")
            is_asked = True
            self._ask()
        return await self._wire.read()

    async def drain(self) -> None:
        await self._wire.drain()
        self._drained += 1

    def _ask(self) -> None:
        if self._note is not None:
            self._note(
                "the command has closed its outputs, but the runtime sends no exit status;"
                " Ctrl-C ends the waiting"
            )
            self._note = None
        self._core.ping()
        self._wire.send(self._core.data_to_send())


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
