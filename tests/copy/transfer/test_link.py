"""Frames on real sockets, against frames of the websockets library."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from websockets.frames import Frame, Opcode

from pycrictl.copy.transfer.link import SocketLink
from pycrictl.errors import RemoteProtocolError, StreamError


@pytest.fixture
def pair() -> Iterator[tuple[SocketLink, socket.socket]]:
    """A server's end, and the bare socket of its client."""
    server, client = socket.socketpair()
    connection = SocketLink(server, idle_s=60)
    yield connection, client
    client.close()
    connection.abort()


def message(*, is_masked: bool = True) -> bytes:
    return Frame(Opcode.BINARY, b"\x00abc").serialize(mask=is_masked)


def test_a_close_is_answered_and_is_the_end(pair: tuple[SocketLink, socket.socket]) -> None:
    connection, client = pair
    client.sendall(Frame(Opcode.CLOSE, b"\x03\xe8bye").serialize(mask=True))
    assert connection.receive() is None
    assert connection.receive() is None
    assert client.recv(100) == b"\x88\x05\x03\xe8bye"


@pytest.mark.parametrize(
    ("sent", "error", "why"),
    [
        (message(is_masked=False), RemoteProtocolError, "the client broke the WebSocket protocol"),
        (message()[:-1], StreamError, "the client dropped the connection"),
    ],
    ids=["not masked", "cut off"],
)
def test_what_ends_a_connection(
    pair: tuple[SocketLink, socket.socket], sent: bytes, error: type[Exception], why: str
) -> None:
    connection, client = pair
    client.sendall(message() + sent)
    client.shutdown(socket.SHUT_WR)
    found = connection.receive()
    assert found is not None
    assert (found.channel, bytes(found.data)) == (0, b"abc")
    with pytest.raises(error, match=why):
        connection.receive()


def test_a_client_that_is_too_slow(pair: tuple[SocketLink, socket.socket]) -> None:
    connection, client = pair
    client.sendall(message())
    connection.deadline = 0.0
    with pytest.raises(StreamError, match="the client is too slow"):
        connection.receive()
