"""One client's connection, joined frame by frame to a connection to the runtime. Pure.

HTTP/2 frames pass unchanged, so everything in them does: unknown methods and fields, metadata,
deadlines, statuses, details, cancellation, and flow control, which reaches from one end to the
other. The exceptions are few:

- Request headers are decoded, because the path says whose call it is, and encoded again, because
  the runtime must not miss what an own call's headers changed in the compression table. The
  authority, which is the proxy's, becomes the one that runtimes expect on a unix socket.
- An *own* call never reaches the runtime: its frames end here, and ``answer`` makes others. The
  client's connection window is one for both kinds of calls and only partly known to the runtime:
  what own answers took of it is withheld from its next update (``_debt_bytes``), and data of the
  runtime that would not fit waits (``is_held``).
- A PING is answered by the proxy, whichever end it comes from. A client sends pings because of what
  it gets, own answers included, and a runtime that has not sent those takes it for abuse (gRPC's
  "too_many_pings"). So a client's keepalive proves the proxy alive and not the runtime. A runtime
  that goes away is noticed at once anyway, as its socket is local; one that hangs, by the calls'
  deadlines.
- Without a runtime, its calls are answered UNAVAILABLE, and a GOAWAY asks the client to come back
  with a new connection. A connection that had state at the runtime cannot be joined to another.
- A GOAWAY of the runtime says which of its calls it still takes. What goes to the client covers the
  own calls under way as well, and then holds for both kinds: later calls, which the client repeats
  on its next connection, are not carried out here.

Feed it with ``receive_client``, ``receive_upstream``, ``lose_upstream`` and ``answer``; then take
what there is from ``client_data``, ``upstream_data`` and ``events``. A ``RemoteProtocolError`` from
``receive_client`` means that the client's connection must be closed after ``client_data`` is sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

from pycrictl.errors import RemoteProtocolError
from pycrictl.proxy.relay.calls import Answer, CallRecord, CallRequest
from pycrictl.proxy.relay.http2_streams import OwnStream, Stream
from pycrictl.wire import codes, grpc_http2, hpack, http2
from pycrictl.wire.hpack import Header

_AUTHORITY: Final = (b":authority", b"localhost")
_MAX_EARLY_PONGS: Final = 100  # for a runtime that pings before the client speaks


@dataclass(frozen=True, slots=True)
class Requested:
    """An own call has all of its request; ``answer`` is due."""

    stream_id: int
    request: CallRequest


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The client gave up an own call and would ignore an answer."""

    stream_id: int


Event: TypeAlias = Requested | Abandoned | CallRecord


class _Link(Enum):
    CONNECTING = auto()
    UP = auto()
    DOWN = auto()


class Relay:
    """The state between one client and the runtime.

    Args:
        own_paths: the methods that are answered here. A call of one has one message each way.
        upstream_name: the runtime, as the messages of its failures name it.
    """

    def __init__(
        self, own_paths: Container[str] = (), *, upstream_name: str = "the runtime"
    ) -> None:
        self.is_held = False
        self.is_going_away = False
        self._own_paths = own_paths
        self._upstream_name = upstream_name
        self._link = _Link.CONNECTING
        self._down_reason = ""
        self._streams: dict[int, Stream] = {}
        self._last_stream_id = 0
        self._last_welcome_id = http2.MAX_STREAM_ID  # as the last GOAWAY to the client says
        self._requests = hpack.Decoder()
        self._responses = hpack.Decoder()
        self._client_rest = b""
        self._upstream_rest = b""
        self._to_client: list[bytes] = []
        self._to_upstream: list[bytes] = []
        self._events: list[Event] = []
        self._has_preface = False
        self._has_first_frame = False  # of the client
        self._early_pongs: list[bytes] = []  # go to the runtime after it
        self._has_settings = False  # sent to the client
        # The client's SETTINGS that it has no acknowledgement of: the window that each gives an
        # answer. Before that it holds answers to the old one.
        self._unacknowledged: deque[int] = deque()
        self._window_bytes = http2.DEFAULT_WINDOW_BYTES  # of the client's connection
        self._debt_bytes = 0
        self._stream_window_bytes = http2.DEFAULT_WINDOW_BYTES

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
        events, self._events = self._events, []
        return events

    @property
    def is_ready(self) -> bool:
        """Whether the runtime has begun to speak."""
        return self._link is _Link.UP and self._has_settings

    @property
    def is_down(self) -> bool:
        """Whether the connection to the runtime is of no use any more."""
        return self._link is _Link.DOWN

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way, to its last frame."""
        return not self._streams

    @property
    def open_paths(self) -> list[str]:
        """The methods of the calls that are under way."""
        return [stream.path for stream in self._streams.values() if not stream.is_over]

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
            self._client_rest += data
            return
        self._scan_client(data, now)
        if self.is_held:
            self.is_held = False
            self.receive_upstream(b"", now=now)

    def receive_upstream(self, data: bytes, *, now: float) -> None:
        """Take bytes from the runtime. If they are not HTTP/2, it counts as gone (``is_down``)."""
        try:
            self._scan_upstream(data, now)
        except RemoteProtocolError:
            self.lose_upstream("does not speak gRPC", now=now)

    def lose_upstream(self, why: str, *, now: float) -> None:
        """End all calls of a runtime that cannot be reached or is gone, as UNAVAILABLE.

        Args:
            why: goes on from the runtime's name, as in ``cannot be reached``.
            now: the time.
        """
        if self._link is _Link.DOWN:
            return
        must_go = self._has_settings
        self._link = _Link.DOWN
        self._down_reason = f"pycrictl proxy: {self._upstream_name} {why}"
        self._upstream_rest = b""
        self._to_upstream.clear()
        self.is_held = False
        if not self._has_settings:
            self._to_client.insert(0, http2.settings())
            self._has_settings = True
        while self._unacknowledged:
            self._to_client.append(http2.frame(http2.SETTINGS, http2.ACK))
            self._acknowledged()
        self._flush_all()
        for stream_id, stream in list(self._streams.items()):
            if isinstance(stream, OwnStream):
                continue
            if stream.is_over:
                self._forget(stream_id)
            else:
                self._refuse(stream_id, stream, now)
                must_go = True
        if must_go:
            self.go_away()
        self._scan_client(b"", now)

    def lose_client(self, *, now: float) -> None:
        """End all calls of a client that is gone."""
        for stream_id, stream in list(self._streams.items()):
            self._abandon(stream_id, stream, now)

    def go_away(self) -> None:
        """Ask the client to open a new connection for its next calls. Those under way go on."""
        if not self.is_going_away:
            self.is_going_away = True
            self._to_client.append(http2.goaway(http2.MAX_STREAM_ID, http2.ErrorCode.NO_ERROR))

    def answer(self, stream_id: int, answer: Answer, *, now: float) -> None:
        """Answer an own call. Nothing happens if the client has given it up."""
        stream = self._streams.get(stream_id)
        if not isinstance(stream, OwnStream) or stream.is_over:
            return
        head = stream.begin(answer)
        if head is not None:
            frames = http2.header_frames(stream_id, hpack.encode(head), end_stream=False)
            self._to_client.append(frames)
        self._record(stream, answer.code, now)
        self._flush(stream_id, stream)

    # From the client

    def _scan_client(self, data: bytes, now: float) -> None:
        buffer = self._client_rest + data if self._client_rest else data
        run = pos = 0  # buffer[run:pos] goes on as it is
        try:
            if not self._has_preface:
                if not buffer.startswith(http2.PREFACE):
                    if not http2.PREFACE.startswith(buffer):
                        raise RemoteProtocolError("HTTP/2: the client's preface is wrong")
                    self._client_rest = buffer
                    return
                self._has_preface = True
                pos = len(http2.PREFACE)
            while stop := http2.unit_end(buffer, pos):
                replacement = self._client_frame(buffer, pos, stop, now)
                if replacement is not None:
                    self._to_upstream.append(buffer[run:pos])
                    self._to_upstream.append(replacement)
                    run = stop
                pos = stop
                if not self._has_first_frame:
                    # Nothing may stand before it but the preface (RFC 9113, 3.4).
                    self._has_first_frame = True
                    self._to_upstream += [buffer[run:pos], *self._early_pongs]
                    self._early_pongs.clear()
                    run = pos
        except RemoteProtocolError:
            last = min(self._last_stream_id, self._last_welcome_id)
            self._to_client.append(http2.goaway(last, http2.ErrorCode.PROTOCOL_ERROR))
            raise
        self._to_upstream.append(buffer[run:pos])
        self._client_rest = buffer[pos:]
        if self._link is _Link.DOWN:
            self._to_upstream.clear()

    def _client_frame(self, buffer: bytes, pos: int, stop: int, now: float) -> bytes | None:
        """Return what goes to the runtime in place of the frame; None for the frame itself."""
        kind = buffer[pos + 3]
        stream_id = int.from_bytes(buffer[pos + 5 : pos + 9], "big") & http2.MAX_STREAM_ID
        if kind == http2.HEADERS:
            return self._request_headers(stream_id, buffer, pos, stop, now)
        if kind == http2.PING:
            self._to_client.append(http2.pong_of(buffer, pos, stop))
            return b""
        if stream_id == 0:
            return self._client_connection_frame(kind, buffer, pos, stop)
        if kind in (http2.PUSH_PROMISE, http2.CONTINUATION):
            raise RemoteProtocolError("HTTP/2: the client sent a frame out of place")
        stream = self._streams.get(stream_id)
        if stream is None or isinstance(stream, OwnStream):
            self._own_frame(kind, stream_id, stream, buffer, pos, stop, now)
            return b""
        if kind == http2.DATA:
            stream.request_bytes += stop - pos - http2.HEAD_BYTES
            if buffer[pos + 4] & http2.END_STREAM:
                self._client_finished(stream_id, stream)
        elif kind == http2.RST_STREAM:
            self._abandon(stream_id, stream, now)
        return None

    def _client_connection_frame(
        self, kind: int, buffer: bytes, pos: int, stop: int
    ) -> bytes | None:
        is_ack = bool(buffer[pos + 4] & http2.ACK)
        if kind == http2.WINDOW_UPDATE:
            return self._client_window_update(http2.number_of(buffer, pos, stop))
        if kind == http2.SETTINGS and not is_ack:
            window_bytes = (
                self._unacknowledged[-1] if self._unacknowledged else self._stream_window_bytes
            )
            for name, value in http2.settings_of(buffer, pos, stop):
                if name == http2.HEADER_TABLE_SIZE:
                    _raise_limit(self._responses, value)
                elif name == http2.INITIAL_WINDOW_SIZE:
                    window_bytes = value
            self._unacknowledged.append(window_bytes)
            if self._link is _Link.DOWN:
                self._to_client.append(http2.frame(http2.SETTINGS, http2.ACK))
                self._acknowledged()
        return None

    def _acknowledged(self) -> None:
        """Apply the client's oldest SETTINGS to own answers, as they are acknowledged now."""
        window_bytes = self._unacknowledged.popleft()
        difference = window_bytes - self._stream_window_bytes
        self._stream_window_bytes = window_bytes
        for _, stream in self._own_streams():
            stream.window_bytes += difference

    def _client_window_update(self, increment: int) -> bytes | None:
        self._window_bytes += increment
        self._flush_all()
        if not self._debt_bytes:
            return None
        withheld = min(self._debt_bytes, increment)
        self._debt_bytes -= withheld
        return http2.window_update(0, increment - withheld) if increment > withheld else b""

    def _request_headers(
        self, stream_id: int, buffer: bytes, pos: int, stop: int, now: float
    ) -> bytes:
        headers = self._requests.decode(http2.block_of(buffer, pos, stop))
        is_end = bool(buffer[pos + 4] & http2.END_STREAM)
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id <= self._last_stream_id or stream_id > self._last_welcome_id:
                return b""  # trailers of a call that is over, or a call that came too late
            stream = self._open(stream_id, headers, now)
            if stream.is_over:
                return b""
        if is_end:
            self._client_finished(stream_id, stream)
        if isinstance(stream, OwnStream):
            if is_end:
                self._requested(stream_id, stream, now)
            return b""
        block = hpack.encode(
            _AUTHORITY if name == b":authority" else (name, value) for name, value in headers
        )
        return http2.header_frames(stream_id, block, end_stream=is_end)

    def _open(self, stream_id: int, headers: list[Header], now: float) -> Stream:
        path = next((value for name, value in headers if name == b":path"), None)
        if path is None or not stream_id % 2:
            raise RemoteProtocolError("HTTP/2: a request is malformed")
        self._last_stream_id = stream_id
        text = path.decode("latin-1")
        if text in self._own_paths:
            window_bytes = self._stream_window_bytes
            own = OwnStream(text, now, headers=headers, window_bytes=window_bytes)
            self._streams[stream_id] = own
            return own
        stream = self._streams[stream_id] = Stream(text, now)
        if self._link is _Link.DOWN:
            self._refuse(stream_id, stream, now)
            self.go_away()
        return stream

    # Own calls

    def _own_frame(
        self,
        kind: int,
        stream_id: int,
        stream: OwnStream | None,
        buffer: bytes,
        pos: int,
        stop: int,
        now: float,
    ) -> None:
        """Take a frame of an own call, or of one that is over."""
        if kind == http2.DATA:
            length = stop - pos - http2.HEAD_BYTES
            is_end = bool(buffer[pos + 4] & http2.END_STREAM)
            if length:
                self._to_client.append(http2.window_update(0, length))
                if stream is not None and not is_end:
                    self._to_client.append(http2.window_update(stream_id, length))
            if stream is None or stream.is_over:
                return
            stream.request_bytes += length
            refusal = stream.receive(http2.data_of(buffer, pos, stop))
            if refusal is not None:
                self.answer(stream_id, refusal, now=now)
            elif is_end:
                stream.is_client_done = True
                self._requested(stream_id, stream, now)
        elif stream is None:
            return
        elif kind == http2.RST_STREAM:
            self._abandon(stream_id, stream, now)
        elif kind == http2.WINDOW_UPDATE:
            stream.window_bytes += http2.number_of(buffer, pos, stop)
            if stream.pending:
                self._flush(stream_id, stream)

    def _requested(self, stream_id: int, stream: OwnStream, now: float) -> None:
        request = stream.request()
        if isinstance(request, CallRequest):
            self._events.append(Requested(stream_id, request))
        else:
            self.answer(stream_id, request, now=now)

    def _flush(self, stream_id: int, stream: OwnStream) -> None:
        """Send what the windows allow of an own answer, and its end after it."""
        while stream.pending:
            chunk = stream.next_chunk(self._window_bytes)
            if not chunk:
                return
            self._to_client.append(http2.frame(http2.DATA, 0, stream_id, chunk))
            self._window_bytes -= len(chunk)
            if self._link is not _Link.DOWN:
                self._debt_bytes += len(chunk)
        self._finish(stream_id, stream, stream.trailers)

    def _flush_all(self) -> None:
        for stream_id, stream in self._own_streams():
            if stream.pending:
                self._flush(stream_id, stream)

    def _own_streams(self) -> list[tuple[int, OwnStream]]:
        return [(id_, own) for id_, own in self._streams.items() if isinstance(own, OwnStream)]

    # From the runtime

    def _scan_upstream(self, data: bytes, now: float) -> None:
        buffer = self._upstream_rest + data if self._upstream_rest else data
        run = pos = 0
        if not self._has_settings:
            pos = run = self._first_settings(buffer, now)
            if not pos:
                self._upstream_rest = buffer
                return
        try:
            while stop := http2.unit_end(buffer, pos):
                if buffer[pos + 3] == http2.DATA:
                    length = stop - pos - http2.HEAD_BYTES
                    if length > self._window_bytes:
                        self.is_held = True
                        break
                    self._window_bytes -= length
                replacement = self._upstream_frame(buffer, pos, stop, now)
                if replacement is not None:
                    self._to_client.append(buffer[run:pos])
                    self._to_client.append(replacement)
                    run = stop
                pos = stop
        finally:
            self._to_client.append(buffer[run:pos])
        self._upstream_rest = buffer[pos:]
        self._flush_all()  # an acknowledgement may have made windows larger

    def _first_settings(self, buffer: bytes, now: float) -> int:
        """Put the runtime's first frame before all else; return its end, 0 without it."""
        if len(buffer) >= http2.HEAD_BYTES:
            http2.check_server_preface(buffer)
        stop = http2.unit_end(buffer, 0)
        if stop:
            self._upstream_frame(buffer, 0, stop, now)
            self._to_client.insert(0, buffer[:stop])
            self._has_settings = True
        return stop

    def _upstream_frame(self, buffer: bytes, pos: int, stop: int, now: float) -> bytes | None:
        """Return what goes to the client in place of the frame; None for the frame itself."""
        kind = buffer[pos + 3]
        stream_id = int.from_bytes(buffer[pos + 5 : pos + 9], "big") & http2.MAX_STREAM_ID
        stream = self._streams.get(stream_id)
        is_end = bool(buffer[pos + 4] & http2.END_STREAM)
        if kind == http2.DATA:
            if stream is not None:
                stream.response_bytes += stop - pos - http2.HEAD_BYTES
                if is_end:
                    self._server_finished(stream_id, stream, None, now)
        elif kind in (http2.HEADERS, http2.PUSH_PROMISE):
            headers = self._responses.decode(http2.block_of(buffer, pos, stop))
            if kind == http2.HEADERS and stream is not None:
                stream.has_response_headers = True
                if is_end:
                    self._server_finished(stream_id, stream, grpc_http2.status_of(headers), now)
        elif kind == http2.RST_STREAM:
            if stream is not None:
                self._record(stream, None, now)
                self._forget(stream_id)
        elif kind == http2.SETTINGS:
            if buffer[pos + 4] & http2.ACK:
                if self._unacknowledged:
                    self._acknowledged()
            else:
                for name, value in http2.settings_of(buffer, pos, stop):
                    if name == http2.HEADER_TABLE_SIZE:
                        _raise_limit(self._requests, value)
        elif kind == http2.PING:
            self._answer_runtime(http2.pong_of(buffer, pos, stop))
            return b""
        elif kind == http2.GOAWAY:
            return self._upstream_goes_away(buffer, pos, stop, now)
        return None

    def _answer_runtime(self, pong: bytes) -> None:
        if self._has_first_frame or not pong:
            self._to_upstream.append(pong)
            return
        if len(self._early_pongs) == _MAX_EARLY_PONGS:
            raise RemoteProtocolError("HTTP/2: the runtime keeps sending pings")
        self._early_pongs.append(pong)

    def _upstream_goes_away(self, buffer: bytes, pos: int, stop: int, now: float) -> bytes:
        """Let own calls go on when the runtime takes no more calls."""
        self.is_going_away = True
        last = http2.number_of(buffer, pos, stop)
        newest_own = max((stream_id for stream_id, _ in self._own_streams()), default=0)
        self._last_welcome_id = min(max(last, newest_own), self._last_welcome_id)
        for stream_id, stream in list(self._streams.items()):
            if not isinstance(stream, OwnStream) and stream_id > last:
                self._record(stream, None, now)
                if stream_id <= self._last_welcome_id:
                    refusal = http2.rst_stream(stream_id, http2.ErrorCode.REFUSED_STREAM)
                    self._to_client.append(refusal)
                self._forget(stream_id)
        rest = buffer[pos + http2.HEAD_BYTES + 4 : stop]
        return http2.frame(http2.GOAWAY, 0, 0, self._last_welcome_id.to_bytes(4, "big") + rest)

    # Ends of calls

    def _refuse(self, stream_id: int, stream: Stream, now: float) -> None:
        headers = grpc_http2.status_headers(codes.UNAVAILABLE, self._down_reason)
        if not stream.has_response_headers:
            headers = grpc_http2.response_headers() + headers
        self._record(stream, codes.UNAVAILABLE, now)
        self._finish(stream_id, stream, hpack.encode(headers))

    def _finish(self, stream_id: int, stream: Stream, trailers: bytes) -> None:
        self._to_client.append(http2.header_frames(stream_id, trailers, end_stream=True))
        if not stream.is_client_done:
            self._to_client.append(http2.rst_stream(stream_id, http2.ErrorCode.NO_ERROR))
        self._forget(stream_id)

    def _client_finished(self, stream_id: int, stream: Stream) -> None:
        stream.is_client_done = True
        if stream.is_over and not isinstance(stream, OwnStream):
            self._forget(stream_id)

    def _server_finished(
        self, stream_id: int, stream: Stream, code: int | None, now: float
    ) -> None:
        self._record(stream, code, now)
        if stream.is_client_done:
            self._forget(stream_id)

    def _abandon(self, stream_id: int, stream: Stream, now: float) -> None:
        if isinstance(stream, OwnStream) and not stream.is_over:
            self._events.append(Abandoned(stream_id))
        self._record(stream, codes.CANCELLED, now)
        self._forget(stream_id)

    def _record(self, stream: Stream, code: int | None, now: float) -> None:
        if stream.is_over:
            return
        stream.is_over = True
        self._events.append(
            CallRecord(
                path=stream.path,
                code=code,
                duration_s=now - stream.started,
                request_bytes=stream.request_bytes,
                response_bytes=stream.response_bytes,
            )
        )

    def _forget(self, stream_id: int) -> None:
        self._streams.pop(stream_id, None)


def _take(chunks: list[bytes]) -> bytes:
    data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    chunks.clear()
    return data


def _raise_limit(decoder: hpack.Decoder, table_bytes: int) -> None:
    # A lower limit holds from the acknowledgement on only, so the higher one stays allowed.
    decoder.max_table_bytes = max(decoder.max_table_bytes, table_bytes)
