"""The method rpc with a fake runtime, and a scripted server of copy streams."""

from __future__ import annotations

import os
import ssl
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request
from websockets.sync.server import ServerConnection, serve
from websockets.typing import Subprotocol

from pycrictl._proto import cri_pb2
from pycrictl.copy import methods
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.transfer.messages import (
    CHANNEL_END,
    FROM_CONTAINER,
    STATUS,
    STREAM_PROTOCOL,
    TO_CONTAINER,
)
from pycrictl.copy.transfer.over_rpc import OverRpc
from pycrictl.copy.tree.walk import Watch
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.streams.wire.tar.header import END_OF_ARCHIVE
from tests.copy.hostile import FILE, member
from tests.fakecri.server import FakeServer

MIB = 1 << 20
HONEST = member(b"d/", b"5", mode=0o755) + member(b"d/f", FILE, b"content") + END_OF_ARCHIVE
SUCCESS = b'{"metadata":{},"status":"Success"}'
FAILURE = b'{"status":"Failure","message":"the disk is \\u001b[31mfull"}'
Script = Callable[[ServerConnection], None]


class Copier(OverRpc):
    """The method rpc, which records its callbacks."""

    def __init__(self, client: CriClient, container: str = "c1", **others: Any) -> None:
        super().__init__(client, container, **others)
        self.skipped: list[Skipped] = []
        self.bytes = 0
        self.totals: list[int] = []
        self.watch = Watch(self._count, self.skipped.append, self.totals.append)

    def _count(self, count: int) -> None:
        self.bytes += count

    def out(self, path: str, local: Path, on_total: Callable[[int], Any] | None = None) -> Summary:
        """Copy out of the container; ``on_total`` is called between the call and the stream."""
        watch = self.watch._replace(on_total=on_total or self.watch.on_total)
        return methods.copy_from(self, path.encode(), os.fsencode(local), Rules(), watch)

    def into(self, local: Path | str, path: str, rules: Rules | None = None) -> Summary:
        return methods.copy_to(
            self, [os.fsencode(local)], path.encode(), rules or Rules(), self.watch
        )


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """Disable the check for leftovers: gRPC and the servers close descriptors at any time."""


@pytest.fixture
def client(fake: FakeServer) -> Iterator[CriClient]:
    with CriClient(fake.path, timeout_s=60) as client:
        yield client


@pytest.fixture
def copier(client: CriClient) -> Copier:
    return Copier(client)


class CopyServer:
    """Runs ``script`` on each connection.

    Attributes:
        script: called after the handshake.
        answer: bytes to send in place of the handshake, unless empty.
        received: the data received on the channel to the container.
        url: its URL, as the calls return it.
    """

    def __init__(self) -> None:
        self.script: Script = self.receive_archive
        self.answer = b""
        self.received = bytearray()
        self.url = ""
        self.errors: list[BaseException] = []

    def receive_archive(self, connection: ServerConnection, outcome: bytes = SUCCESS) -> None:
        """Receive an archive as an honest server does, then send the outcome."""
        for channel, data in messages(connection):
            if channel == CHANNEL_END:
                assert data == bytes((TO_CONTAINER,))
                break
            assert channel == TO_CONTAINER
            self.received += data
        say(connection, STATUS, outcome)

    def serve(self, connection: ServerConnection) -> None:
        try:
            with suppress(ConnectionClosed):
                self.script(connection)
        except BaseException as exc:
            self.errors.append(exc)

    def offered_to(self, *_: Any) -> cri_pb2.CopyToContainerResponse:
        return cri_pb2.CopyToContainerResponse(url=self.url)

    def offered_from(self, *_: Any) -> cri_pb2.CopyFromContainerResponse:
        told = {"size": len(HONEST), "checksum": zlib.crc32(HONEST)}
        return cri_pb2.CopyFromContainerResponse(url=self.url, **told)

    def before(self, connection: ServerConnection, _: Request) -> None:
        if self.answer:
            connection.socket.sendall(self.answer)
            connection.socket.recv(1)


@contextmanager
def copy_server(fake: FakeServer, context: ssl.SSLContext | None = None) -> Iterator[CopyServer]:
    """Start a server whose URL the fake runtime returns for both calls."""
    made = CopyServer()
    fake.offer("CopyToContainer", made.offered_to)
    fake.offer("CopyFromContainer", made.offered_from)
    with serve(
        made.serve, "127.0.0.1", 0, ssl=context, compression=None, max_size=None, max_queue=1,
        close_timeout=1, process_request=made.before, subprotocols=[Subprotocol(STREAM_PROTOCOL)],
    ) as server:  # fmt: skip
        scheme = "http" if context is None else "https"
        made.url = f"{scheme}://127.0.0.1:{server.socket.getsockname()[1]}/copy/token"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield made
    thread.join(60)
    assert made.errors == []


@pytest.fixture
def server(fake: FakeServer) -> Iterator[CopyServer]:
    with copy_server(fake) as server:
        yield server


def say(connection: ServerConnection, channel: int, data: bytes = b"") -> None:
    connection.send(bytes((channel,)) + data)


def messages(connection: ServerConnection) -> Iterator[tuple[int, bytes]]:
    for message in connection:
        assert isinstance(message, bytes)
        yield message[0], message[1:]


def sending(archive: bytes, outcome: bytes = SUCCESS, *, piece_bytes: int = 1 << 20) -> Script:
    """Return a script that sends an archive, and an outcome unless it is empty."""

    def script(connection: ServerConnection) -> None:
        for start in range(0, len(archive), piece_bytes):
            say(connection, FROM_CONTAINER, archive[start : start + piece_bytes])
        say(connection, CHANNEL_END, bytes((FROM_CONTAINER,)))
        if outcome:
            say(connection, STATUS, outcome)

    return script
