"""Frames on real sockets, against frames of the websockets library."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from websockets.frames import Frame, Opcode

from pycrictl.copy.transfer.link import SocketLink
from pycrictl.errors import StreamError


@pytest.fixture
def pair() -> Iterator[tuple[SocketLink, socket.socket]]:
    """A server's end, and the bare socket of its client."""
    server, client = socket.socketpair()
    connection = SocketLink(server, idle_s=60)
    yield connection, client
    client.close()
    connection.abort()


def test_a_close_is_answered_and_is_the_end(pair: tuple[SocketLink, socket.socket]) -> None:
    connection, client = pair
    client.sendall(Frame(Opcode.CLOSE, b"\x03\xe8bye").serialize(mask=True))
    assert connection.receive() is None
    assert connection.receive() is None
    assert client.recv(100) == b"\x88\x05\x03\xe8bye"


def test_a_client_that_is_too_slow(pair: tuple[SocketLink, socket.socket]) -> None:
    connection, client = pair
    client.sendall(Frame(Opcode.BINARY, b"\x00abc").serialize(mask=True))
    connection.deadline = 0.0
    with pytest.raises(StreamError, match="the client is too slow"):
        connection.receive()
