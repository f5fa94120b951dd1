"""How agent and client handle each other's messages and archives, valid and invalid."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from zlib import crc32

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, unix_connect
from websockets.typing import Subprotocol

from pycrictl.base.errors import CopyError
from pycrictl.copy.service.transfer import Transfer
from pycrictl.copy.transfer.messages import (
    ACKNOWLEDGEMENT,
    MAX_PIECE_MESSAGE_BYTES,
    PIECE,
    PIECES_PROTOCOL,
)
from pycrictl.copy.tree.walk import Watch
from pycrictl.streams.wire.tar.header import END_OF_ARCHIVE
from tests.cluster.agent.copies.small import Write
from tests.cluster.kubectl.copies.workstation import Workstation
from tests.copy.hostile import FILE, HOSTILE, build_surroundings, member, snapshot
from tests.copy.trees import Archive, stages_in
from tests.proxy.copier import MIB
from tests.streams.wire.frames import BINARY, TEXT, frame
from tests.waiting import wait_until

pytestmark = pytest.mark.root

KEY = b"\x12\x34\x56\x78"
CONTENT = member(b"f", FILE, os.urandom(300_000)) + END_OF_ARCHIVE
SIZE = len(CONTENT)
PATH = "/apis/progress.pycrictl.dev/v1alpha1/namespaces/shop/pods/web/containercopies"


def begin(work: Workstation, path: str = "/to") -> str:
    """Start a copy into the container through the API alone; return its name."""
    spec = {"direction": "To", "path": path, "size": SIZE, "checksum": crc32(CONTENT)}
    return str(work.api.begin(spec)["metadata"]["name"])


@contextmanager
def connected(
    work: Workstation, session: str, protocol: str = PIECES_PROTOCOL
) -> Iterator[ClientConnection]:
    with unix_connect(
        str(work.folder / "agent"), f"ws://localhost{PATH}/{session}/data",
        subprotocols=[Subprotocol(protocol)], compression=None, close_timeout=1,
    ) as connection:  # fmt: skip
        acknowledged(connection)  # the agent sends one first
        yield connection


def acknowledged(connection: ClientConnection) -> int:
    """Return how many bytes the agent acknowledges."""
    message = connection.recv(20)
    assert isinstance(message, bytes)
    assert message[0] == ACKNOWLEDGEMENT
    return int.from_bytes(message[1:], "big")


def piece(offset: int, content: bytes, *, checksum: int | None = None) -> bytes:
    checksum = crc32(content) if checksum is None else checksum
    return bytes((PIECE,)) + struct.pack(">QI", offset, checksum) + content


@pytest.mark.parametrize(
    "sent",
    [
        frame(TEXT, b"text", key=KEY),
        frame(BINARY, piece(1, CONTENT), key=KEY),
        frame(BINARY, piece(0, CONTENT, checksum=1), key=KEY),
        frame(BINARY, piece(0, CONTENT + b"more"), key=KEY),
        frame(BINARY, bytes((ACKNOWLEDGEMENT,)) + bytes(8), key=KEY),
        frame(BINARY, bytes(MAX_PIECE_MESSAGE_BYTES + 2), key=KEY),
        frame(BINARY, b"\0", length=1 << 62, key=KEY) + bytes(2 * MAX_PIECE_MESSAGE_BYTES),
        b"\xff" * 100,
    ],
)
def test_what_ends_the_connection_and_not_the_copy(work: Workstation, sent: bytes) -> None:
    session = begin(work)
    with connected(work, session) as connection:
        with suppress(OSError):
            connection.socket.sendall(sent)
        with pytest.raises(ConnectionClosed):
            connection.recv(20)
    assert work.api.get(session)["status"]["offset"] == 0
    with connected(work, session) as connection:
        connection.send(piece(0, CONTENT))
        assert acknowledged(connection) == SIZE


def test_an_upgrade_to_something_else(work: Workstation) -> None:
    other = connected(work, begin(work), protocol="v4.channel.k8s.io")
    with pytest.raises(InvalidStatus) as caught, other:
        pass
    assert caught.value.response.status_code == 400
    assert f"a WebSocket with {PIECES_PROTOCOL}".encode() in caught.value.response.body


def test_a_client_that_goes_to_sleep(work: Workstation) -> None:
    """An inactive client's copy expires and leaves nothing, even while its connection is open."""
    work.start(lifetime_s=1.0)
    with connected(work, begin(work)) as connection:
        connection.send(piece(0, CONTENT[:1000]))
        wait_until(lambda: stages_in(work.container.root) != [])
        wait_until(lambda: stages_in(work.container.root) == [])
        with pytest.raises(ConnectionClosed):
            wait_until(lambda: acknowledged(connection) > 1000)
    assert list(work.there.iterdir()) == []


# Archives staged as they arrive


def test_the_next_connection_goes_on(work: Workstation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transfer, "heartbeat_s", 0.05)
    session = begin(work)
    with connected(work, session) as connection:
        connection.send(piece(0, CONTENT[:200_000]))
        wait_until(lambda: work.api.get(session)["status"]["offset"] == 200_000)
    assert len(stages_in(work.container.root)) == 1
    with connected(work, session) as connection:
        connection.send(piece(200_000, CONTENT[200_000:]))
        while acknowledged(connection) < SIZE:
            pass
    assert not (work.there / "f").exists()
    assert work.api.commit(session)["status"]["phase"] == "Succeeded"
    assert (work.there / "f").stat().st_size == 300_000
    assert work.left() == []


def test_a_client_that_cannot_copy_there_learns_it_before_it_sends(work: Workstation) -> None:
    session = begin(work, "/to/none/.")
    wait_until(lambda: work.api.get(session)["status"]["phase"] == "Failed")
    with pytest.raises(CopyError, match="there is no directory"):
        work.api.open(session, 0)
    assert work.agent.audits == ["failed"]


# The corpus of hostile archives

SMALL = {name: case for name, case in HOSTILE.items() if len(case.data) < 8 * MIB}


@contextmanager
def refused(name: str, parent: Path) -> Iterator[bytes]:
    """Yield an archive whose copy to ``dest`` must be refused, and change nothing."""
    parent.mkdir()
    build_surroundings(parent)
    if before := SMALL[name].before:
        before(parent / "dest")
    listing = snapshot(parent)
    with pytest.raises(CopyError) as caught:
        yield SMALL[name].data
    assert snapshot(parent) == listing, name
    message = caught.value.message
    assert "\x1b" not in message, name
    assert "agent failed" not in message, (name, message)


def test_into_a_container(work: Workstation) -> None:
    """A client sends archives that it does not check, with owners to be kept.

    ``tests/e2e/node/test_copy_hostile.py`` sends them to a container of a real node, and keeps no
    owners.
    """
    assert len(SMALL) >= 40
    for name in SMALL:
        with refused(name, work.container.root / name) as data:
            pieces = [data[at : at + MIB] for at in range(0, len(data), MIB)]
            work.write(Archive(pieces), f"/{name}/dest", archive=True)
    assert {*work.agent.audits} == {"failed"}
    assert work.left() == []


def test_out_of_a_node(work: Workstation) -> None:
    for name in SMALL:
        with refused(name, work.here / name) as data:

            def make(write: Write, _: Watch, data: bytes = data) -> None:
                if data:
                    write(memoryview(data))

            work.agent.copies.make = make
            # The archive of "DIR/." has no top-level entry, and neither have those of the corpus.
            work.out("/to/.", work.here / name / "dest")
    assert (work.notes, list(work.there.iterdir())) == ([], [])
