"""SPDY/3.1: frames, header blocks, and a client's streams."""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.errors import LocalProtocolError, RemoteProtocolError
from pycrictl.wire import limits
from pycrictl.wire.channels import (
    MESSAGE_BYTES,
    ChannelEnded,
    ChannelReceived,
    ChannelsOpened,
    Event,
)
from pycrictl.wire.spdy.frames import (
    MAX_CONTROL_BYTES,
    MAX_STREAM_ID,
    Data,
    Frame,
    FrameDecoder,
    FrameEncoder,
    GoAway,
    Ping,
    RstStream,
    SynReply,
    SynStream,
)
from pycrictl.wire.spdy.headers import (
    DICTIONARY,
    MAX_BLOCK_BYTES,
    MAX_FIELDS,
    HeaderCompressor,
    HeaderDecompressor,
    HeaderFields,
)
from pycrictl.wire.spdy.streams import SpdyChannels
from tests.wire.remote import SpdyServer

# Frames

FIELDS = (("streamtype", "error"), ("port", "80"), ("requestid", "0"))
FRAMES: list[Frame] = [
    SynStream(1, FIELDS),
    SynStream(MAX_STREAM_ID, (), is_last=True),
    SynReply(1),
    SynReply(3, FIELDS, is_last=True),
    RstStream(7, 5),
    RstStream(7, 4711),
    Ping(1),
    GoAway(9, 1),
    GoAway(0),
    Data(1, b"data"),
    Data(1, b"data", is_last=True),
    Data(1, b""),
    Data(1, b"", is_last=True),
]


def control(kind: int, payload: bytes, *, flags: int = 0, version: int = 3) -> bytes:
    return struct.pack(">HHI", 0x8000 | version, kind, flags << 24 | len(payload)) + payload


def encoded(frames: list[Frame]) -> bytes:
    encoder = FrameEncoder()
    return b"".join(map(encoder.encode, frames))


def joined(frames: list[Frame]) -> list[Frame]:
    """Put the parts of data frames together."""
    result: list[Frame] = []
    for frame in frames:
        last = result[-1] if result else None
        if (
            isinstance(frame, Data)
            and isinstance(last, Data)
            and not last.is_last
            and last.stream_id == frame.stream_id
        ):
            result[-1] = Data(frame.stream_id, bytes(last.data) + bytes(frame.data), frame.is_last)
        else:
            result.append(frame)
    return result


# Bytes


def test_reserved_bits_and_unknown_flags_are_left_out() -> None:
    decoder = FrameDecoder()
    data = control(3, b"\x80\0\0\x01\0\0\0\x05")
    data += control(7, b"\x80\0\0\x01\0\0\0\x00") + struct.pack(">II", 1, 0xFE << 24)
    assert decoder.receive_data(data) == [RstStream(1, 5), GoAway(1), Data(1, b"")]


@pytest.mark.parametrize(
    "frame",
    [
        control(10, b"credential"),
        control(4, b"\0\0\0\x01\x03\0\0\x04\0\0\0\x09"),
        control(4, b""),
        control(9, b"\0\0\0\x01\0\0\0\x05"),
    ],
    ids=["unknown", "settings", "malformed settings", "window update"],
)
def test_control_frames_that_say_nothing_are_left_out(frame: bytes) -> None:
    decoder = FrameDecoder()
    assert decoder.receive_data(frame + encoded([Ping(1)])) == [Ping(1)]
    assert decoder.error is None


# Pieces


def test_data_is_passed_on_as_it_comes() -> None:
    decoder = FrameDecoder()
    head = struct.pack(">II", 1, 0x01FFFFFF)
    assert decoder.receive_data(head) == []
    assert decoder.receive_data(b"a") == [Data(1, b"a")]
    assert decoder.receive_data(b"") == []
    rest = bytes(2**24 - 2)
    assert decoder.receive_data(rest + encoded([Ping(1)])) == [Data(1, rest, True), Ping(1)]


WHOLE = encoded(FRAMES)


@given(st.lists(st.integers(0, len(WHOLE))))
def test_pieces_may_end_anywhere(cuts: list[int]) -> None:
    decoder = FrameDecoder()
    frames: list[Frame] = []
    for start, end in pairwise([0, *sorted(cuts), len(WHOLE)]):
        frames += decoder.receive_data(WHOLE[start:end])
    assert joined(frames) == joined(FRAMES)


# Violations


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (control(6, b"\0\0\0\1", version=2), "the peer does not speak SPDY/3"),
        (control(6, bytes(MAX_CONTROL_BYTES + 1)), "too long a SPDY control frame"),
        (control(1, b"\0\0\0\1\0\0\0\0\0"), "a SPDY frame is cut off"),
        (control(7, b"\0\0\0\1"), "a SPDY frame is cut off"),
        (control(8, b"\0\0\0\1"), "a SPDY header block is cut off"),
        (control(2, b"\0\0\0\1nonsense"), "a SPDY header block cannot be decompressed"),
    ],
)
def test_frames_that_are_none(data: bytes, reason: str) -> None:
    decoder = FrameDecoder()
    frames = decoder.receive_data(encoded([Ping(1)]) + data)
    assert frames == [Ping(1)]
    assert decoder.error is not None
    assert decoder.error.message == reason
    assert decoder.receive_data(encoded([Ping(3)])) == []


# Header blocks

names = st.text(st.characters(codec="ascii", exclude_categories=["Lu", "C", "Z"]), min_size=1)
values = st.text(st.characters(codec="iso-8859-1", exclude_characters="\0"), max_size=50)


def packed(*texts: bytes, count: int | None = None) -> bytes:
    """A block before its compression; ``count`` is what it says about itself."""
    number = len(texts) // 2 if count is None else count
    return struct.pack(">I", number) + b"".join(struct.pack(">I", len(t)) + t for t in texts)


def compressed(block: bytes, *, dictionary: bytes = DICTIONARY) -> bytes:
    compressor = zlib.compressobj(zdict=dictionary)
    return compressor.compress(block) + compressor.flush(zlib.Z_SYNC_FLUSH)


def refusal_of(data: bytes) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        HeaderDecompressor().decompress(data)
    return caught.value.message


def test_the_dictionary_is_the_protocols() -> None:
    # Its length, and the checksum that zlib writes at the beginning of every stream.
    assert len(DICTIONARY) == 1423
    assert zlib.adler32(DICTIONARY) == 0xE3C6A7C2
    assert HeaderCompressor().compress(())[2:6] == bytes.fromhex("e3c6a7c2")


def test_blocks_are_a_chain() -> None:
    compressor, decompressor = HeaderCompressor(), HeaderDecompressor()
    fields: HeaderFields = (("streamtype", "data"), ("port", "8080"), ("requestid", "7"))
    first, second = compressor.compress(fields), compressor.compress(fields)
    assert len(second) < len(first)
    assert decompressor.decompress(first) == fields
    assert decompressor.decompress(second) == fields
    assert refusal_of(second) == "a SPDY header block cannot be decompressed"


@given(st.lists(st.dictionaries(names, values, max_size=5), max_size=5))
def test_any_headers(blocks: list[dict[str, str]]) -> None:
    compressor, decompressor = HeaderCompressor(), HeaderDecompressor()
    for block in blocks:
        fields = tuple(block.items())
        assert decompressor.decompress(compressor.compress(fields)) == fields


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (b"", "a SPDY header block is cut off"),
        (b"\0\0\0", "a SPDY header block is cut off"),
        (packed(count=1), "a SPDY header block is cut off"),
        (packed(b"a", b"b")[:-1], "a SPDY header block has a wrong length"),
        (packed(b"a", b"b") + b"x", "a SPDY header block has a wrong length"),
        (packed(b"a") + b"\xff\xff\xff\xff", "a SPDY header block has a wrong length"),
        (packed(b"a", b"1", b"a", b"2"), "invalid header in a SPDY frame"),
        (packed(b"A", b"1"), "invalid header in a SPDY frame"),
        (packed(b"", b"1"), "invalid header in a SPDY frame"),
        (packed(b"a\0", b"1"), "invalid header in a SPDY frame"),
        (packed(count=MAX_FIELDS + 1), "too many headers in a SPDY frame"),
        (packed(count=2**32 - 1), "too many headers in a SPDY frame"),
        (packed(b"a", bytes(MAX_BLOCK_BYTES)), "too long a SPDY header block"),
    ],
)
def test_a_block_that_is_none(block: bytes, reason: str) -> None:
    assert refusal_of(compressed(block)) == reason


def test_a_bomb_is_not_decompressed() -> None:
    bomb = compressed(bytes(50 << 20))
    assert len(bomb) < 65536
    decompressor = HeaderDecompressor()
    with pytest.raises(RemoteProtocolError) as caught:
        decompressor.decompress(bomb)
    assert caught.value.message == "too long a SPDY header block"


@pytest.mark.parametrize(
    "data", [b"nonsense", compressed(packed(), dictionary=b"another"), zlib.compress(b"x")[:1]]
)
def test_what_is_not_compressed_so(data: bytes) -> None:
    assert refusal_of(data).startswith("a SPDY header block")


# Streams

STDIN = (("streamtype", "stdin"),)
A, B = 7, 8
"""Channels, on the streams 1 and 3."""


class Peer(SpdyServer[Event]):
    """A connection with two channels, and the other side of it."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.core = SpdyChannels({A: STDIN, B: ()})
        super().__init__(self.core)
        if is_open:
            assert self.feed(SynReply(1), SynReply(3)) == [ChannelsOpened()]
            self.sent()


def test_streams_are_opened_and_accepted() -> None:
    peer = Peer(is_open=False)
    assert peer.sent() == [SynStream(1, STDIN), SynStream(3)]
    assert peer.feed(SynReply(3, (("answer", "yes"),))) == []
    assert not peer.core.can_send(B)
    for wrong in (peer.core.end, lambda channel: peer.core.send(channel, b"x")):
        with pytest.raises(LocalProtocolError):
            wrong(B)
    assert peer.feed(SynReply(1, (), True)) == [ChannelsOpened(), ChannelEnded(A)]
    assert peer.core.can_send(A)
    assert not peer.core.can_send(9)


def test_data_both_ways() -> None:
    peer = Peer()
    data = bytes(range(256)) * 256
    peer.core.send(A, data + b"!")
    peer.core.send(A, b"")
    assert peer.sent() == [
        Data(1, data[:MESSAGE_BYTES]),
        Data(1, data[MESSAGE_BYTES:]),
        Data(1, b"!"),
    ]
    assert peer.feed(Data(1, b"back"), Data(1, b"")) == [ChannelReceived(A, b"back")]


def test_each_side_ends_its_own() -> None:
    peer = Peer()
    peer.core.end(A)
    assert peer.sent() == [Data(1, b"", is_last=True)]
    for wrong in (peer.core.end, lambda channel: peer.core.send(channel, b"x")):
        with pytest.raises(LocalProtocolError):
            wrong(A)
    assert peer.feed(Data(1, b"rest", is_last=True)) == [
        ChannelReceived(A, b"rest"),
        ChannelEnded(A),
    ]
    assert peer.feed(Data(1, b"late"), RstStream(1, 5)) == []
    assert peer.feed(Data(3, b"", is_last=True)) == [ChannelEnded(B)]
    peer.core.send(B, b"still")
    peer.core.end(B)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (Data(1, b"x"), "the peer sent data on a SPDY stream before it accepted it"),
        (Data(0, b"x"), "the peer used a SPDY stream that was never opened"),
        (Data(5, b"x"), "the peer used a SPDY stream that was never opened"),
        (SynReply(5), "the peer used a SPDY stream that was never opened"),
        (RstStream(2, 5), "the peer used a SPDY stream that was never opened"),
        (SynStream(2, STDIN), "the peer opened a SPDY stream"),
    ],
)
def test_violations_end_the_connection(frame: Frame, reason: str) -> None:
    peer = Peer(is_open=False)
    peer.sent()
    assert peer.feed(frame) == []
    assert peer.core.is_over
    assert str(peer.core.error) == reason
    assert peer.sent() == [GoAway(0, 1)]


def test_pings() -> None:
    peer = Peer()
    peer.core.ping()
    peer.core.ping()
    assert peer.sent() == [Ping(1), Ping(3)]
    assert peer.feed(Ping(3), Ping(2)) == []
    assert peer.sent() == [Ping(2)]


@pytest.mark.parametrize("frame", [Ping(2), Ping(1), Data(1, b"")], ids=["ping", "pong", "empty"])
def test_frames_without_content_are_limited(frame: Frame) -> None:
    """In a row, and each second."""
    peer = Peer()
    for _ in range(limits.STREAM_IDLE_FRAMES - 2):
        peer.feed(frame)
    peer.feed(Data(1, b"content"))
    for _ in range(limits.STREAM_IDLE_FRAMES):
        peer.feed(frame)
    empty = FrameEncoder().encode(frame)
    peer.core.receive_data(empty * limits.STREAM_IDLE_FRAMES_PER_S, 1.0)
    assert not peer.core.is_over
    peer.core.receive_data(empty, 1.0)
    assert str(peer.core.error) == "the peer sends too many empty SPDY frames"


def test_the_peer_goes_away() -> None:
    peer = Peer(is_open=False)
    assert peer.feed(SynReply(1), GoAway(0), GoAway(0)) == [ChannelEnded(B, is_reset=True)]
    assert peer.feed(Data(1, b"x")) == [ChannelReceived(A, b"x")]
