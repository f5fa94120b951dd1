"""The calls on one client's connection, as the relay keeps them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pycrictl.errors import RemoteProtocolError
from pycrictl.proxy.relay.calls import Answer, CallRequest
from pycrictl.wire import codes, grpc_http2, hpack, http2
from pycrictl.wire.hpack import Header

MAX_OWN_REQUEST_BYTES: Final = 16 * 1024 * 1024


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
        pending: the part of the answer's message that the windows did not allow yet.
        trailers: the encoded end of the answer.
    """

    headers: list[Header] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    window_bytes: int = 0
    pending: bytes = b""
    trailers: bytes = b""

    def receive(self, data: bytes) -> Answer | None:
        """Take a piece of the request; return an error when it becomes too large."""
        self.body += data
        if len(self.body) > MAX_OWN_REQUEST_BYTES:
            return Answer(codes.RESOURCE_EXHAUSTED, "the request is too large")
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
        size = max(0, min(self.window_bytes, connection_window_bytes, http2.MAX_FRAME_BYTES))
        chunk, self.pending = self.pending[:size], self.pending[size:]
        self.window_bytes -= len(chunk)
        return chunk
