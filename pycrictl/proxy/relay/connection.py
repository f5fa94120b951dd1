"""One client's connection, joined frame by frame to a connection to the runtime. Pure.

HTTP/2 frames pass unchanged, so everything in them does: unknown methods and fields, metadata,
deadlines, statuses, details, cancellation, and flow control, which reaches from one end to the
other. The exceptions are few:

- Request headers are decoded, because the path says whose call it is, and encoded again, because
  the runtime must not miss what an own call's headers changed in the compression table. The
  authority, which is the proxy's, becomes the one that runtimes expect on a unix socket.
- An *own* call never reaches the runtime: its frames end here, and ``answer`` makes others
  (``own_calls``). Data of the runtime that would not fit in the client's window beside them waits
  (``is_held``).
- A PING is answered by the proxy, whichever end it comes from. A client sends pings because of what
  it gets, own answers included, and a runtime that has not sent those takes it for abuse (gRPC's
  "too_many_pings"). So a client's keepalive proves the proxy alive and not the runtime. A runtime
  that goes away is noticed at once anyway, as its socket is local; one that hangs, by the calls'
  deadlines.
- Without a runtime, its calls are answered UNAVAILABLE, and a GOAWAY asks the client to come back
  with a new connection. A connection that had state at the runtime cannot be joined to another.
- What either end announces in SETTINGS is held to what the relay puts up with (``terms``).
- A GOAWAY of the runtime says which of its calls it still takes. What goes to the client covers the
  own calls under way as well, and then holds for both kinds: later calls, which the client repeats
  on its next connection, are not carried out here.

Frames that pass are the runtime's to judge. What is decoded here must be right, and an own call is
held to all that a runtime holds it to; a fault in a call resets it, any other ends the connection
that it came by.

Feed it with ``receive_client``, ``receive_upstream``, ``lose_upstream`` and ``answer``; then take
what there is from ``client_data``, ``upstream_data`` and ``events``. A ``RemoteProtocolError`` from
``receive_client`` means that the client's connection must be closed after ``client_data`` is sent.
While ``has_more`` is true, call ``catch_up`` when others have had their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from enum import Enum, auto
from typing import Final

from pycrictl.proxy.relay import terms
from pycrictl.proxy.relay.budget import Budget
from pycrictl.proxy.relay.calls import Answer, Event, RuntimeBroke
from pycrictl.proxy.relay.http2_streams import OwnStream, Stream, Streams
from pycrictl.proxy.relay.own_calls import OwnCalls
from pycrictl.wire import codes, grpc_http2, hpack, http2, limits
from pycrictl.wire.hpack import Header
from pycrictl.wire.http2 import ErrorCode, Http2Error, StreamFault
from pycrictl.wire.http2_reader import FrameReader, Unit

_AUTHORITY: Final = (b":authority", b"localhost")
_OF_CALLS: Final = frozenset({http2.DATA, http2.RST_STREAM, http2.WINDOW_UPDATE})


class _Link(Enum):
    CONNECTING = auto()
    UP = auto()
    DOWN = auto()


class Relay:
    """The state between one client and the runtime.

    Args:
        own_paths: the methods that are answered here. A call of one has one message each way.
        upstream_name: the runtime, as the messages of its failures name it.
        budget: what own calls hold, of all connections together.
        on_output: called when there is something to take although nothing was fed: another
            connection has made this one give up a call.
    """

    def __init__(
        self,
        own_paths: Container[str] = (),
        *,
        upstream_name: str = "the runtime",
        budget: Budget | None = None,
        on_output: Callable[[], object] = lambda: None,
    ) -> None:
        self.is_held = False
        self.is_going_away = False
        self._own_paths = own_paths
        self._upstream_name = upstream_name
        self._link = _Link.CONNECTING
        self._down_reason = ""
        self._last_stream_id = 0  # of those that somebody carries out
        self._last_used_id = 0
        self._last_welcome_id = http2.MAX_STREAM_ID  # as the last GOAWAY to the client says
        self._requests = hpack.Decoder()
        self._table_bytes = hpack.DEFAULT_TABLE_BYTES  # as the runtime has it for our requests
        self._table_updates = b""  # what the next one must begin with
        self._responses = hpack.Decoder()
        self._from_client = FrameReader("client", limits.CLIENT_TURN)
        self._from_upstream = FrameReader()
        self._resets = limits.Allowance(limits.RESETS, limits.RESETS_PER_S)
        self._to_client: list[bytes] = []
        self._to_upstream: list[bytes] = []
        self._streams = Streams(self._to_client)
        self._own = OwnCalls(
            self._streams,
            self._to_client,
            idle=self._from_client.idle,
            budget=budget or Budget(),
            on_output=on_output,
        )
        self._has_preface = False
        self._has_first_frame = False  # of the client
        self._early_pongs: list[bytes] = []  # go to the runtime after it
        self._has_settings = False  # sent to the client

    # Output

    def client_data(self) -> bytes:
        """Take what is to be sent to the client now."""
        # SETTINGS come first, and they are the runtime's. A client need not wait for them.
        return _take(self._to_client) if self._has_settings else b""

    def upstream_data(self) -> bytes:
        """Take what is to be sent to the runtime now."""
        return _take(self._to_upstream)

    def events(self) -> list[Event]:
        """Take what has happened since the last time."""
        events, self._streams.events = self._streams.events, []
        return events

    @property
    def is_connecting(self) -> bool:
        """Whether it is not known yet if there is a runtime. What the client sends is kept."""
        return self._link is _Link.CONNECTING

    @property
    def is_ready(self) -> bool:
        """Whether the runtime has begun to speak."""
        return self._link is _Link.UP and self._has_settings

    @property
    def is_down(self) -> bool:
        """Whether the connection to the runtime is of no use any more."""
        return self._link is _Link.DOWN

    @property
    def is_client_behind(self) -> bool:
        """Whether there is more of what the client sent to be handled, or to be answered."""
        is_silent = not self._has_settings and len(self._to_client) > limits.EARLY_FRAMES
        return self._from_client.is_behind or is_silent

    @property
    def is_upstream_behind(self) -> bool:
        """Whether there is more of what the runtime sent to be handled."""
        return self._from_upstream.is_behind

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way, to its last frame."""
        return not self._streams.by_id

    @property
    def open_paths(self) -> list[str]:
        """The methods of the calls that are under way."""
        return self._streams.open_paths

    # Input

    def upstream_connected(self, *, now: float) -> None:
        """Note that the runtime is connected; what the client sent meanwhile goes there."""
        self._link = _Link.UP
        self._scan_client(b"", now)

    def receive_client(self, data: bytes, *, now: float) -> None:
        """Take bytes from the client.

        Raises:
            RemoteProtocolError: they are not HTTP/2.
        """
        if self._link is _Link.CONNECTING:
            self._from_client.feed(data, now)
            return
        self._scan_client(data, now)
        if self.is_held:
            self.is_held = False
            self.receive_upstream(b"", now=now)

    def receive_upstream(self, data: bytes, *, now: float) -> None:
        """Take bytes from the runtime. If they are not HTTP/2, it counts as gone (``is_down``)."""
        if self.is_down:
            return
        try:
            self._scan_upstream(data, now)
        except Http2Error as exc:
            self._streams.events.append(RuntimeBroke(exc.message))
            is_flood = exc.code is ErrorCode.ENHANCE_YOUR_CALM
            why = "sends too much at once" if is_flood else "does not speak gRPC"
            self.lose_upstream(why, now=now)

    @property
    def has_more(self) -> bool:
        """Whether ``catch_up`` has something to do."""
        return self._from_client.is_behind or self._from_upstream.is_behind

    def catch_up(self, *, now: float) -> None:
        """Handle more of what came; raises as ``receive_client``."""
        if self._from_upstream.is_behind:
            self.receive_upstream(b"", now=now)
        if self._from_client.is_behind:
            self.receive_client(b"", now=now)

    def lose_upstream(self, why: str, *, now: float) -> None:
        """End all calls of a runtime that cannot be reached or is gone, as UNAVAILABLE.

        Args:
            why: goes on from the runtime's name, as in ``cannot be reached``.
            now: the time.
        """
        if self._link is _Link.DOWN:
            return
        while self._from_upstream.is_behind:
            self.receive_upstream(b"", now=now)
        if self.is_down:
            return
        must_go = self._has_settings
        self._link = _Link.DOWN
        self._down_reason = f"pycrictl proxy: {self._upstream_name} {why}"
        self._from_upstream = FrameReader()
        self._to_upstream.clear()
        self.is_held = False
        self._speak_first()
        self._own.lose_runtime()
        for stream_id, stream in self._streams.others():
            if stream.is_over:
                self._streams.forget(stream_id)
            else:
                self._refuse(stream_id, stream, now)
                must_go = True
        if must_go:
            self.go_away()
        self._scan_client(b"", now)

    def _speak_first(self) -> None:
        """Begin to speak to the client in place of the runtime."""
        if not self._has_settings:
            self._has_settings = True
            self._to_client.insert(0, terms.FIRST)

    def lose_client(self, *, now: float) -> None:
        """End all calls of a client that is gone."""
        for stream_id, stream in list(self._streams.by_id.items()):
            self._streams.abandon(stream_id, stream, now)

    def go_away(self) -> None:
        """Ask the client to open a new connection for its next calls. Those under way go on."""
        if not self.is_going_away:
            self.is_going_away = True
            self._to_client.append(http2.goaway(http2.MAX_STREAM_ID, http2.ErrorCode.NO_ERROR))

    def answer(self, stream_id: int, answer: Answer, *, now: float) -> None:
        """Answer an own call. Nothing happens if the client has given it up."""
        self._own.answer(stream_id, answer, now)

    # From the client

    def _scan_client(self, data: bytes, now: float) -> None:
        frames = self._from_client
        frames.feed(data, now)
        try:
            if not self._has_preface:
                if not frames.skip(http2.PREFACE):
                    return
                self._has_preface = True
                self._to_upstream.append(http2.PREFACE)
            buffer = frames.buffer
            run = end = frames.pos  # buffer[run:end] goes on as it is
            for unit in frames.units():
                _, _, stream_id, pos, stop = unit
                try:
                    replacement = self._client_frame(unit, buffer, now)
                except StreamFault as exc:
                    replacement = self._client_fault(stream_id, exc, now)
                end = stop
                if replacement is not None:
                    self._to_upstream.append(buffer[run:pos])
                    self._to_upstream.append(replacement)
                    run = stop
                if not self._has_first_frame:
                    # Nothing may stand before it but the preface (RFC 9113, 3.4).
                    self._has_first_frame = True
                    self._to_upstream += [buffer[run:end], *self._early_pongs]
                    self._early_pongs.clear()
                    run = end
        except Http2Error as exc:
            last = min(self._last_stream_id, self._last_welcome_id)
            self._to_client.append(http2.goaway(last, exc.code))
            self._speak_first()
            raise
        self._to_upstream.append(buffer[run:end])
        if self._link is _Link.DOWN:
            self._to_upstream.clear()

    def _client_frame(self, unit: Unit, buffer: bytes, now: float) -> bytes | None:
        """Return what goes to the runtime in place of the frame; None for the frame itself."""
        kind, flags, stream_id, pos, stop = unit
        if kind == http2.HEADERS:
            return self._request_headers(unit, buffer, now)
        if kind == http2.PING:
            self._to_client.append(http2.pong_of(buffer, pos, stop))
            return b""
        if not stream_id:
            return self._client_connection_frame(unit, buffer)
        if kind == http2.PUSH_PROMISE:
            raise Http2Error("the client sent a frame out of place")
        stream = self._streams.by_id.get(stream_id)
        if stream is None:
            self._late_frame(unit)
            return b""
        is_own = isinstance(stream, OwnStream)
        if kind == http2.RST_STREAM:
            self._count_reset(now)
            self._streams.abandon(stream_id, stream, now)
        elif isinstance(stream, OwnStream):
            self._own.take(unit, stream, buffer, now)
        elif kind == http2.DATA:
            stream.request_bytes += stop - pos - http2.HEAD_BYTES
            self._from_upstream.idle.earned += limits.IDLE_FRAMES_PER_FRAME
            if flags & http2.END_STREAM:
                self._streams.client_finished(stream_id, stream)
        return b"" if is_own else None

    def _late_frame(self, unit: Unit) -> None:
        """Take a frame of a call that is over: the client gets its window back."""
        kind, _, stream_id, pos, stop = unit
        if stream_id > self._last_used_id and kind in _OF_CALLS:
            raise Http2Error("a frame belongs to a call that has not begun")
        if kind == http2.DATA and stop - pos > http2.HEAD_BYTES:
            self._to_client.append(http2.window_update(0, stop - pos - http2.HEAD_BYTES))

    def _client_connection_frame(self, unit: Unit, buffer: bytes) -> bytes | None:
        kind, flags, _, pos, stop = unit
        if kind == http2.WINDOW_UPDATE:
            increment = http2.number_of(buffer, pos, stop)
            known = self._own.widen_connection(increment)
            if known == increment:
                return None
            return http2.window_update(0, known) if known else b""
        if kind != http2.SETTINGS or flags & http2.ACK:
            return None
        settings = list(http2.settings_of(buffer, pos, stop))
        for name, value in settings:
            if name == http2.HEADER_TABLE_SIZE:
                _raise_limit(self._responses, value)
        self._own.announced(settings)
        self._from_upstream.idle.earned += 1  # the acknowledgement
        if self._link is _Link.DOWN:
            self._own.lose_runtime()
        return terms.of_client(settings)

    def _client_fault(self, stream_id: int, fault: StreamFault, now: float) -> bytes:
        """Reset a call for what the client did; return what goes to the runtime."""
        if not stream_id:
            raise fault  # the whole connection's
        if fault.code is not ErrorCode.REFUSED_STREAM:
            self._count_reset(now)
        self._to_client.append(http2.rst_stream(stream_id, fault.code))
        stream = self._streams.by_id.get(stream_id)
        if stream is None:
            return b""
        self._streams.abandon(stream_id, stream, now)
        if isinstance(stream, OwnStream):
            return b""
        return http2.rst_stream(stream_id, ErrorCode.CANCEL)

    def _count_reset(self, now: float) -> None:
        """Beginning and giving up a call costs its sender next to nothing (CVE-2023-44487)."""
        if not self._resets.take(now):
            raise Http2Error("too many calls are reset", ErrorCode.ENHANCE_YOUR_CALM)

    def _request_headers(self, unit: Unit, buffer: bytes, now: float) -> bytes:
        _, flags, stream_id, pos, stop = unit
        is_end = bool(flags & http2.END_STREAM)
        is_new = stream_id > self._last_used_id
        if is_new:
            if not stream_id % 2:
                raise Http2Error("a call has the number of a server's stream")
            self._last_used_id = stream_id
        try:
            headers = self._requests.decode(http2.block_of(buffer, pos, stop))
        except hpack.ListTooLarge as exc:
            raise StreamFault("the headers are too large", ErrorCode.ENHANCE_YOUR_CALM) from exc
        stream = self._streams.by_id.get(stream_id)
        if is_new:
            stream = self._begin(stream_id, headers, is_end, now)
            if stream is None:
                return b""
        elif stream is None:
            if not is_end or any(name[:1] == b":" for name, _ in headers):
                raise Http2Error("the number of a call is not higher than the last one")
            return b""  # trailers of a call that is over
        elif isinstance(stream, OwnStream):
            raise Http2Error("a request of one message has trailers")
        if is_end:
            self._streams.client_finished(stream_id, stream)
        self._from_upstream.idle.earned += limits.IDLE_FRAMES_PER_FRAME
        block = hpack.encode(
            [_AUTHORITY if field[0] == b":authority" else field for field in headers]
        )
        block, self._table_updates = self._table_updates + block, b""
        return http2.header_frames(stream_id, block, end_stream=is_end)

    def _begin(
        self, stream_id: int, headers: list[Header], is_end: bool, now: float
    ) -> Stream | None:
        """Return a new call if it is for the runtime."""
        if stream_id > self._last_welcome_id:
            return None  # it came too late
        path = grpc_http2.request_path(headers).decode("latin-1")
        if len(self._streams.by_id) >= limits.STREAMS:
            raise StreamFault("too many calls at once", ErrorCode.REFUSED_STREAM)
        self._last_stream_id = stream_id
        if path in self._own_paths:
            grpc_http2.check_values(headers)
            self._own.begin(stream_id, path, headers, is_end=is_end, now=now)
            return None
        stream = self._streams.by_id[stream_id] = Stream(path, now)
        if self._link is _Link.DOWN:
            self._refuse(stream_id, stream, now)
            self.go_away()
            return None
        return stream

    # From the runtime

    def _scan_upstream(self, data: bytes, now: float) -> None:
        frames = self._from_upstream
        frames.feed(data, now)
        buffer = frames.buffer
        run = end = frames.pos
        try:
            for unit in frames.units():
                kind, _, _, pos, stop = unit
                if kind == http2.DATA:
                    length = stop - pos - http2.HEAD_BYTES
                    if length > self._own.window_bytes:
                        self.is_held = True
                        break
                    self._own.window_bytes -= length
                else:  # what it makes us say comes after what was there before
                    self._to_client.append(buffer[run:pos])
                    run = pos
                replacement = self._upstream_frame(unit, buffer, now)
                end = stop
                if replacement is not None:
                    self._to_client.append(buffer[run:pos])
                    self._to_client.append(replacement)
                    run = stop
        finally:
            self._to_client.append(buffer[run:end])
        self._own.flush()  # an acknowledgement may have made windows larger

    def _upstream_frame(self, unit: Unit, buffer: bytes, now: float) -> bytes | None:
        """Return what goes to the client in place of the frame; None for the frame itself."""
        kind, flags, stream_id, pos, stop = unit
        stream = self._streams.by_id.get(stream_id)
        if kind == http2.DATA:
            self._from_client.idle.earned += limits.IDLE_FRAMES_PER_FRAME
            if stream is not None:
                stream.response_bytes += stop - pos - http2.HEAD_BYTES
                if flags & http2.END_STREAM:
                    self._streams.server_finished(stream_id, stream, None, now)
        elif kind == http2.HEADERS or kind == http2.PUSH_PROMISE:
            return self._response_headers(unit, stream, buffer, now)
        elif kind == http2.RST_STREAM:
            if stream is not None:
                self._streams.record(stream, None, now)
                self._streams.forget(stream_id)
        elif kind == http2.SETTINGS:
            return self._upstream_settings(flags, buffer, pos, stop)
        elif kind == http2.PING:
            self._answer_runtime(http2.pong_of(buffer, pos, stop))
            return b""
        elif kind == http2.GOAWAY:
            return self._upstream_goes_away(buffer, pos, stop, now)
        return None

    def _response_headers(
        self, unit: Unit, stream: Stream | None, buffer: bytes, now: float
    ) -> bytes | None:
        kind, flags, stream_id, pos, stop = unit
        self._from_client.idle.earned += limits.IDLE_FRAMES_PER_FRAME
        is_end = bool(flags & http2.END_STREAM)
        try:
            headers = self._responses.decode(http2.block_of(buffer, pos, stop))
        except hpack.ListTooLarge as exc:
            if not is_end:
                raise Http2Error("the headers of an answer are too large") from exc
            if stream is not None and not stream.is_over:
                why = f"pycrictl proxy: the status from {self._upstream_name} is too large"
                self._streams.refuse(stream_id, stream, codes.RESOURCE_EXHAUSTED, why, now)
            return b""
        self._streams.table_updates = b""
        if kind == http2.HEADERS and stream is not None:
            stream.has_response_headers = True
            if is_end:
                self._streams.server_finished(stream_id, stream, grpc_http2.status_of(headers), now)
        return None

    def _upstream_settings(self, flags: int, buffer: bytes, pos: int, stop: int) -> bytes | None:
        if flags & http2.ACK:
            self._own.acknowledged()
            return None
        settings = list(http2.settings_of(buffer, pos, stop))
        self._from_client.idle.earned += 1  # the acknowledgement
        for name, value in settings:
            if name == http2.HEADER_TABLE_SIZE:
                _raise_limit(self._requests, value)
                if value < self._table_bytes:  # none is used, so it need not be made smaller again
                    self._table_bytes, self._table_updates = 0, hpack.table_updates(0)
        if self._has_settings:
            return terms.of_runtime(settings, is_first=False)
        # They come before all else that the client gets.
        self._has_settings = True
        self._to_client.insert(0, terms.of_runtime(settings, is_first=True) or b"")
        return b""

    def _answer_runtime(self, pong: bytes) -> None:
        if self._has_first_frame or not pong:
            self._to_upstream.append(pong)
            return
        if len(self._early_pongs) == limits.EARLY_PONGS:
            raise Http2Error("the runtime keeps sending pings", ErrorCode.ENHANCE_YOUR_CALM)
        self._early_pongs.append(pong)

    def _upstream_goes_away(self, buffer: bytes, pos: int, stop: int, now: float) -> bytes:
        """Let own calls go on when the runtime takes no more calls."""
        self.is_going_away = True
        last = http2.number_of(buffer, pos, stop)
        newest_own = max((stream_id for stream_id, _ in self._streams.own()), default=0)
        self._last_welcome_id = min(max(last, newest_own), self._last_welcome_id)
        for stream_id, stream in self._streams.others():
            if stream_id > last:
                self._streams.record(stream, None, now)
                if stream_id <= self._last_welcome_id:
                    refusal = http2.rst_stream(stream_id, ErrorCode.REFUSED_STREAM)
                    self._to_client.append(refusal)
                self._streams.forget(stream_id)
        rest = buffer[pos + http2.HEAD_BYTES + 4 : stop]
        return http2.frame(http2.GOAWAY, 0, 0, self._last_welcome_id.to_bytes(4, "big") + rest)

    def _refuse(self, stream_id: int, stream: Stream, now: float) -> None:
        """End a call that there is no runtime for."""
        self._streams.refuse(stream_id, stream, codes.UNAVAILABLE, self._down_reason, now)


def _take(chunks: list[bytes]) -> bytes:
    data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    chunks.clear()
    return data


def _raise_limit(decoder: hpack.Decoder, table_bytes: int) -> None:
    # A lower limit holds from the acknowledgement on only, so the higher one stays allowed.
    table_bytes = min(table_bytes, limits.TABLE_BYTES)
    decoder.max_table_bytes = max(decoder.max_table_bytes, table_bytes)
