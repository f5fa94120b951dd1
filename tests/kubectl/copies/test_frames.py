"""What an agent makes of the messages of a client, right ones and others."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from zlib import crc32

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, unix_connect
from websockets.typing import Subprotocol

from pycrictl.copy.transfer import serving
from pycrictl.copy.transfer.flow import next_event, send
from pycrictl.copy.transfer.messages import (
    ACKNOWLEDGEMENT,
    MAX_PIECE_MESSAGE_BYTES,
    PIECE,
    PIECES_PROTOCOL,
    Acknowledgement,
    Event,
    ResumableProtocol,
)
from pycrictl.errors import CopyError
from pycrictl.wire.tar.writer import END_OF_ARCHIVE
from tests.agent.copies.small import SmallAgent
from tests.copy.hostile import FILE, member
from tests.copy.trees import needs_root, stages_in
from tests.kubectl.copies.conftest import Start
from tests.kubectl.copies.workstation import Workstation
from tests.proxy.copier import Pretended
from tests.waiting import wait_until
from tests.wire.frames import BINARY, TEXT, frame

pytestmark = [needs_root, pytest.mark.usefixtures("container")]

KEY = b"\x12\x34\x56\x78"
CONTENT = member(b"f", FILE, os.urandom(300_000)) + END_OF_ARCHIVE
SIZE = len(CONTENT)
PATH = "/apis/progress.pycrictl.dev/v1alpha1/namespaces/shop/pods/web/containercopies"


def piece(offset: int, content: bytes, *, checksum: int | None = None) -> bytes:
    checksum = crc32(content) if checksum is None else checksum
    return bytes((PIECE,)) + struct.pack(">QI", offset, checksum) + content


@pytest.fixture
def session(agent: SmallAgent, work: Workstation) -> str:
    """A copy that has begun."""
    return work.begin_to(CONTENT)


@contextmanager
def connected(
    folder: Path, session: str, protocol: str = PIECES_PROTOCOL
) -> Iterator[ClientConnection]:
    with unix_connect(
        str(folder / "agent"), f"ws://localhost{PATH}/{session}/data",
        subprotocols=[Subprotocol(protocol)], compression=None, close_timeout=1,
    ) as connection:  # fmt: skip
        acknowledged(connection)  # it begins with one
        yield connection


def acknowledged(connection: ClientConnection) -> int:
    """Return what the agent says that it has."""
    message = connection.recv(20)
    assert isinstance(message, bytes)
    assert message[0] == ACKNOWLEDGEMENT
    return int.from_bytes(message[1:], "big")


def test_an_agent_that_has_everything_before_the_client_looks(
    session: str, work: Workstation
) -> None:
    protocol, events = ResumableProtocol(is_client=True, is_sender=True), list[Event]()
    link = work.api.open(session, 0)
    assert next_event(link, protocol) == Acknowledgement(0)
    content = memoryview(CONTENT)
    send(
        link, protocol, [content], events.append,
        size_bytes=SIZE, on_sent=lambda _: time.sleep(0.2),
    )  # fmt: skip
    while Acknowledgement(SIZE) not in events:
        events.append(next_event(link, protocol))
    link.close()
    assert work.api.commit(session)["status"]["phase"] == "Succeeded"


@pytest.mark.parametrize(
    "sent",
    [
        frame(BINARY, piece(0, CONTENT)),  # not masked
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
def test_what_ends_the_connection_and_not_the_copy(
    folder: Path, session: str, work: Workstation, sent: bytes
) -> None:
    with connected(folder, session) as connection:
        with suppress(OSError):
            connection.socket.sendall(sent)
        with pytest.raises(ConnectionClosed):
            connection.recv(20)
    assert work.api.get(session)["status"]["offset"] == 0
    with connected(folder, session) as connection:
        connection.send(piece(0, CONTENT))
        assert acknowledged(connection) == SIZE


def test_an_upgrade_to_something_else(folder: Path, session: str) -> None:
    with (
        pytest.raises(InvalidStatus) as caught,
        connected(folder, session, protocol="v4.channel.k8s.io"),
    ):
        pass
    assert caught.value.response.status_code == 400
    assert f"a WebSocket with {PIECES_PROTOCOL}".encode() in caught.value.response.body


def test_a_client_that_goes_to_sleep(
    start: Start, folder: Path, work: Workstation, container: Pretended
) -> None:
    """After so long without a sign nothing of its copy is left, though its connection is open."""
    start(lifetime_s=1.0)
    session = work.begin_to(CONTENT)
    with connected(folder, session) as connection:
        connection.send(piece(0, CONTENT[:1000]))
        wait_until(lambda: bool(stages_in(container.root)))
        wait_until(lambda: stages_in(container.root) == [])
        while True:
            try:
                assert acknowledged(connection) <= 1000
            except ConnectionClosed:
                break
    assert list((container.root / "to").iterdir()) == []


# What is staged as it arrives


def test_what_has_arrived_waits_for_the_next_connection(
    session: str,
    work: Workstation,
    container: Pretended,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "HEARTBEAT_S", 0.05)
    with connected(folder, session) as connection:
        connection.send(piece(0, CONTENT[:200_000]))
        wait_until(lambda: work.api.get(session)["status"]["offset"] == 200_000)
    assert len(stages_in(container.root)) == 1
    with connected(folder, session) as connection:
        connection.send(piece(200_000, CONTENT[200_000:]))
        while acknowledged(connection) < SIZE:
            pass
    assert not (container.root / "to/f").exists()
    assert work.api.commit(session)["status"]["phase"] == "Succeeded"
    assert (container.root / "to/f").stat().st_size == 300_000
    assert stages_in(container.root) == []


def test_a_client_that_cannot_copy_there_learns_it_before_it_sends(
    agent: SmallAgent, work: Workstation
) -> None:
    session = work.begin_to(CONTENT, "/to/none/.")
    wait_until(lambda: work.api.get(session)["status"]["phase"] == "Failed")
    with pytest.raises(CopyError, match="there is no directory"):
        work.api.open(session, 0)
    assert agent.audits == ["failed"]
