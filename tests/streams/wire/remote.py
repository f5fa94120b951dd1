"""A SPDY server for the core under test; it exchanges frames with it."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from pycrictl.streams.wire.channels import Channels
from tests.streams.wire.spdyframes import Frame, FrameDecoder, FrameEncoder

E = TypeVar("E")


class Core(Protocol[E]):
    def events_received(self) -> list[E]: ...


class SpdyServer(Generic[E]):
    def __init__(self, core: Core[E], channels: Channels) -> None:
        self._core = core
        self._channels = channels
        self._encoder = FrameEncoder()
        self._decoder = FrameDecoder()

    def feed(self, *frames: Frame) -> list[E]:
        for frame in frames:
            self._channels.receive_data(self._encoder.encode(frame))
        return self._core.events_received()

    def sent(self) -> list[Frame]:
        return self._decoder.receive_data(b"".join(self._channels.data_to_send()))
