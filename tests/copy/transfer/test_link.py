"""Frames on real sockets, against frames of the websockets library."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT

from pycrictl.copy.archive.pack import PIECE_BYTES
from pycrictl.copy.transfer.flow import ignore, send
from pycrictl.copy.transfer.link import SocketLink
from pycrictl.copy.transfer.messages import CHANNEL_END, TO_CONTAINER, ChannelProtocol
from pycrictl.errors import RemoteProtocolError, StreamError


@pytest.fixture
def pair() -> Iterator[tuple[SocketLink, socket.socket]]:
    """A server's end, and the bare socket of its client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=10)
        server, _ = listener.accept()
    connection = SocketLink(server, idle_s=60)
    yield connection, client
    client.close()
    connection.abort()


def frame(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


BINARY, TEXT, CONT = Opcode.BINARY, Opcode.TEXT, Opcode.CONT


def received(connection: SocketLink, count: int) -> list[tuple[int, bytes]]:
    found = []
    for _ in range(count):
        piece = connection.receive()
        assert piece is not None
        found.append((piece.channel, bytes(piece.data)))
    return found


def test_a_close_is_answered_and_is_the_end(pair: tuple[SocketLink, socket.socket]) -> None:
    connection, client = pair
    client.sendall(frame(Opcode.CLOSE, b"\x03\xe8bye"))
    assert connection.receive() is None
    assert connection.receive() is None
    assert client.recv(100) == b"\x88\x05\x03\xe8bye"


def test_what_breaks_the_protocol(pair: tuple[SocketLink, socket.socket]) -> None:
    connection, client = pair
    client.sendall(frame(BINARY, b"\x00abc") + Frame(BINARY, b"\x00abc").serialize(mask=False))
    assert received(connection, 1) == [(0, b"abc")]
    with pytest.raises(RemoteProtocolError, match="the client broke the WebSocket protocol"):
        connection.receive()


def test_silence_and_the_end_of_the_connection(pair: tuple[SocketLink, socket.socket]) -> None:
    connection, client = pair
    connection.set_idle(0.05)
    with pytest.raises(StreamError, match=r"the client was silent for 0\.05 s"):
        connection.receive()
    connection.set_idle(60)
    client.sendall(frame(BINARY, b"\x00abc")[:-1])
    client.shutdown(socket.SHUT_WR)
    with pytest.raises(StreamError, match="the client dropped the connection"):
        received(connection, 2)


def test_who_takes_nothing_is_given_up(pair: tuple[SocketLink, socket.socket]) -> None:
    connection, _ = pair
    connection.set_idle(0.1)
    with pytest.raises(StreamError, match="silent"):
        connection.send(1, bytes(200 << 20))


def test_a_deadline(pair: tuple[SocketLink, socket.socket]) -> None:
    connection, client = pair
    client.sendall(frame(BINARY, b"\x00abc"))
    connection.deadline = 0.0
    with pytest.raises(StreamError, match="the client is too slow"):
        connection.receive()


def test_both_ends() -> None:
    data = bytes(range(251)) * 10_000
    messages = [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), 10)
        accepted, _ = listener.accept()
    connection = SocketLink(client, CLIENT, label="the server", idle_s=60)
    server = SocketLink(accepted, idle_s=60)

    def send_all() -> None:
        protocol = ChannelProtocol(TO_CONTAINER, is_client=True)
        send(connection, protocol, map(memoryview, messages), ignore, size_bytes=len(data))
        connection.send(*protocol.end(len(data), 0))

    sending = threading.Thread(target=send_all)
    sending.start()
    assert received(server, len(messages) + 1) == [
        *((0, message) for message in messages),
        (CHANNEL_END, b"\x00"),
    ]
    sending.join()
    connection.abort()
    with pytest.raises(StreamError, match="dropped the connection"):
        received(server, 1)
    server.abort()
