"""What may follow what on a SPDY/3.1 connection, as two tables. Pure.

``STREAM`` is about one stream, ``CONNECTION`` about opening streams and saying farewell. Neither
knows which side it is on: a stream that one side has in OPENING is in OFFERED on the other.
A pair that a table does not have is an error of the one who made the input.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

__all__ = [
    "CONNECTION",
    "STREAM",
    "ConnectionState",
    "ConnectionStep",
    "StreamInput",
    "StreamState",
]


class StreamState(Enum):
    """How far a stream is."""

    __hash__ = object.__hash__  # as each frame looks into a table; Enum's own is not built in

    IDLE = auto()
    OPENING = auto()  # we opened it, no reply yet
    OFFERED = auto()  # the peer opened it, no reply yet
    OFFERED_ENDED = auto()  # likewise, and the peer sends no more
    OPEN = auto()
    ENDED_BY_US = auto()
    ENDED_BY_PEER = auto()
    CLOSED = auto()


class StreamInput(Enum):
    """What happens to a stream. A frame with FIN is two inputs."""

    __hash__ = object.__hash__

    SEND_SYN = auto()
    SEND_REPLY = auto()
    SEND_DATA = auto()
    SEND_FIN = auto()
    SEND_RESET = auto()
    RECEIVE_SYN = auto()
    RECEIVE_ONE_WAY_SYN = auto()
    RECEIVE_REPLY = auto()
    RECEIVE_DATA = auto()
    RECEIVE_FIN = auto()
    RECEIVE_RESET = auto()


STREAM: Final = {
    (StreamState.IDLE, StreamInput.SEND_SYN): StreamState.OPENING,
    (StreamState.IDLE, StreamInput.RECEIVE_SYN): StreamState.OFFERED,
    (StreamState.IDLE, StreamInput.RECEIVE_ONE_WAY_SYN): StreamState.ENDED_BY_US,
    (StreamState.OPENING, StreamInput.RECEIVE_REPLY): StreamState.OPEN,
    (StreamState.OFFERED, StreamInput.SEND_REPLY): StreamState.OPEN,
    (StreamState.OFFERED, StreamInput.RECEIVE_DATA): StreamState.OFFERED,
    (StreamState.OFFERED, StreamInput.RECEIVE_FIN): StreamState.OFFERED_ENDED,
    (StreamState.OFFERED_ENDED, StreamInput.SEND_REPLY): StreamState.ENDED_BY_PEER,
    (StreamState.OPEN, StreamInput.SEND_DATA): StreamState.OPEN,
    (StreamState.OPEN, StreamInput.SEND_FIN): StreamState.ENDED_BY_US,
    (StreamState.OPEN, StreamInput.RECEIVE_DATA): StreamState.OPEN,
    (StreamState.OPEN, StreamInput.RECEIVE_FIN): StreamState.ENDED_BY_PEER,
    (StreamState.ENDED_BY_US, StreamInput.RECEIVE_DATA): StreamState.ENDED_BY_US,
    (StreamState.ENDED_BY_US, StreamInput.RECEIVE_FIN): StreamState.CLOSED,
    (StreamState.ENDED_BY_PEER, StreamInput.SEND_DATA): StreamState.ENDED_BY_PEER,
    (StreamState.ENDED_BY_PEER, StreamInput.SEND_FIN): StreamState.CLOSED,
} | {
    (state, reset): StreamState.CLOSED
    for state in StreamState
    if state not in (StreamState.IDLE, StreamState.CLOSED)
    for reset in (StreamInput.SEND_RESET, StreamInput.RECEIVE_RESET)
}


class ConnectionState(Enum):
    """How far a connection is. Frames of open streams go on until CLOSED."""

    OPEN = auto()
    LEAVING = auto()  # we said GOAWAY
    LEFT = auto()  # the peer said GOAWAY
    ENDING = auto()  # both did
    CLOSED = auto()


class ConnectionStep(Enum):
    """What happens to a connection, apart from frames of streams that are open."""

    OPEN_STREAM = auto()
    TAKE_STREAM = auto()
    SEND_GOAWAY = auto()
    RECEIVE_GOAWAY = auto()


CONNECTION: Final = {
    (ConnectionState.OPEN, ConnectionStep.OPEN_STREAM): ConnectionState.OPEN,
    (ConnectionState.LEAVING, ConnectionStep.OPEN_STREAM): ConnectionState.LEAVING,
    (ConnectionState.OPEN, ConnectionStep.TAKE_STREAM): ConnectionState.OPEN,
    (ConnectionState.LEFT, ConnectionStep.TAKE_STREAM): ConnectionState.LEFT,
    (ConnectionState.OPEN, ConnectionStep.SEND_GOAWAY): ConnectionState.LEAVING,
    (ConnectionState.LEFT, ConnectionStep.SEND_GOAWAY): ConnectionState.ENDING,
    (ConnectionState.OPEN, ConnectionStep.RECEIVE_GOAWAY): ConnectionState.LEFT,
    (ConnectionState.LEFT, ConnectionStep.RECEIVE_GOAWAY): ConnectionState.LEFT,
    (ConnectionState.LEAVING, ConnectionStep.RECEIVE_GOAWAY): ConnectionState.ENDING,
    (ConnectionState.ENDING, ConnectionStep.RECEIVE_GOAWAY): ConnectionState.ENDING,
}
