"""A client's SPDY/3.1 connection and its streams. Pure.

One connection carries many streams. Each is opened by SYN_STREAM, accepted by SYN_REPLY, and ends
either in both directions one after the other (a frame with FIN each) or at once (RST_STREAM).
A table says what may follow what. A wrong call of ours raises LocalProtocolError. A wrong frame of
the peer's resets its stream, or ends the connection where it is no longer clear what belongs to
which stream. Streams that the peer opens are refused: a runtime opens none.

Three decisions, all because the peer is Go's spdystream library in every runtime:

1. *No data before the reply.* The draft allows it, spdystream throws such data away. ``send_data``
   and ``end_stream`` are errors until ``StreamAccepted``.
2. *No flow control.* spdystream neither sends WINDOW_UPDATE nor looks at it, and it sends more
   than the draft's 64 KiB. So windows are neither kept nor announced, and TCP alone holds a sender
   back: of all streams together. Whoever drives this class must always go on reading, also while
   it waits for a write, or both sides may wait for each other.
3. *Frames for streams that are gone are left out in silence.* They were on their way when the
   stream was reset.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from pycrictl.errors import LocalProtocolError, RemoteProtocolError
from pycrictl.wire import limits
from pycrictl.wire.spdy.frames import (
    MAX_STREAM_ID,
    Data,
    Frame,
    FrameDecoder,
    FrameEncoder,
    GoAway,
    GoAwayStatus,
    HeadersFrame,
    Ping,
    ResetStatus,
    RstStream,
    SynReply,
    SynStream,
)
from pycrictl.wire.spdy.headers import HeaderFields

FRAME_BYTES: Final = 32768
"""Most data in a frame of ours: what Go copies at once."""

_MAX_PING_ID: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class StreamAccepted:
    """The peer accepted a stream of ours: data can be sent on it."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class StreamReceived:
    """The peer sent data, never empty, on a stream: maybe a view of what was fed."""

    stream_id: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """The peer sends no more on a stream. We may go on."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class StreamReset:
    """A stream is gone in both directions.

    Attributes:
        status: one of ResetStatus, or an unknown number.
        error: what the peer did wrong, if it was us who reset the stream for it.
    """

    stream_id: int
    status: int
    error: RemoteProtocolError | None = None


Event = StreamAccepted | StreamReceived | StreamEnded | StreamReset


class _State(Enum):
    """How far a stream is."""

    IDLE = auto()
    OPENING = auto()  # no reply yet
    OPEN = auto()
    ENDED_BY_US = auto()
    ENDED_BY_PEER = auto()
    CLOSED = auto()


class _Step(Enum):
    """What happens to a stream. A frame with FIN is two steps."""

    SEND_DATA = auto()
    SEND_FIN = auto()
    RECEIVE_REPLY = auto()
    RECEIVE_DATA = auto()
    RECEIVE_FIN = auto()
    RECEIVE_RESET = auto()


_STEPS: Final = {
    (_State.OPENING, _Step.RECEIVE_REPLY): _State.OPEN,
    (_State.OPENING, _Step.RECEIVE_RESET): _State.CLOSED,
    (_State.OPEN, _Step.SEND_DATA): _State.OPEN,
    (_State.OPEN, _Step.SEND_FIN): _State.ENDED_BY_US,
    (_State.OPEN, _Step.RECEIVE_DATA): _State.OPEN,
    (_State.OPEN, _Step.RECEIVE_FIN): _State.ENDED_BY_PEER,
    (_State.OPEN, _Step.RECEIVE_RESET): _State.CLOSED,
    (_State.ENDED_BY_US, _Step.RECEIVE_DATA): _State.ENDED_BY_US,
    (_State.ENDED_BY_US, _Step.RECEIVE_FIN): _State.CLOSED,
    (_State.ENDED_BY_US, _Step.RECEIVE_RESET): _State.CLOSED,
    (_State.ENDED_BY_PEER, _Step.SEND_DATA): _State.ENDED_BY_PEER,
    (_State.ENDED_BY_PEER, _Step.SEND_FIN): _State.CLOSED,
    (_State.ENDED_BY_PEER, _Step.RECEIVE_RESET): _State.CLOSED,
}
"""What may follow what. A pair that is missing is an error of the one who made the step."""


class SpdyConnection:
    """A client's side of a connection.

    Feed it with ``receive_data`` and ``receive_eof``, then take ``events_received``, and send
    ``data_to_send`` after each call of any method. The two feeding methods never raise for what
    the peer does: ``error`` says why the connection ended, and events from before are valid.

    Attributes:
        error: what the peer did wrong, or None. The connection is closed with it.
        is_closed: it has ended: nothing comes in, and nothing can be sent.
    """

    def __init__(self) -> None:
        self.error: RemoteProtocolError | None = None
        self.is_closed = False
        self._is_left = False  # the peer takes no new streams
        self._encoder = FrameEncoder()
        self._decoder = FrameDecoder()
        self._streams: dict[int, _State] = {}
        self._next_id = self._next_ping_id = 1
        self._last_peer_id = 0
        self._idle = limits.Allowance(limits.STREAM_IDLE_FRAMES, limits.STREAM_IDLE_FRAMES_PER_S)
        self._events: list[Event] = []
        self._output: list[bytes | memoryview] = []

    def can_send(self, stream_id: int) -> bool:
        """Return whether data can be sent on a stream: accepted, not ended by us, not reset."""
        return (self._state_of(stream_id), _Step.SEND_DATA) in _STEPS

    # What we do. All of it raises LocalProtocolError where it may not be done.

    def open_stream(self, headers: HeaderFields = ()) -> int:
        """Open a stream; return its number. Nothing can be sent on it before StreamAccepted."""
        if self.is_closed or self._is_left or self._next_id > MAX_STREAM_ID:
            raise LocalProtocolError("no SPDY stream can be opened any more")
        stream_id = self._next_id
        self._send(SynStream(stream_id, headers))
        self._next_id += 2
        self._streams[stream_id] = _State.OPENING
        return stream_id

    def send_data(self, stream_id: int, data: bytes | memoryview) -> None:
        """Send data on a stream, in frames of a good size."""
        self._step(stream_id, _Step.SEND_DATA)
        view = memoryview(data)
        for start in range(0, len(data), FRAME_BYTES):
            piece = view[start : start + FRAME_BYTES]
            self._output += (self._encoder.data_head(stream_id, len(piece)), piece)

    def end_stream(self, stream_id: int) -> None:
        """Tell the peer that we send no more on a stream. It may go on."""
        self._step(stream_id, _Step.SEND_FIN)
        self._send(Data(stream_id, b"", is_last=True))

    def ping(self) -> None:
        """Ask for an answer, of which no event is made."""
        if self.is_closed:
            raise LocalProtocolError("the SPDY connection is closed")
        self._send(Ping(self._next_ping_id))
        self._next_ping_id = self._next_ping_id + 2 if self._next_ping_id < _MAX_PING_ID else 1

    def data_to_send(self) -> list[bytes | memoryview]:
        """Return what to send since the last call."""
        output, self._output = self._output, []
        return output

    # What the peer does

    def receive_data(self, data: bytes, now: float = 0.0) -> None:
        """Take in bytes from the peer at a time in seconds. After an error they are dropped."""
        for frame in self._decoder.receive_data(data):
            if self.is_closed:
                break
            try:
                if isinstance(frame, Data) and frame.data:
                    self._idle.earned = limits.STREAM_IDLE_FRAMES
                elif not self._idle.take(now):
                    raise RemoteProtocolError("the peer sends too many empty SPDY frames")
                self._receive(frame)
            except RemoteProtocolError as exc:
                self._fail(exc)
        if self._decoder.error is not None and not self.is_closed:
            self._fail(self._decoder.error)

    def receive_eof(self) -> None:
        """Take in that the peer sends no more. Open streams are gone without an event."""
        self._close()

    def events_received(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def _receive(self, frame: Frame) -> None:
        match frame:
            case Data():
                self._receive_data(frame)
            case HeadersFrame():
                self._receive_data(Data(frame.stream_id, b"", frame.is_last))
            case SynReply():
                if self._take(frame.stream_id, _Step.RECEIVE_REPLY):
                    self._events.append(StreamAccepted(frame.stream_id))
                    self._receive_fin(frame)
            case RstStream():
                if self._take(frame.stream_id, _Step.RECEIVE_RESET):
                    self._events.append(StreamReset(frame.stream_id, frame.status))
            case SynStream():
                self._refuse(frame.stream_id)
            case Ping() if frame.ping_id % 2 == 0:
                self._send(frame)
            case GoAway():
                self._receive_go_away(frame)
            case _:
                pass  # an answered ping

    def _receive_data(self, frame: Data) -> None:
        if self._take(frame.stream_id, _Step.RECEIVE_DATA):
            if frame.data:
                self._events.append(StreamReceived(frame.stream_id, frame.data))
            self._receive_fin(frame)

    def _receive_fin(self, frame: Data | SynReply) -> None:
        if frame.is_last and self._take(frame.stream_id, _Step.RECEIVE_FIN):
            self._events.append(StreamEnded(frame.stream_id))

    def _refuse(self, stream_id: int) -> None:
        if stream_id % 2 or stream_id <= self._last_peer_id:
            raise RemoteProtocolError("the peer opened a SPDY stream with a wrong number")
        self._last_peer_id = stream_id
        self._send(RstStream(stream_id, ResetStatus.REFUSED_STREAM))

    def _receive_go_away(self, frame: GoAway) -> None:
        self._is_left = True
        for stream_id, state in list(self._streams.items()):
            # An accepted stream was looked at, whatever number is said to be the last.
            if state is _State.OPENING and stream_id > frame.last_stream_id:
                self._streams.pop(stream_id)
                self._events.append(StreamReset(stream_id, ResetStatus.REFUSED_STREAM))

    # States

    def _state_of(self, stream_id: int) -> _State:
        state = self._streams.get(stream_id)
        if state is not None:
            return state
        was_there = stream_id < self._next_id if stream_id % 2 else stream_id <= self._last_peer_id
        return _State.CLOSED if was_there else _State.IDLE

    def _set(self, stream_id: int, state: _State) -> None:
        if state is _State.CLOSED:
            self._streams.pop(stream_id)
        else:
            self._streams[stream_id] = state

    def _step(self, stream_id: int, step: _Step) -> None:
        """Take a step of ours."""
        state = self._state_of(stream_id)
        following = _STEPS.get((state, step))
        if following is None:
            raise LocalProtocolError(
                f"a SPDY stream in the state {state.name} has no input {step.name}"
            )
        self._set(stream_id, following)

    def _take(self, stream_id: int, step: _Step) -> bool:
        """Take a step of the peer's; return False if it is to be left out."""
        state = self._state_of(stream_id)
        if state is _State.CLOSED:
            return False
        following = _STEPS.get((state, step))
        if following is state:
            return True
        if following is not None:
            self._set(stream_id, following)
            return True
        if state is _State.IDLE:
            raise RemoteProtocolError("the peer used a SPDY stream that was never opened")
        if step is _Step.RECEIVE_REPLY:
            status = ResetStatus.STREAM_IN_USE
        elif state is _State.OPENING:
            status = ResetStatus.PROTOCOL_ERROR
        else:
            status = ResetStatus.STREAM_ALREADY_CLOSED
        error = RemoteProtocolError(f"the peer broke the order of a SPDY stream: {status.name}")
        self._streams.pop(stream_id)
        self._send(RstStream(stream_id, status))
        self._events.append(StreamReset(stream_id, status, error))
        return False

    def _fail(self, error: RemoteProtocolError) -> None:
        self.error = error
        self._send(GoAway(self._last_peer_id, GoAwayStatus.PROTOCOL_ERROR))
        self._close()

    def _close(self) -> None:
        self.is_closed = True
        self._streams.clear()

    def _send(self, frame: Frame) -> None:
        self._output.append(self._encoder.encode(frame))
