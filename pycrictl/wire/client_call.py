"""The client of one gRPC call on an HTTP/2 connection of its own, one message to the server. Pure.

It gives the outcome to the byte: unknown status codes, binary metadata, and whether the server said
so or the connection broke.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from pycrictl.errors import RemoteProtocolError
from pycrictl.wire import codes, grpc_http2, hpack, http2, limits
from pycrictl.wire.grpc_http2 import Answer, Metadata
from pycrictl.wire.hpack import Header
from pycrictl.wire.http2_reader import FrameReader, Unit

_STREAM: Final = 1
_REFILL_BYTES: Final = http2.MAX_WINDOW_BYTES // 2
# Statuses that HTTP/2 errors stand for where a server sent none ("gRPC over HTTP2", "Errors").
_RESET_STATUS: Final[dict[int, int]] = {
    http2.ErrorCode.REFUSED_STREAM: codes.UNAVAILABLE,
    http2.ErrorCode.CANCEL: codes.CANCELLED,
    http2.ErrorCode.ENHANCE_YOUR_CALM: codes.RESOURCE_EXHAUSTED,
}
_ONE_STREAM_KINDS: Final = frozenset({http2.DATA, http2.HEADERS, http2.RST_STREAM})


_COMPRESSED: Final = "the answer is compressed"


class ClientCall:
    """Send ``data_to_send()``, feed ``receive_data``, and again until ``answer`` is there.

    Args:
        path: full path of the method.
        message: the serialised request.
        metadata: what goes with it.
        timeout_s: the deadline that is sent to the server; keeping it is up to the caller.
        user_agent: what the program calls itself.
        limit_bytes: the largest message that is accepted.
        is_stream: the server answers with any number of messages instead of one.

    Attributes:
        answer: how the call ended, once it has.
        messages: what has come of a stream, for the caller to take.
        is_ready: the server has begun to speak.
        http_status: what stands in for a gRPC status that is missing; of a web server, for example.
        oversize_bytes: the size of a message beyond the limit, which ended the call; else 0.
    """

    def __init__(
        self,
        path: str,
        message: bytes,
        *,
        metadata: Metadata = (),
        timeout_s: float | None = None,
        user_agent: str = "",
        limit_bytes: int = limits.MESSAGE_BYTES,
        is_stream: bool = False,
    ) -> None:
        self.answer: Answer | None = None
        self.messages: deque[bytes] = deque()
        self.is_ready = False
        self.http_status = ""
        self.oversize_bytes = 0
        self._limit_bytes = limit_bytes
        self._is_stream = is_stream
        self._frames = FrameReader()
        self._decoder = hpack.Decoder()
        self._initial_metadata: Metadata | None = None
        self._body = bytearray()
        self._unacknowledged_bytes = 0
        self._request = grpc_http2.prefixed(message)
        self._sent_bytes = 0  # of it
        self._window_bytes = http2.DEFAULT_WINDOW_BYTES
        self._stream_window_bytes = http2.DEFAULT_WINDOW_BYTES
        self._initial_window_bytes = http2.DEFAULT_WINDOW_BYTES
        headers: list[Header] = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.encode()),
            (b":authority", b"localhost"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        ]
        if user_agent:
            headers.append((b"user-agent", user_agent.encode()))
        if timeout_s is not None:
            headers.append(grpc_http2.timeout_header(timeout_s))
        headers += grpc_http2.headers_of(metadata)
        # What comes is kept, or taken at once, so the windows need not slow it down.
        wanted = {
            http2.ENABLE_PUSH: 0,
            http2.INITIAL_WINDOW_SIZE: http2.MAX_WINDOW_BYTES,
            http2.MAX_HEADER_LIST_SIZE: limits.HEADER_LIST_BYTES,
        }
        self._to_send = [
            http2.PREFACE,
            http2.settings(wanted),
            http2.window_update(0, http2.MAX_WINDOW_BYTES - http2.DEFAULT_WINDOW_BYTES),
            http2.header_frames(_STREAM, hpack.encode(headers), end_stream=False),
        ]
        self._send_body()

    def data_to_send(self) -> bytes:
        """Return what to send now; may be empty."""
        data = b"".join(self._to_send)
        self._to_send.clear()
        return data

    def cancel(self) -> None:
        """Cancel the call; ``data_to_send`` then has what the server is to know."""
        self._to_send.append(http2.rst_stream(_STREAM, http2.ErrorCode.CANCEL))

    def receive_data(self, data: bytes, now: float) -> None:
        """Take in what the server sent, at the time ``now`` in seconds.

        Raises:
            RemoteProtocolError: it is not HTTP/2, or exceeds what is put up with.
        """
        frames = self._frames
        frames.feed(data, now)
        is_behind = True
        while is_behind and self.answer is None:
            buffer = frames.buffer
            for unit in frames.units():
                self.is_ready = True
                self._frame(unit, buffer)
                if self.answer is not None:
                    break
            is_behind = frames.is_behind

    def _frame(self, unit: Unit, buffer: bytes) -> None:
        kind, flags, stream_id, pos, stop = unit
        if kind == http2.PUSH_PROMISE or (kind in _ONE_STREAM_KINDS and stream_id != _STREAM):
            raise http2.Http2Error("a frame belongs to no call")
        if kind == http2.DATA:
            self._body += http2.data_of(buffer, pos, stop)
            self._take_messages()
            self._acknowledge(stop - pos - http2.HEAD_BYTES)
            if flags & http2.END_STREAM:
                self._end(codes.INTERNAL, "the answer has no status")
        elif kind == http2.HEADERS:
            try:
                headers = self._decoder.decode(http2.block_of(buffer, pos, stop))
            except hpack.ListTooLarge as exc:
                self._end(codes.RESOURCE_EXHAUSTED, exc.message)
                self.cancel()
                return
            if flags & http2.END_STREAM:
                self._trailers(headers)
            elif _http_status(headers) != "200":
                self._no_grpc(headers)
            elif self._initial_metadata is not None:
                raise http2.Http2Error("the answer begins twice")
            else:
                self._initial_metadata = grpc_http2.metadata_of(headers)
        elif kind == http2.WINDOW_UPDATE:
            increment = http2.number_of(buffer, pos, stop)
            if stream_id == _STREAM:
                self._stream_window_bytes = http2.widened(self._stream_window_bytes, increment)
            elif not stream_id:
                self._window_bytes = http2.widened(self._window_bytes, increment)
            self._send_body()
        elif kind == http2.SETTINGS and not flags & http2.ACK:
            for name, value in http2.settings_of(buffer, pos, stop):
                if name == http2.INITIAL_WINDOW_SIZE:
                    self._stream_window_bytes += value - self._initial_window_bytes
                    http2.check_window(self._stream_window_bytes)
                    self._initial_window_bytes = value
            self._to_send.append(http2.frame(http2.SETTINGS, http2.ACK))
            self._send_body()
        elif kind == http2.PING:
            self._to_send.append(http2.pong_of(buffer, pos, stop))
        elif kind == http2.RST_STREAM:
            code = http2.number_of(buffer, pos, stop)
            status = _RESET_STATUS.get(code, codes.INTERNAL)
            self._end(status, f"the call was reset with the HTTP/2 error {code}")
        elif kind == http2.GOAWAY and http2.number_of(buffer, pos, stop) < _STREAM:
            self._end(codes.UNAVAILABLE, "the server takes no more calls")

    def _take_messages(self) -> None:
        while len(self._body) >= grpc_http2.PREFIX_BYTES and self.answer is None:
            size = int.from_bytes(self._body[1 : grpc_http2.PREFIX_BYTES], "big")
            stop = grpc_http2.PREFIX_BYTES + size
            if size > self._limit_bytes:
                self.oversize_bytes = size
                self._end(codes.RESOURCE_EXHAUSTED, f"a message of {size} bytes")
                self.cancel()
            elif not self._is_stream:
                if len(self._body) > stop:
                    self._end(codes.INTERNAL, "the answer is longer than its message")
                    self.cancel()
                return
            elif len(self._body) < stop:
                return
            elif grpc_http2.is_compressed(self._body):
                self._end(codes.INTERNAL, _COMPRESSED)
            else:
                self.messages.append(bytes(self._body[grpc_http2.PREFIX_BYTES : stop]))
                del self._body[:stop]

    def _acknowledge(self, size_bytes: int) -> None:
        """Enlarge the server's windows again; only a long stream uses them up."""
        self._unacknowledged_bytes += size_bytes
        if self._unacknowledged_bytes > _REFILL_BYTES:
            for stream_id in (0, _STREAM):
                update = http2.window_update(stream_id, self._unacknowledged_bytes)
                self._to_send.append(update)
            self._unacknowledged_bytes = 0

    def _trailers(self, headers: list[Header]) -> None:
        code = grpc_http2.status_of(headers)
        if code is None:
            self._no_grpc(headers)
            return
        response = None
        if code == codes.OK:
            try:
                response = self._response()
            except RemoteProtocolError as exc:
                self._end(codes.INTERNAL, exc.message)
                return
        self.answer = Answer(
            code=code,
            message=grpc_http2.message_of(headers),
            response=response,
            initial_metadata=self._initial_metadata or (),
            trailing_metadata=grpc_http2.metadata_of(headers),
        )

    def _response(self) -> bytes | None:
        if self._is_stream:
            if self._body:
                raise RemoteProtocolError("the last message is not complete")
            return None
        if grpc_http2.is_compressed(self._body):
            raise RemoteProtocolError(_COMPRESSED)
        return grpc_http2.only_message(self._body)

    def _no_grpc(self, headers: list[Header]) -> None:
        self.http_status = _http_status(headers)
        self._end(
            codes.UNKNOWN,
            f"the answer has no gRPC status, but the HTTP status {self.http_status}",
        )

    def _end(self, code: int, message: str) -> None:
        self.answer = Answer(code, message)

    def _send_body(self) -> None:
        left_bytes = len(self._request) - self._sent_bytes
        while left_bytes:
            size = min(
                self._window_bytes, self._stream_window_bytes, left_bytes, limits.FRAME_BYTES
            )
            if size <= 0:
                return
            chunk = self._request[self._sent_bytes : self._sent_bytes + size]
            self._sent_bytes += size
            left_bytes -= size
            flags = 0 if left_bytes else http2.END_STREAM
            self._to_send.append(http2.frame(http2.DATA, flags, _STREAM, chunk))
            self._frames.idle.earned += limits.IDLE_FRAMES_PER_FRAME
            self._window_bytes -= size
            self._stream_window_bytes -= size


def _http_status(headers: Iterable[Header]) -> str:
    status = next((value for name, value in headers if name == b":status"), b"?")
    return status.decode("latin-1")
