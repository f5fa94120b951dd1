"""A client's SPDY/3.1 connection, each of whose streams is a channel. Pure.

A stream is opened by SYN_STREAM, accepted by SYN_REPLY, and ends either in both directions one
after the other (a frame with FIN each) or at once (RST_STREAM). What the peer may not do ends the
connection.

Four decisions, all because the peer is Go's spdystream library in every runtime:

1. *No data before the reply.* The draft allows it, spdystream throws such data away. So nothing can
   be sent until all streams are accepted.
2. *No flow control.* spdystream neither sends WINDOW_UPDATE nor looks at it, and it sends more
   than the draft's 64 KiB. So windows are neither kept nor announced, and TCP alone holds a sender
   back: of all streams together. Whoever drives this class must always go on reading, also while
   it waits for a write, or both sides may wait for each other.
3. *Frames for streams that have ended are left out in silence.* They may have been on their way
   when the stream was reset.
4. *The peer opens no streams.* A runtime has no reason to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pycrictl.errors import LocalProtocolError, RemoteProtocolError, StreamError
from pycrictl.wire import limits
from pycrictl.wire.channels import (
    MESSAGE_BYTES,
    ChannelEnded,
    ChannelReceived,
    Channels,
    ChannelsOpened,
)
from pycrictl.wire.spdy.frames import (
    Data,
    Frame,
    FrameDecoder,
    FrameEncoder,
    GoAway,
    Ping,
    RstStream,
    SynReply,
    SynStream,
    data_head,
)
from pycrictl.wire.spdy.headers import HeaderFields

_PROTOCOL_ERROR: Final = 1


class SpdyChannels(Channels):
    """Channels over SPDY: each is opened with its headers, in the order given."""

    def __init__(self, headers: Mapping[int, HeaderFields]) -> None:
        super().__init__()
        self._encoder = FrameEncoder()
        self._decoder = FrameDecoder()
        self._idle = limits.Allowance(limits.STREAM_IDLE_FRAMES, limits.STREAM_IDLE_FRAMES_PER_S)
        self._output: list[bytes | memoryview] = []
        self._next_ping_id = 1
        self._ids = {channel: 2 * index + 1 for index, channel in enumerate(headers)}
        self._channels = {stream_id: channel for channel, stream_id in self._ids.items()}
        self._opening = set(self._channels)
        self._receiving: set[int] = set()
        self._sending: set[int] = set()
        for channel, fields in headers.items():
            self._send(SynStream(self._ids[channel], fields))

    def can_send(self, channel: int) -> bool:
        return not self._opening and self._ids.get(channel) in self._sending

    def send(self, channel: int, data: bytes) -> None:
        stream_id = self._sendable(channel)
        view = memoryview(data)
        for start in range(0, len(data), MESSAGE_BYTES):
            piece = view[start : start + MESSAGE_BYTES]
            self._output += (data_head(stream_id, len(piece)), piece)

    def end(self, channel: int) -> None:
        stream_id = self._sendable(channel)
        self._sending.discard(stream_id)
        self._send(Data(stream_id, b"", is_last=True))

    def ping(self) -> None:
        if not self.is_over:
            self._send(Ping(self._next_ping_id))
            self._next_ping_id += 2

    def close(self) -> None:
        pass

    def data_to_send(self) -> list[bytes | memoryview]:
        output, self._output = self._output, []
        return output

    def receive_data(self, data: bytes, now: float = 0.0) -> None:
        if self.is_over:
            return
        try:
            for frame in self._decoder.receive_data(data):
                if isinstance(frame, Data) and frame.data:
                    self._idle.earned = limits.STREAM_IDLE_FRAMES
                elif not self._idle.take(now):
                    raise RemoteProtocolError("the peer sends too many empty SPDY frames")
                self._receive(frame)
            if self._decoder.error is not None:
                raise self._decoder.error
        except RemoteProtocolError as exc:
            self._send(GoAway(0, _PROTOCOL_ERROR))
            self._finish(exc)

    def receive_eof(self) -> None:
        if not self.is_over:
            self._finish(StreamError("the connection to the runtime ended"))

    def _receive(self, frame: Frame) -> None:
        match frame:
            case Data():
                self._receive_data(frame)
            case SynReply():
                self._receive_reply(frame)
            case RstStream():
                self._reset(self._known(frame.stream_id))
            case SynStream():
                raise RemoteProtocolError("the peer opened a SPDY stream")
            case Ping() if frame.ping_id % 2 == 0:
                self._send(frame)
            case GoAway():
                # An accepted stream was looked at, whatever number is said to be the last.
                for stream_id in sorted(self._opening):
                    if stream_id > frame.last_stream_id:
                        self._reset(stream_id)
            case _:
                pass  # an answered ping

    def _receive_data(self, frame: Data) -> None:
        stream_id = self._known(frame.stream_id)
        if stream_id in self._opening:
            raise RemoteProtocolError("the peer sent data on a SPDY stream before it accepted it")
        if stream_id not in self._receiving:
            return
        if frame.data:
            self._events.append(ChannelReceived(self._channels[stream_id], frame.data))
        if frame.is_last:
            self._receiving.discard(stream_id)
            self._events.append(ChannelEnded(self._channels[stream_id]))

    def _receive_reply(self, frame: SynReply) -> None:
        stream_id = self._known(frame.stream_id)
        if stream_id not in self._opening:
            return
        self._opening.discard(stream_id)
        self._receiving.add(stream_id)
        self._sending.add(stream_id)
        if not self._opening:
            self._events.append(ChannelsOpened())
        self._receive_data(Data(stream_id, b"", frame.is_last))

    def _reset(self, stream_id: int) -> None:
        if stream_id in self._opening | self._receiving | self._sending:
            for streams in (self._opening, self._receiving, self._sending):
                streams.discard(stream_id)
            self._events.append(ChannelEnded(self._channels[stream_id], is_reset=True))

    def _known(self, stream_id: int) -> int:
        if stream_id not in self._channels:
            raise RemoteProtocolError("the peer used a SPDY stream that was never opened")
        return stream_id

    def _sendable(self, channel: int) -> int:
        if not self.can_send(channel):
            raise LocalProtocolError("nothing can be sent on this SPDY stream")
        return self._ids[channel]

    def _finish(self, error: StreamError) -> None:
        self.is_over = True
        self.error = error
        self._sending.clear()

    def _send(self, frame: Frame) -> None:
        self._output.append(self._encoder.encode(frame))
