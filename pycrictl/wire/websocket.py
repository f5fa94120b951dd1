"""The messages of an open WebSocket (RFC 6455), by the sans-IO core of ``websockets``. Pure.

The byte streams of Kubernetes (exec, attach, port-forward, copies) are binary messages whose first
byte is the number of a channel. The handshake is over (``wire.upgrade``), and no extension was
agreed on: the size of compressed data is not known before it is decompressed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Final, NamedTuple

from websockets import frames
from websockets.exceptions import PayloadTooBig, ProtocolError
from websockets.frames import DATA_OPCODES, CloseCode, Frame, Opcode
from websockets.protocol import CLIENT, OPEN, SERVER, Protocol, Side

from pycrictl.errors import RemoteProtocolError, StreamError
from pycrictl.wire import limits

__all__ = ["CLIENT", "SERVER", "ChannelMessage", "Messages", "Side", "by_channel"]

_EMPTY_BYTES: Final = 1
"""The number of a channel alone carries nothing."""

_LARGE_BYTES: Final = 64 * 1024
"""From this size on the length of a frame has eight bytes."""

_apply_mask: Final[Callable[..., bytes]] = frames.apply_mask  # type: ignore[attr-defined]
"""The fastest that the library has here."""

_LARGE: Final = bytes((0x80 | Opcode.BINARY, 0xFF))
_LARGE_UNMASKED: Final = bytes((0x80 | Opcode.BINARY, 0x7F))
"""How a frame of a large message begins: its length in eight bytes follows, and a client's key."""

_GOOD_ENDS: Final = (CloseCode.NORMAL_CLOSURE, CloseCode.NO_STATUS_RCVD)


_STATUSES: Final[dict[type[Exception], CloseCode]] = {
    ProtocolError: CloseCode.PROTOCOL_ERROR,
    UnicodeDecodeError: CloseCode.INVALID_DATA,
    PayloadTooBig: CloseCode.MESSAGE_TOO_BIG,
}
"""What a peer is told of its fault, as the library does where it is given bytes."""


class ChannelMessage(NamedTuple):
    """A message that begins with the number of a channel, taken apart."""

    channel: int
    data: memoryview


class Dropped(StreamError):
    """The peer went away without a close."""


class Messages:
    """Our end of a connection.

    Feed it with ``receive_data`` and ``receive_eof``, then take ``messages_received``, and send
    ``data_to_send`` after each call of any method. It answers the close, and pings: the latest
    one, if several wait for an answer (RFC 6455, 5.5.3). The two feeding methods never raise for
    what the peer does: ``error`` says what was wrong, and messages from before are valid.

    Args:
        side: which end this is.
        max_bytes: the longest message that is taken, which is held until it is whole.
        peer: what errors call the peer.
        takes_text: text is a message, too; else it breaks the protocol.
        is_local: both ends are on this machine. A client's large frames are then sent with the key
            0: masking is for intermediaries (RFC 6455, 10.3), and takes a tenth of a copy's time.

    Attributes:
        is_over: the peer closed, went away or broke the protocol: nothing comes in any more.
        error: RemoteProtocolError if it broke the protocol, StreamError if it went away without
            a close, or closed with a status of failure; else None.
    """

    def __init__(
        self,
        side: Side,
        *,
        max_bytes: int = limits.STREAM_MESSAGE_BYTES,
        peer: str = "the peer",
        takes_text: bool = False,
        is_local: bool = False,
    ) -> None:
        self.is_over = False
        self._is_local = is_local
        self.error: StreamError | None = None
        self._protocol = Protocol(side, max_size=max_bytes)
        self._max_bytes = max_bytes
        self._peer = peer
        self._takes_text = takes_text
        self._messages: list[memoryview] = []
        self._fragments = bytearray()
        self._output: list[bytes | memoryview] = []
        self._answer = b""
        self._idle = limits.Allowance(limits.STREAM_IDLE_FRAMES, limits.STREAM_IDLE_FRAMES_PER_S)

    def send(self, data: bytes | memoryview, *, head: bytes = b"") -> None:
        """Send a message, in one frame: the runtimes' server takes every frame for a message.

        It is dropped once either side has closed.

        Args:
            data: must not change before it is sent.
            head: what stands before it in the message.
        """
        if self._protocol.state is not OPEN:
            return
        if len(data) >= _LARGE_BYTES:
            self._output += _large_frame(self._protocol.side, head, data, is_local=self._is_local)
            return
        self._protocol.send_binary(b"".join((head, data)))
        self._output += self._protocol.data_to_send()

    def close(self) -> None:
        """Send our close. Has no effect once either side has closed."""
        if self._protocol.state is OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self._output += self._protocol.data_to_send()

    def receive_data(self, data: bytes | memoryview, now: float = 0.0) -> None:
        """Take in bytes from the peer at a time in seconds. They are dropped if all is over."""
        if self.is_over:
            return
        self._protocol.receive_data(data)  # type: ignore[arg-type]  # it takes any buffer
        self._take_frames(now)

    def read_frame(self, read: Callable[[int], bytes | memoryview], now: float = 0.0) -> None:
        """Read one frame, in place of ``receive_data``, which copies all that it is given twice.

        Args:
            read: returns so many bytes, or raises EOFError.
            now: as for ``receive_data``.
        """
        protocol, head, is_masked = self._protocol, b"", False
        most_bytes = self._max_bytes - len(self._fragments)

        def read_exact(count: int) -> Generator[None, None, Any]:
            nonlocal head
            yield from ()  # the library takes sources that have to be waited for
            data, head = head[:count], head[count:]
            return data or read(count)

        try:
            if protocol.side is SERVER:
                head, is_masked = _client_head(read)
            parsing = Frame.parse(read_exact, mask=is_masked, max_size=most_bytes)
            protocol.recv_frame(_result(parsing))
        except EOFError:
            protocol.receive_eof()
        except tuple(_STATUSES) as exc:
            protocol.fail(_STATUSES[type(exc)], str(exc))
            protocol.parser_exc = exc
        self._take_frames(now)

    def _take_frames(self, now: float) -> None:
        for frame in self._protocol.events_received():
            assert isinstance(frame, Frame)
            is_message = frame.opcode in DATA_OPCODES
            if frame.opcode is Opcode.TEXT and not self._takes_text:
                self._fail("it sent text", CloseCode.UNSUPPORTED_DATA)
            elif is_message and len(frame.data) > _EMPTY_BYTES:
                self._idle.earned = limits.STREAM_IDLE_FRAMES
            elif not self._idle.take(now):
                self._fail("it sends too many empty messages", CloseCode.PROTOCOL_ERROR)
            if self.is_over:
                break
            if is_message and frame.fin and not self._fragments:
                self._messages.append(memoryview(frame.data))
            elif is_message:
                self._fragments += frame.data
                if frame.fin:
                    self._messages.append(memoryview(self._fragments))
                    self._fragments = bytearray()
        # The last answer only is kept: a peer that reads nothing cannot make them pile up.
        for answer in self._protocol.data_to_send():
            self._answer = answer or self._answer  # the empty one is the end of the connection
        self._check_end()

    def receive_eof(self) -> None:
        """Take in that the peer sends no more."""
        if not self.is_over:
            self._protocol.receive_eof()
            self._check_end()

    def messages_received(self) -> list[memoryview]:
        """Return the messages that came since the last call."""
        messages, self._messages = self._messages, []
        return messages

    def data_to_send(self) -> list[bytes | memoryview]:
        """Return what to send since the last call."""
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
                # Nothing in its reason can steer a terminal.
                said = f": {close.reason!r}" if close.reason else ""
                status = f"{int(close.code)}{said}"
                self.error = StreamError(f"{self._peer} closed the stream with status {status}")
            case EOFError():
                lost = "dropped the connection without closing the stream"
                self.error = Dropped(f"{self._peer} {lost}")
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


def _client_head(read: Callable[[int], bytes | memoryview]) -> tuple[bytes, bool]:
    """Read the beginning of a client's frame; return it, and whether to unmask its content.

    A large frame whose key is 0 becomes one without a key: its content need not be copied.
    """
    head = bytes(read(2))
    if head != _LARGE:
        return head, True
    length, key = (bytes(read(count)) for count in (8, 4))
    if any(key):
        return head + length + key, True
    return _LARGE_UNMASKED + length, False


def _result(parsing: Generator[None, None, Frame]) -> Frame:
    try:
        next(parsing)
    except StopIteration as end:
        frame: Frame = end.value
        return frame
    raise AssertionError("its source waits for nothing")


def _large_frame(
    side: Side, head: bytes, data: bytes | memoryview, *, is_local: bool
) -> list[bytes | memoryview]:
    """Return a frame as the library writes it, which copies all of it twice."""
    length = (len(head) + len(data)).to_bytes(8, "big")
    if side is SERVER:
        return [_LARGE_UNMASKED + length + head, data]
    start = _LARGE + length
    if is_local:
        return [start + bytes(4) + head, data]
    mask = secrets.token_bytes(4)
    done = len(head) % 4
    return [start + mask + _apply_mask(head, mask), _apply_mask(data, mask[done:] + mask[:done])]


def by_channel(messages: Iterable[memoryview]) -> Iterator[ChannelMessage]:
    """Take messages apart; an empty one has no channel."""
    for message in messages:
        if message:
            yield ChannelMessage(message[0], message[1:])
