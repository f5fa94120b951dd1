"""Frames on real sockets, against frames of the websockets library."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, Protocol

from pycrictl.copy.stream.connection import (
    CHANNEL_END,
    PIECE_BYTES,
    CopyConnection,
    serve_stream,
)
from pycrictl.copy.stream.transfer import send_content
from pycrictl.errors import RemoteProtocolError, StreamError
from pycrictl.wire.limits import STREAM_MESSAGE_BYTES


@pytest.fixture
def pair() -> Iterator[tuple[CopyConnection, socket.socket]]:
    """A server's end, and the bare socket of its client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=10)
        server, _ = listener.accept()
    connection = serve_stream(server, label="the client", idle_s=60)
    yield connection, client
    client.close()
    connection.abort()


def frame(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


BINARY, TEXT, CONT = Opcode.BINARY, Opcode.TEXT, Opcode.CONT


def received(connection: CopyConnection, count: int) -> list[tuple[int, bytes]]:
    found = [connection.receive() for _ in range(count)]
    return [(piece.channel, bytes(piece.data)) for piece in found if piece is not None]


@pytest.mark.parametrize("size", [1, 125, 126, 65535, 65536])
def test_masked_messages_of_every_length(
    pair: tuple[CopyConnection, socket.socket], size: int
) -> None:
    connection, client = pair
    data = bytes(range(256)) * (size // 256 + 1)
    client.sendall(frame(BINARY, b"\x00" + data[:size]))
    assert received(connection, 1) == [(0, data[:size])]


def test_the_longest_message(pair: tuple[CopyConnection, socket.socket]) -> None:
    """Others, such as a pycrictl of before, may send more at once."""
    connection, client = pair
    data = bytes(range(256)) * (STREAM_MESSAGE_BYTES // 256)
    sent = frame(BINARY, b"\x01" + data[:-1]) + frame(BINARY, b"\x01" + data)

    def send() -> None:
        with suppress(OSError):  # the other side may have gone before it has all
            client.sendall(sent)

    thread = threading.Thread(target=send)
    thread.start()
    assert received(connection, 1) == [(1, data[:-1])]
    with pytest.raises(RemoteProtocolError, match="sent a message of more than"):
        connection.receive()
    connection.abort()
    thread.join()


def test_fragments_are_one_message(pair: tuple[CopyConnection, socket.socket]) -> None:
    connection, client = pair
    client.sendall(
        frame(BINARY, b"", fin=False)
        + frame(CONT, b"\x03ab", fin=False)
        + frame(Opcode.PING, b"hello")
        + frame(CONT, b"cd")
        + frame(BINARY, b"\x00e")
    )
    assert received(connection, 2) == [(3, b"abcd"), (0, b"e")]
    peer = Protocol(CLIENT)
    peer.receive_data(client.recv(100))
    (pong,) = peer.events_received()
    assert isinstance(pong, Frame)
    assert (pong.opcode, bytes(pong.data)) == (Opcode.PONG, b"hello")


def test_a_close_is_answered_and_is_the_end(pair: tuple[CopyConnection, socket.socket]) -> None:
    connection, client = pair
    client.sendall(frame(Opcode.CLOSE, b"\x03\xe8bye"))
    assert connection.receive() is None
    assert connection.receive() is None
    assert client.recv(100) == b"\x88\x05\x03\xe8bye"


@pytest.mark.parametrize(
    "data",
    [
        frame(TEXT, b"\x00abc"),
        frame(CONT, b"\x00abc"),
        frame(BINARY, b"\x00", fin=False) + frame(BINARY, b"\x00x"),
        Frame(BINARY, b"\x00abc").serialize(mask=False),
        b"\xc2" + frame(BINARY, b"\x00abc")[1:],
        b"\x83" + frame(BINARY, b"\x00abc")[1:],
        b"\x09" + frame(Opcode.PING, b"x")[1:],
        b"\x89" + frame(BINARY, b"x" * 126)[1:],
        b"\x8b" + frame(BINARY, b"x")[1:],
        frame(BINARY, b"") * 2000,
        frame(Opcode.PONG, b"") * 2000,
    ],
    ids=[
        *("text", "continues nothing", "begins within a message", "unmasked", "reserved bit"),
        *("reserved opcode", "fragmented ping", "long ping", "reserved control opcode"),
        *("empty messages", "empty pongs"),
    ],  # not the data: masks are random
)
def test_what_breaks_the_protocol(pair: tuple[CopyConnection, socket.socket], data: bytes) -> None:
    connection, client = pair
    client.sendall(data)
    with pytest.raises(RemoteProtocolError, match="the client broke the WebSocket protocol"):
        received(connection, 2)


def test_silence_and_the_end_of_the_connection(pair: tuple[CopyConnection, socket.socket]) -> None:
    connection, client = pair
    connection.set_idle(0.05)
    with pytest.raises(StreamError, match=r"the client was silent for 0\.05 s"):
        connection.receive()
    connection.set_idle(60)
    client.sendall(frame(BINARY, b"\x00abc")[:-1])
    client.shutdown(socket.SHUT_WR)
    with pytest.raises(StreamError, match="the client dropped the connection"):
        received(connection, 2)


def test_who_takes_nothing_is_given_up(pair: tuple[CopyConnection, socket.socket]) -> None:
    connection, _ = pair
    connection.set_idle(0.1)
    with pytest.raises(StreamError, match="silent"):
        connection.send(1, bytes(200 << 20))


def test_a_deadline(pair: tuple[CopyConnection, socket.socket]) -> None:
    connection, client = pair
    client.sendall(frame(BINARY, b"\x00abc"))
    connection.deadline = 0.0
    with pytest.raises(StreamError, match="the client is too slow"):
        connection.receive()


def test_both_ends() -> None:
    """What a client sends is masked, also within one machine."""
    data = bytes(range(256)) * 4096
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), 10)
        accepted, _ = listener.accept()
    connection = CopyConnection(client, CLIENT, label="the server", idle_s=60)
    server = serve_stream(accepted, label="the client", idle_s=60)

    pieces = [memoryview(data)]

    def send() -> None:
        send_content(connection, 0, pieces, len(data), after=lambda _: None)

    sending = threading.Thread(target=send)
    sending.start()
    messages = [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]
    assert received(server, len(messages) + 1) == [
        *((0, message) for message in messages),
        (CHANNEL_END, b"\x00"),
    ]
    sending.join()
    connection.abort()
    with pytest.raises(StreamError, match="dropped the connection"):
        received(server, 1)
    server.abort()
