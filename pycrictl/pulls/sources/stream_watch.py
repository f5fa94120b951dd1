"""Watches pulls through progress streams (KEP-5334), or a cluster's lists and watches.

The KEP leaves the transport open. Here a WebSocket is requested; a server without one answers 200
and sends newline-delimited JSON as the body of a plain response. Both are accepted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final

from pycrictl.base.errors import (
    ConnectError,
    NotFound,
    PycrictlError,
    RemoteProtocolError,
    RuntimeFault,
    StreamError,
    Unavailable,
    UpgradeRefused,
)
from pycrictl.base.units import plural
from pycrictl.pulls.messages import MAX_MESSAGE_BYTES, MessageReader
from pycrictl.pulls.sources.endings import Endings, Outcome, Pace, Sink, failures_in
from pycrictl.pulls.sources.failures import cause
from pycrictl.pulls.state import PullState, View
from pycrictl.pulls.tracker import Tracker
from pycrictl.streams.bytestream import ByteStream, dial
from pycrictl.streams.loop import in_thread, run_in_loop
from pycrictl.streams.opening import Exchange
from pycrictl.streams.target import Target, parse_url
from pycrictl.streams.wire.websocket import CLIENT, ClientHandshake, Messages

_LOST: Final = "it did not resume after the connection was lost"

# One stream


async def follow(
    url: str | Target,
    reader: MessageReader,
    *,
    on_pull: Callable[[PullState], None],
    on_note: Callable[[str], None],
    timeout_s: float,
) -> None:
    """Pass on the state of a pull after each message, until the server ends the stream cleanly.

    A clean end is a WebSocket closed with status 1000 or none, or the end of a plain response's
    body. ``on_note`` gets only the first message that is not a report. ``timeout_s`` applies
    to the connection, and again to the head of the response. After that a server may be silent
    forever.

    Raises:
        UpgradeRefused: the response was neither 101 nor 200.
        StreamError: the stream broke off; it may be resumed with a new URL.
    """
    target = parse_url(url) if isinstance(url, str) else url
    connection = await dial(target, timeout_s=timeout_s)
    try:
        handshake = ClientHandshake()
        exchange = Exchange(connection, target, "GET", handshake.headers)
        response = await exchange.request(timeout_s=timeout_s)
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            handshake.check(response)
            batches = _messages(connection, reader)
        elif response.status_code == HTTPStatus.OK:
            batches = _lines(exchange, reader)
        else:
            raise await exchange.refused()
        has_noted = False
        async for batch in batches:
            for pull in batch:
                on_pull(pull)
            if reader.first_bad is not None and not has_noted:
                has_noted = True
                on_note(f"skipped a message that is not a progress report: {reader.first_bad}")
        await connection.close()
    finally:
        connection.abort()


async def _lines(exchange: Exchange, reader: MessageReader) -> AsyncIterator[Iterable[PullState]]:
    while data := await exchange.read():
        yield reader.receive_data(data)
    yield reader.receive_eof()


async def _messages(
    connection: ByteStream, reader: MessageReader
) -> AsyncIterator[Iterable[PullState]]:
    peer = f'"{connection.label}"'
    core = Messages(CLIENT, max_bytes=MAX_MESSAGE_BYTES, peer=peer, takes_text=True)
    loop = asyncio.get_running_loop()
    while not core.is_over:
        if data := await connection.read():
            core.receive_data(data, loop.time())
        else:
            core.receive_eof()
        # Send nothing to a peer that does not read: it may itself be waiting for us to read.
        if not connection.is_full:
            connection.send(core.data_to_send())
        if messages := core.messages_received():
            yield filter(None, (reader.receive_message(bytes(message)) for message in messages))
    if core.error is not None:
        raise core.error


# A watch, which opens streams again


Follow = Callable[[Callable[["PullState"], None], Callable[[str], None]], Awaitable[None]]
"""Opens a stream and passes on its pulls, and notes about it, until it ends cleanly."""


class Unreachable(ConnectError):
    """The address of a stream cannot be reached."""


@dataclass(eq=False)
class _StreamWatch:
    follow_stream: Follow
    endings: Endings
    pace: Pace

    def __post_init__(self) -> None:
        self._tracker, self._sink = self.endings.tracker, self.endings.sink
        self._has_news = self._has_begun = self._has_seen = False
        self._broken_at: float | None = None
        self._tracker.is_known = False

    async def run(self) -> Outcome:
        async with asyncio.TaskGroup() as tasks:
            ticking = tasks.create_task(self._tick())
            try:
                await self._follow()
            finally:
                ticking.cancel()
        view = self._show()
        failures = failures_in(view)
        if unfinished := _unfinished(view):
            count = plural(sum(unfinished.values()), "layer")
            self._sink.note(
                f"the runtime says that nothing is being pulled any more; {count} did not finish"
            )
            if self._broken_at is not None:
                failures = {**dict.fromkeys(unfinished, _LOST), **failures}
        return failures if self._has_seen else None

    async def _tick(self) -> None:
        while True:
            self._show()
            await asyncio.sleep(self.pace.interval_s)

    def _show(self) -> View:
        now = time.monotonic()
        if self.pace.follow:
            return self.endings.show(now)
        view = self._tracker.view(now, time.time())
        self._sink.show(view)
        return view

    async def _follow(self) -> None:
        tries, pauses_s = 0, self.pace.reopen_pauses_s
        while True:
            self._has_news = False
            try:
                await self.follow_stream(self._receive, self._sink.note)
            except NotFound:
                if not self._tracker.pulls:
                    raise
                self._sink.note("the pod is gone")
                self._broken_at = None
                return
            except PycrictlError as exc:
                if not self._may_pass(exc):
                    raise
                tries = 0 if self._has_news else tries
                if tries == len(pauses_s):
                    # Other errors could be taken for a stream that is not offered.
                    raise StreamError(exc.message, hint=exc.hint) from exc
                self._broken_at = time.monotonic()
                self._tracker.drop_given_sums()
                if not tries:
                    self._sink.note(f"{exc.message}; connecting again")
                pause_s = pauses_s[tries]
                tries += 1
            else:
                tries, self._tracker.is_known = 0, True
                if self.pace.follow:
                    self.endings.show(time.monotonic(), is_final=True)
                elif (
                    self._broken_at is None
                    or time.monotonic() - self._broken_at >= self.pace.resume_s
                    or not _unfinished(self._show())
                ):
                    return
                pause_s = pauses_s[0]
            await asyncio.sleep(pause_s)

    def _may_pass(self, exc: PycrictlError) -> bool:
        """Return whether to retry; once the stream has worked, more kinds of errors allow it."""
        if isinstance(exc, ConnectError) and not self._has_begun:
            return False
        if isinstance(exc, UpgradeRefused | RuntimeFault) and not isinstance(exc, Unavailable):
            return self._has_begun
        is_broken = isinstance(exc, StreamError | ConnectError | Unavailable)
        return is_broken and not isinstance(exc, RemoteProtocolError)

    def _receive(self, pull: PullState) -> None:
        self._has_news = self._has_begun = self._tracker.is_known = True
        self._has_seen |= bool(pull.layers)
        if pull.error:
            pull = replace(pull, error=cause(pull.error))
        self.endings.track(pull, time.monotonic())


def _unfinished(view: View) -> dict[str, int]:
    """Return the number of unfinished layers of each pull that has some."""
    return {
        name: sum(not layer.is_finished for layer in pull.layers)
        for name, pull in view.pulls.items()
        if not pull.is_over
    }


def watch_stream(
    open_url: Callable[[], str | Target],
    tracker: Tracker,
    sink: Sink,
    *,
    timeout_s: float,
    pace: Pace,
) -> Outcome:
    """Watch a runtime's own stream; request a new URL whenever it breaks."""
    endings = Endings(tracker, sink)

    async def opened(on_pull: Callable[[PullState], None], on_note: Callable[[str], None]) -> None:
        url, reader = await in_thread(open_url), MessageReader(endings.known)
        try:
            await follow(url, reader, on_pull=on_pull, on_note=on_note, timeout_s=timeout_s)
        except ConnectError as exc:
            raise Unreachable(exc.message, hint=exc.hint) from exc

    return watch_pulls(opened, endings, pace=pace)


def watch_pulls(follow_stream: Follow, endings: Endings, *, pace: Pace) -> Outcome:
    """Watch streams until one ends cleanly; open another one whenever one breaks."""
    try:
        return run_in_loop(_StreamWatch(follow_stream, endings, pace).run())
    except ExceptionGroup as group:  # of the task group
        raise group.exceptions[0] from None
