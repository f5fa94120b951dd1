"""The messages and the handshake of a WebSocket (RFC 6455), by ``websockets`` without IO. Pure.

The byte streams of Kubernetes (exec, attach, port-forward, copies) are binary messages whose first
byte is the number of a channel. No extension is negotiated: the size of compressed data is not
known before it is decompressed. HTTP heads are read and written elsewhere (``opening``; aiohttp in
the agent), since a server may decline the upgrade with a plain response or serve other URLs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHandshake, PayloadTooBig, ProtocolError
from websockets.frames import DATA_OPCODES, CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import CLIENT, OPEN, SERVER, Protocol, Side
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from pycrictl.base import limits
from pycrictl.base.errors import RemoteProtocolError, StreamError
from pycrictl.base.units import escape

__all__ = [
    "CLIENT",
    "SERVER",
    "ClientHandshake",
    "Messages",
    "Side",
]

_EMPTY_BYTES: Final = 1
"""A message of this length, a channel's number alone, has no content."""

_COPIED_BYTES: Final = 125
"""The longest control frame (RFC 6455, 5.5): the library decodes its text, which needs a copy."""

_NOTHING: Final = memoryview(b"")

_Reading = Generator[None, None, Any]
"""Waits for input, and returns it."""

_GOOD_ENDS: Final = (CloseCode.NORMAL_CLOSURE, CloseCode.NO_STATUS_RCVD)


_STATUSES: Final[dict[type[Exception], CloseCode]] = {
    ProtocolError: CloseCode.PROTOCOL_ERROR,
    UnicodeDecodeError: CloseCode.INVALID_DATA,
    PayloadTooBig: CloseCode.MESSAGE_TOO_BIG,
}
"""The close codes for a peer's errors, as the library sends them when it is fed bytes."""


class Messages:
    """Our end of a connection.

    Feed it with ``receive_data`` and ``receive_eof``, then take ``messages_received``, and send
    ``data_to_send`` after every method call. It answers the close and pings; of several unanswered
    pings, only the latest (RFC 6455, 5.5.3). The two feeding methods never raise because of the
    peer: ``error`` says what was wrong, and earlier messages remain valid.

    Args:
        side: which end this is.
        max_bytes: the longest message accepted; it is buffered until complete.
        peer: the peer's name in errors.
        takes_text: whether text messages are accepted; otherwise they break the protocol.

    Attributes:
        is_over: the peer closed, disconnected or broke the protocol; no more messages will follow.
        error: RemoteProtocolError if it broke the protocol, StreamError if it disconnected without
            a close, or closed with a failure status; else None.
    """

    def __init__(
        self,
        side: Side,
        *,
        max_bytes: int = limits.STREAM_MESSAGE_BYTES,
        peer: str = "the peer",
        takes_text: bool = False,
    ) -> None:
        self.is_over = False
        self.error: StreamError | None = None
        self._protocol = Protocol(side, max_size=max_bytes)
        self._max_bytes = max_bytes
        self._peer = peer
        self._takes_text = takes_text
        self._input, self._position = _NOTHING, 0
        self._parsing = self._parse(self._read_exact)
        self._messages: list[memoryview] = []
        self._fragments = bytearray()
        self._output: list[bytes] = []
        self._answer = b""
        self._idle = limits.Allowance(limits.STREAM_IDLE_FRAMES, limits.STREAM_IDLE_FRAMES_PER_S)

    def send(self, data: bytes | memoryview, *, head: bytes = b"") -> None:
        """Send a message in one frame: the runtimes' server treats every frame as a message.

        The message is dropped once either side has closed.

        Args:
            head: the start of the message, before ``data``.
        """
        if self._protocol.state is OPEN:
            self._protocol.send_binary(b"".join((head, data)))
            self._output += self._protocol.data_to_send()

    def close(self) -> None:
        """Send our close. Has no effect once either side has closed."""
        if self._protocol.state is OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self._output += self._protocol.data_to_send()

    def receive_data(self, data: bytes | memoryview, now: float = 0.0) -> None:
        """Handle bytes received at the time ``now`` in seconds; ignore them if ``is_over``.

        Messages may be views of ``data``.
        """
        self._input, self._position = memoryview(data), 0
        while not self.is_over and (frame := next(self._parsing, None)):
            self._take_frame(frame, now)
        self._input = _NOTHING
        self._end_receiving()

    def read_frame(self, read: Callable[[int], bytes | memoryview], now: float = 0.0) -> None:
        """Read one frame; an alternative to ``receive_data`` for callers with their own buffer.

        Args:
            read: returns the given number of bytes, or raises EOFError.
            now: as for ``receive_data``.
        """

        def read_exact(count: int) -> _Reading:
            yield from ()  # the library's interface also allows sources that wait
            return read(count)

        if frame := next(self._parse(read_exact), None):
            self._take_frame(frame, now)
        self._end_receiving()

    def _parse(self, read_exact: Callable[[int], _Reading]) -> Generator[Frame | None]:
        """Parse frames until the first error; yield None where more input is needed."""
        protocol = self._protocol
        is_masked = protocol.side is SERVER
        try:
            while True:
                # The library's own parser would copy the input twice.
                most_bytes = self._max_bytes - len(self._fragments)
                frame = yield from Frame.parse(read_exact, mask=is_masked, max_size=most_bytes)
                protocol.recv_frame(frame)
                yield frame
        except EOFError:
            protocol.receive_eof()
        except tuple(_STATUSES) as exc:
            protocol.fail(_STATUSES[type(exc)], str(exc))
            protocol.parser_exc = exc

    def _read_exact(self, count: int) -> _Reading:
        """Return a view of the input; a copy only if it is short or came in several pieces."""
        start = self._position
        piece = self._input[start : start + count]
        self._position = start + len(piece)
        if len(piece) == count:
            return piece if count > _COPIED_BYTES else bytes(piece)
        gathered = bytearray(piece)
        while len(gathered) < count:
            yield
            self._position = count - len(gathered)
            gathered += self._input[: self._position]
        return gathered

    def _take_frame(self, frame: Frame, now: float) -> None:
        is_message = frame.opcode in DATA_OPCODES
        if frame.opcode is Opcode.TEXT and not self._takes_text:
            self._fail("it sent text", CloseCode.UNSUPPORTED_DATA)
        elif is_message and len(frame.data) > _EMPTY_BYTES:
            self._idle.earned = limits.STREAM_IDLE_FRAMES
        elif not self._idle.spend(now):
            self._fail("it sends too many empty messages", CloseCode.PROTOCOL_ERROR)
        if self.is_over or not is_message:
            self._check_end()
        elif frame.fin and not self._fragments:
            self._messages.append(memoryview(frame.data))
        else:
            self._fragments += frame.data
            if frame.fin:
                self._messages.append(memoryview(self._fragments))
                self._fragments = bytearray()

    def _end_receiving(self) -> None:
        self._check_end()
        self._protocol.events_received()  # frames handled already
        # Only the last answer is kept: a peer that reads nothing cannot make them pile up.
        for answer in self._protocol.data_to_send():
            self._answer = answer or self._answer  # an empty one stands for the connection's end

    def receive_eof(self) -> None:
        """Handle the end of the peer's data."""
        if not self.is_over:
            self._protocol.receive_eof()
            self._check_end()

    def messages_received(self) -> list[memoryview]:
        """Return the messages received since the last call."""
        messages, self._messages = self._messages, []
        return messages

    def data_to_send(self) -> list[bytes]:
        """Return the bytes to send that were added since the last call."""
        output, self._output = self._output, []
        if self._answer:
            output.append(self._answer)
            self._answer = b""
        return output

    def _check_end(self) -> None:
        problem, close = self._protocol.parser_exc, self._protocol.close_rcvd
        if self.is_over or (problem is None and close is None):
            return
        self.is_over = True
        match problem:
            case None if close is not None and close.code not in _GOOD_ENDS:
                # repr() escapes control sequences in the reason.
                said = f": {close.reason!r}" if close.reason else ""
                status = f"{int(close.code)}{said}"
                self.error = StreamError(f"{self._peer} closed the stream with status {status}")
            case EOFError():
                lost = "dropped the connection without closing the stream"
                self.error = StreamError(f"{self._peer} {lost}")
            case PayloadTooBig():
                limit = f"a message of more than {self._max_bytes} bytes"
                self.error = RemoteProtocolError(f"{self._peer} sent {limit}")
            case Exception():
                self.error = self._violation(str(problem))

    def _fail(self, problem: str, code: CloseCode) -> None:
        self.is_over = True
        self.error = self._violation(problem)
        self._protocol.fail(code)

    def _violation(self, problem: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"{self._peer} broke the WebSocket protocol: {problem}")


# A client's handshake; the library makes and checks its fields


_ANYWHERE: Final = WebSocketURI(
    secure=False, host="localhost", port=80, path="/", query="", username=None, password=None
)


class ClientHandshake:
    """A client's side of a handshake; ``protocol`` is the required subprotocol, empty for none."""

    def __init__(self, protocol: str = "") -> None:
        self._wanted = protocol
        offered = [Subprotocol(protocol)] if protocol else None
        self._protocol = ClientProtocol(_ANYWHERE, subprotocols=offered)

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The header fields of the request, which is a GET, without ``Host``."""
        fields = self._protocol.connect().headers
        return [(name, value) for name, value in fields.raw_items() if name != "Host"]

    def check(self, response: Response) -> None:
        """Require that a 101 accepts the handshake (RFC 6455, 4.1) and the subprotocol."""
        try:
            # The runtimes' server sends an empty Sec-WebSocket-Protocol.
            fields = Headers(
                [(name, value) for name, value in response.headers.raw_items() if value]
            )
            status, reason = response.status_code, response.reason_phrase
            self._protocol.process_response(Response(status, reason, fields))
        except InvalidHandshake as exc:
            raise RemoteProtocolError(
                f"the server's WebSocket handshake is wrong: {escape(str(exc))}"
            ) from exc
        if (self._protocol.subprotocol or "") != self._wanted:
            raise RemoteProtocolError(f"the server does not speak {self._wanted}")
