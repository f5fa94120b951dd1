"""A SPDY/3.1 connection and its streams. Pure.

One connection carries many streams. Each is opened by SYN_STREAM, accepted by SYN_REPLY, and ends
either in both directions one after the other (a frame with FIN each) or at once (RST_STREAM).
The tables of ``pycrictl.wire.spdy.states`` tell what may follow what. A wrong call of ours raises
LocalProtocolError. A wrong frame of the peer's resets its stream, or ends the connection where it
is no longer clear what belongs to which stream.

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

from enum import Enum
from typing import Final

from pycrictl.errors import LocalProtocolError, RemoteProtocolError
from pycrictl.wire.spdy.events import (
    DataReceived,
    Event,
    GoAwayReceived,
    HeadersReceived,
    PingAnswered,
    StreamAccepted,
    StreamEnded,
    StreamOffered,
    StreamReset,
)
from pycrictl.wire.spdy.frames import (
    MAX_STREAM_ID,
    Data,
    Frame,
    FrameDecoder,
    FrameEncoder,
    GoAway,
    GoAwayStatus,
    Headers,
    Ping,
    ResetStatus,
    RstStream,
    SynReply,
    SynStream,
)
from pycrictl.wire.spdy.headers import HeaderFields
from pycrictl.wire.spdy.states import (
    CONNECTION,
    STREAM,
    ConnectionState,
    ConnectionStep,
    StreamInput,
    StreamState,
)

__all__ = ["Connection", "Side"]

FRAME_BYTES: Final = 32768
"""Most data in a frame of ours: what Go copies at once."""

MAX_STREAMS: Final = 1024
"""Most streams that the peer may have open at once, unless told otherwise."""

_MAX_PING_ID: Final = 2**32 - 1


class Side(Enum):
    """Who opened the connection."""

    CLIENT = 1
    SERVER = 2


class Connection:
    """One side of a connection.

    Feed it with ``receive_data`` and ``receive_eof``, then take ``events_received``, and send
    ``data_to_send`` after each call of any method. The two feeding methods never raise for what
    the peer does: ``error`` says why the connection ended, and events from before are valid.

    Args:
        side: a client's streams have odd numbers, a server's even ones.
        max_streams: more streams than that at once are refused to the peer.

    Attributes:
        error: what the peer did wrong, or None. The connection is closed with it.
    """

    def __init__(self, side: Side, *, max_streams: int = MAX_STREAMS) -> None:
        self.error: RemoteProtocolError | None = None
        self._max_streams = max_streams
        self._state = ConnectionState.OPEN
        self._encoder = FrameEncoder()
        self._decoder = FrameDecoder()
        self._streams: dict[int, StreamState] = {}
        self._next_id = self._next_ping_id = side.value
        self._last_peer_id = 0
        self._peer_parity = 1 - side.value % 2
        self._events: list[Event] = []
        self._output: list[bytes | memoryview] = []

    @property
    def is_closed(self) -> bool:
        """True after the end or an error: nothing comes in, and nothing can be sent."""
        return self._state is ConnectionState.CLOSED

    @property
    def can_open_stream(self) -> bool:
        """False once the peer takes no new streams, or the numbers have run out."""
        return self._next_id <= MAX_STREAM_ID and self._may(ConnectionStep.OPEN_STREAM)

    def can_send(self, stream_id: int) -> bool:
        """Tell whether data can be sent on a stream: it is accepted, not ended by us, not reset."""
        return (self._state_of(stream_id), StreamInput.SEND_DATA) in STREAM

    # What we do. All of it raises LocalProtocolError where it may not be done.

    def open_stream(self, headers: HeaderFields = ()) -> int:
        """Open a stream; return its number. Nothing can be sent on it before StreamAccepted."""
        if not self.can_open_stream:
            raise LocalProtocolError("no SPDY stream can be opened any more")
        stream_id = self._next_id
        self._send(SynStream(stream_id, headers))
        self._next_id += 2
        self._streams[stream_id] = STREAM[StreamState.IDLE, StreamInput.SEND_SYN]
        return stream_id

    def accept_stream(self, stream_id: int, headers: HeaderFields = ()) -> None:
        """Accept a stream that the peer opened."""
        self._step(stream_id, StreamInput.SEND_REPLY)
        self._send(SynReply(stream_id, headers))

    def send_data(self, stream_id: int, data: bytes | memoryview) -> None:
        """Send data on a stream, in frames of a good size."""
        self._step(stream_id, StreamInput.SEND_DATA)
        view = memoryview(data)
        for start in range(0, len(data), FRAME_BYTES):
            piece = view[start : start + FRAME_BYTES]
            self._output += (self._encoder.data_head(stream_id, len(piece)), piece)

    def end_stream(self, stream_id: int) -> None:
        """Tell the peer that we send no more on a stream. It may go on."""
        self._step(stream_id, StreamInput.SEND_FIN)
        self._send(Data(stream_id, b"", is_last=True))

    def reset_stream(self, stream_id: int, status: ResetStatus = ResetStatus.CANCEL) -> None:
        """Give up a stream in both directions. No event follows."""
        self._step(stream_id, StreamInput.SEND_RESET)
        self._send(RstStream(stream_id, status))

    def discard_stream(self, stream_id: int) -> None:
        """Be done with a stream in whatever state it is; no event follows."""
        state = self._state_of(stream_id)
        if state is StreamState.ENDED_BY_PEER:
            self.end_stream(stream_id)
        elif (state, StreamInput.SEND_RESET) in STREAM:
            self.reset_stream(stream_id)

    def ping(self) -> int:
        """Ask for an answer; return the number that PingAnswered will have."""
        if self.is_closed:
            raise LocalProtocolError("the SPDY connection is closed")
        ping_id = self._next_ping_id
        self._send(Ping(ping_id))
        self._next_ping_id += 2
        if self._next_ping_id > _MAX_PING_ID:
            self._next_ping_id = 2 - ping_id % 2
        return ping_id

    def go_away(self, status: GoAwayStatus = GoAwayStatus.OK) -> None:
        """Tell the peer that it can open no more streams. Those that are open go on."""
        if not self._advance(ConnectionStep.SEND_GOAWAY):
            raise LocalProtocolError("farewell was said on the SPDY connection before")
        self._send(GoAway(self._last_peer_id, status))

    def data_to_send(self) -> bytes:
        """Return the bytes to send since the last call."""
        output, self._output = self._output, []
        return b"".join(output)

    # What the peer does

    def receive_data(self, data: bytes) -> None:
        """Take in bytes from the peer. After an error they are thrown away."""
        for frame in self._decoder.receive_data(data):
            if self.is_closed:
                break
            try:
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
            case SynStream():
                self._receive_syn(frame)
            case SynReply():
                self._receive_reply(frame)
            case Headers():
                if self._take(frame.stream_id, StreamInput.RECEIVE_DATA):
                    self._events.append(HeadersReceived(frame.stream_id, frame.headers))
                    self._receive_fin(frame)
            case RstStream():
                if self._take(frame.stream_id, StreamInput.RECEIVE_RESET):
                    self._events.append(StreamReset(frame.stream_id, frame.status))
            case Ping():
                self._receive_ping(frame)
            case GoAway():
                self._receive_go_away(frame)
            case _:
                pass  # SETTINGS and WINDOW_UPDATE say nothing without flow control

    def _receive_data(self, frame: Data) -> None:
        if self._take(frame.stream_id, StreamInput.RECEIVE_DATA):
            if frame.data:
                self._events.append(DataReceived(frame.stream_id, frame.data))
            self._receive_fin(frame)

    def _receive_syn(self, frame: SynStream) -> None:
        stream_id = frame.stream_id
        if not self._may(ConnectionStep.TAKE_STREAM):
            return
        if not self._is_of_peer(stream_id) or stream_id <= self._last_peer_id:
            raise RemoteProtocolError("the peer opened a SPDY stream with a wrong number")
        self._last_peer_id = stream_id
        if sum(map(self._is_of_peer, self._streams)) >= self._max_streams:
            self._send(RstStream(stream_id, ResetStatus.REFUSED_STREAM))
            return
        self._streams[stream_id] = StreamState.IDLE
        one_way = frame.is_unidirectional
        self._take(
            stream_id, StreamInput.RECEIVE_ONE_WAY_SYN if one_way else StreamInput.RECEIVE_SYN
        )
        self._events.append(StreamOffered(stream_id, frame.headers, one_way))
        self._receive_fin(frame)

    def _receive_reply(self, frame: SynReply) -> None:
        if self._take(frame.stream_id, StreamInput.RECEIVE_REPLY):
            self._events.append(StreamAccepted(frame.stream_id, frame.headers))
            self._receive_fin(frame)

    def _receive_fin(self, frame: Data | SynStream | SynReply | Headers) -> None:
        if frame.is_last and self._take(frame.stream_id, StreamInput.RECEIVE_FIN):
            self._events.append(StreamEnded(frame.stream_id))

    def _receive_ping(self, frame: Ping) -> None:
        if self._is_of_peer(frame.ping_id):
            self._send(frame)
        else:
            self._events.append(PingAnswered(frame.ping_id))

    def _receive_go_away(self, frame: GoAway) -> None:
        self._advance(ConnectionStep.RECEIVE_GOAWAY)
        for stream_id, state in list(self._streams.items()):
            # An accepted stream was looked at, whatever number is said to be the last.
            if state is StreamState.OPENING and stream_id > frame.last_stream_id:
                self._streams.pop(stream_id)
                self._events.append(StreamReset(stream_id, ResetStatus.REFUSED_STREAM))
        self._events.append(GoAwayReceived(frame.status))

    # States

    def _is_of_peer(self, number: int) -> bool:
        return number % 2 == self._peer_parity

    def _state_of(self, stream_id: int) -> StreamState:
        state = self._streams.get(stream_id)
        if state is not None:
            return state
        is_of_peer = self._is_of_peer(stream_id)
        was_open = stream_id <= self._last_peer_id if is_of_peer else stream_id < self._next_id
        return StreamState.CLOSED if was_open else StreamState.IDLE

    def _set(self, stream_id: int, state: StreamState) -> None:
        if state is StreamState.CLOSED:
            self._streams.pop(stream_id)
        else:
            self._streams[stream_id] = state

    def _step(self, stream_id: int, step: StreamInput) -> None:
        """Take a step of ours."""
        state = self._state_of(stream_id)
        following = STREAM.get((state, step))
        if following is None:
            raise LocalProtocolError(
                f"a SPDY stream in the state {state.name} has no input {step.name}"
            )
        self._set(stream_id, following)

    def _take(self, stream_id: int, step: StreamInput) -> bool:
        """Take a step of the peer's. False if it is to be left out."""
        state = self._state_of(stream_id)
        if state is StreamState.CLOSED:
            return False
        following = STREAM.get((state, step))
        if following is state:
            return True
        if following is not None:
            self._set(stream_id, following)
            return True
        if state is StreamState.IDLE:
            raise RemoteProtocolError("the peer used a SPDY stream that was never opened")
        if step is StreamInput.RECEIVE_REPLY:
            status = ResetStatus.STREAM_IN_USE
        elif state is StreamState.OPENING:
            status = ResetStatus.PROTOCOL_ERROR
        else:
            status = ResetStatus.STREAM_ALREADY_CLOSED
        error = RemoteProtocolError(f"the peer broke the order of a SPDY stream: {status.name}")
        self._streams.pop(stream_id)
        self._send(RstStream(stream_id, status))
        self._events.append(StreamReset(stream_id, status, error))
        return False

    def _may(self, step: ConnectionStep) -> bool:
        return (self._state, step) in CONNECTION

    def _advance(self, step: ConnectionStep) -> bool:
        following = CONNECTION.get((self._state, step))
        if following is None:
            return False
        self._state = following
        return True

    def _fail(self, error: RemoteProtocolError) -> None:
        self.error = error
        if self._advance(ConnectionStep.SEND_GOAWAY):
            self._send(GoAway(self._last_peer_id, GoAwayStatus.PROTOCOL_ERROR))
        self._close()

    def _close(self) -> None:
        self._state = ConnectionState.CLOSED
        self._streams.clear()

    def _send(self, frame: Frame) -> None:
        self._output.append(self._encoder.encode(frame))
