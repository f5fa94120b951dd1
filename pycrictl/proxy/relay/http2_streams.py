"""The calls on one client's connection, as the relay keeps them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pycrictl.errors import RemoteProtocolError
from pycrictl.proxy.relay.calls import Abandoned, Answer, CallRecord, CallRequest, Event
from pycrictl.wire import codes, grpc_http2, hpack, http2, limits
from pycrictl.wire.hpack import Header

_NOT_ONE: Final = "the request is longer than its message"


@dataclass(slots=True, eq=False)
class Stream:
    """A call: one HTTP/2 stream.

    Attributes:
        is_client_done: the client has sent all of its request.
        is_over: its status is known; the client may not have it yet.
        has_response_headers: the client has the beginning of the answer.
    """

    path: str
    started: float
    is_client_done: bool = False
    is_over: bool = False
    has_response_headers: bool = False
    request_bytes: int = 0
    response_bytes: int = 0


@dataclass(slots=True, eq=False)
class OwnStream(Stream):
    """A call that the proxy answers.

    Attributes:
        window_bytes: how much of this answer the client takes now.
        pending: the answer's message as it is sent.
        sent_bytes: how much of it the windows have allowed.
        trailers: the encoded end of the answer.
        dropped: called when it is forgotten.
    """

    headers: list[Header] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    window_bytes: int = 0
    pending: bytes = b""
    sent_bytes: int = 0
    trailers: bytes = b""
    dropped: Callable[[], object] = lambda: None

    @property
    def is_sent(self) -> bool:
        """Whether nothing of the answer's message is left to send."""
        return self.sent_bytes == len(self.pending)

    def receive(self, data: bytes) -> Answer | None:
        """Take a piece of the request; return an error when it becomes too large."""
        self.body += data
        if len(self.body) < grpc_http2.PREFIX_BYTES:
            return None
        size = int.from_bytes(self.body[1 : grpc_http2.PREFIX_BYTES], "big")
        if size > limits.OWN_BODY_BYTES:
            return Answer(
                codes.RESOURCE_EXHAUSTED,
                f"the request is too large ({size} vs. {limits.OWN_BODY_BYTES})",
            )
        if len(self.body) > grpc_http2.PREFIX_BYTES + size:
            return Answer(codes.INTERNAL, _NOT_ONE)
        return None

    def request(self) -> CallRequest | Answer:
        """Return the whole request, or the error that is its answer."""
        if grpc_http2.is_compressed(self.body):
            return Answer(codes.UNIMPLEMENTED, "the request is compressed")
        try:
            return CallRequest(
                path=self.path,
                message=grpc_http2.only_message(self.body),
                metadata=grpc_http2.metadata_of(self.headers),
                timeout_s=grpc_http2.timeout_s(self.headers),
            )
        except RemoteProtocolError as exc:
            return Answer(codes.INTERNAL, exc.message)
        finally:
            self.headers, self.body = [], bytearray()

    def begin(self, answer: Answer) -> list[Header] | None:
        """Keep an answer to be sent; return what it begins with, None if it has no message."""
        status = grpc_http2.status_headers(answer.code, answer.message, answer.trailing_metadata)
        head = grpc_http2.response_headers(answer.initial_metadata)
        if answer.response is None:
            self.trailers = hpack.encode([*head, *status])
            return None
        self.trailers = hpack.encode(status)
        self.pending = grpc_http2.prefixed(answer.response)
        self.response_bytes = len(self.pending)
        return head

    def next_chunk(self, connection_window_bytes: int) -> bytes:
        """Take what of the message may be sent now; empty when nothing may."""
        size = max(0, min(self.window_bytes, connection_window_bytes, limits.FRAME_BYTES))
        chunk = self.pending[self.sent_bytes : self.sent_bytes + size]
        self.sent_bytes += len(chunk)
        self.window_bytes -= len(chunk)
        return chunk


class Streams:
    """The calls of one client that are under way, and how they end.

    Args:
        to_client: gets the frames that end them for the client.

    Attributes:
        by_id: the calls.
        events: what has happened.
        table_updates: what the next header block for the client must begin with: it has made its
            compression table smaller. The runtime's blocks do so themselves.
    """

    def __init__(self, to_client: list[bytes]) -> None:
        self.table_updates = b""
        self.by_id: dict[int, Stream] = {}
        self.events: list[Event] = []
        self._to_client = to_client

    @property
    def open_paths(self) -> list[str]:
        """The methods of the calls without a status yet."""
        return [stream.path for stream in self.by_id.values() if not stream.is_over]

    def own(self) -> list[tuple[int, OwnStream]]:
        """Return the calls that the proxy answers."""
        return [(id_, own) for id_, own in self.by_id.items() if isinstance(own, OwnStream)]

    def others(self) -> list[tuple[int, Stream]]:
        """Return the calls that the runtime answers."""
        return [(id_, it) for id_, it in self.by_id.items() if not isinstance(it, OwnStream)]

    def send_headers(self, stream_id: int, block: bytes, *, end_stream: bool) -> None:
        """Send a header block that no table was used for."""
        block = self.table_updates + block
        self.table_updates = b""
        self._to_client.append(http2.header_frames(stream_id, block, end_stream=end_stream))

    def refuse(self, stream_id: int, stream: Stream, code: int, message: str, now: float) -> None:
        """End a call with a status in place of the runtime's."""
        headers = grpc_http2.status_headers(code, message)
        if not stream.has_response_headers:
            headers = grpc_http2.response_headers() + headers
        self.record(stream, code, now)
        self.finish(stream_id, stream, hpack.encode(headers))

    def finish(self, stream_id: int, stream: Stream, trailers: bytes) -> None:
        """Send the end of an answer."""
        self.send_headers(stream_id, trailers, end_stream=True)
        if not stream.is_client_done:
            self._to_client.append(http2.rst_stream(stream_id, http2.ErrorCode.NO_ERROR))
        self.forget(stream_id)

    def client_finished(self, stream_id: int, stream: Stream) -> None:
        """Note that the client has sent all."""
        stream.is_client_done = True
        if stream.is_over and not isinstance(stream, OwnStream):
            self.forget(stream_id)

    def server_finished(self, stream_id: int, stream: Stream, code: int | None, now: float) -> None:
        """Note that the runtime has sent all."""
        self.record(stream, code, now)
        if stream.is_client_done:
            self.forget(stream_id)

    def abandon(self, stream_id: int, stream: Stream, now: float) -> None:
        """End a call that the client does not wait for any more."""
        if isinstance(stream, OwnStream) and not stream.is_over:
            self.events.append(Abandoned(stream_id))
        self.record(stream, codes.CANCELLED, now)
        self.forget(stream_id)

    def record(self, stream: Stream, code: int | None, now: float) -> None:
        """Note how a call ended, the first time."""
        if stream.is_over:
            return
        stream.is_over = True
        self.events.append(
            CallRecord(
                path=stream.path,
                code=code,
                duration_s=now - stream.started,
                request_bytes=stream.request_bytes,
                response_bytes=stream.response_bytes,
            )
        )

    def forget(self, stream_id: int) -> None:
        """Drop a call of which nothing is to be sent any more."""
        stream = self.by_id.pop(stream_id, None)
        if isinstance(stream, OwnStream):
            stream.dropped()
