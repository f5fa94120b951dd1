"""The method rpc against servers that are broken or hostile."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest
from websockets.sync.server import ServerConnection

from pycrictl._proto import cri_pb2
from pycrictl.copy import ends
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.transfer.messages import FROM_CONTAINER, STATUS, TO_CONTAINER
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import (
    CopyError,
    PycrictlError,
    RemoteProtocolError,
    StreamError,
    UpgradeRefused,
)
from tests.copy.transfer.conftest import (
    FAILURE,
    HONEST,
    MIB,
    SUCCESS,
    Copier,
    CopyServer,
    Script,
    messages,
    offer,
    say,
    sending,
)
from tests.fakecri.server import FakeServer

DAMAGED = HONEST.replace(b"content", b"CONTENT")


def impatient(client: CriClient, message: str) -> Copier:
    """A copier that waits only for a moment, if that is how the copy is to end."""
    patience_s = 0.3 if "was silent" in message else 60.0
    return Copier(client, idle_s=patience_s, outcome_s=patience_s)


def forever(channel: int, data: bytes) -> Script:
    def script(connection: ServerConnection) -> None:
        while True:
            say(connection, channel, data)

    return script


def silent(connection: ServerConnection) -> None:
    connection.recv()


def broken(connection: ServerConnection) -> None:
    connection.socket.shutdown(socket.SHUT_RDWR)


def raw(data: bytes) -> Script:
    """Sends frames as they are."""

    def script(connection: ServerConnection) -> None:
        connection.socket.sendall(data)
        connection.recv()

    return script


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        (silent, StreamError, "was silent for 0.3 s"),
        (forever(FROM_CONTAINER, bytes(MIB)), PycrictlError, "more than the"),
        (forever(FROM_CONTAINER, b""), RemoteProtocolError, "too many empty messages"),
        (forever(STATUS, b"x" * 100_000), RemoteProtocolError, "outcome of the copy is too long"),
        (forever(TO_CONTAINER, b"x"), RemoteProtocolError, "channel that is not its own"),
        (forever(77, b"x"), RemoteProtocolError, "channel that is not its own"),
        (raw(b"\x81\x03abc"), RemoteProtocolError, "it sent text"),
        (raw(b"\x89\x01x" * 2000), RemoteProtocolError, "too many empty messages"),
        (raw(b"\x82\x85abcdefghi"), RemoteProtocolError, "broke the WebSocket protocol"),
        (raw(b"\x82\x7f" + b"\xff" * 8), RemoteProtocolError, "a message of more than"),
        (sending(HONEST[:-512]), CopyError, "2560 were announced"),
        (sending(HONEST + bytes(512)), StreamError, "more than the 2560 announced bytes"),
        (sending(DAMAGED), CopyError, "another checksum"),
        (sending(HONEST, b""), StreamError, "before the outcome"),
        (sending(HONEST, b"{}"), StreamError, "is not a Status object"),
        (sending(HONEST, b"[" * 60_000), StreamError, "is not a Status object"),
        (sending(HONEST, FAILURE), CopyError, r"the disk is \x1b[31mfull"),
        (sending(b"", SUCCESS), CopyError, "0 bytes arrived, but 2560 were announced"),
        (broken, StreamError, "dropped the connection"),
    ],
)
def test_nothing_comes_of_a_bad_stream(
    fake: FakeServer,
    server: CopyServer,
    client: CriClient,
    tmp_path: Path,
    script: Script,
    error: type[Exception],
    message: str,
) -> None:
    offer(fake, server, HONEST)
    server.script = script
    copier = impatient(client, message)
    (tmp_path / "to").mkdir()
    begin = time.monotonic()
    with pytest.raises(error) as caught:
        copier.out("/x/d", tmp_path / "to")
    assert message in str(caught.value)
    assert time.monotonic() - begin < 30
    assert list((tmp_path / "to").iterdir()) == []


def test_an_archive_for_standard_output_is_verified_too(
    fake: FakeServer, server: CopyServer, copier: Copier
) -> None:
    offer(fake, server, HONEST)
    server.script = sending(DAMAGED)
    with pytest.raises(CopyError, match="another checksum"):
        b"".join(ends.pack_from(copier, b"/x/d", Rules(), copier.watch))


def refuse_early(connection: ServerConnection) -> None:
    say(connection, STATUS, FAILURE)


def leave_late(connection: ServerConnection) -> None:
    for channel, _ in messages(connection):
        if channel != TO_CONTAINER:
            return


def refuse_late(connection: ServerConnection) -> None:
    leave_late(connection)
    say(connection, STATUS, FAILURE)


def succeed_early(connection: ServerConnection) -> None:
    say(connection, STATUS, SUCCESS)
    connection.recv()


COPY_IS_OVER = threading.Event()


def take_nothing(connection: ServerConnection) -> None:
    COPY_IS_OVER.wait(60)


def say_nothing(connection: ServerConnection) -> None:
    leave_late(connection)
    connection.recv()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (refuse_early, r"the disk is \x1b[31mfull"),
        (refuse_late, r"the disk is \x1b[31mfull"),
        (leave_late, "before the outcome"),
        (succeed_early, "success before it has everything"),
        (say_nothing, "was silent for 0.3 s"),
        (take_nothing, "was silent for 0.3 s"),
        (broken, "connection"),
        # Whichever is noticed first: it does not read either.
        (forever(TO_CONTAINER, b"x"), "channel that is not its own|was silent for 0.3 s"),
    ],
)
def test_only_a_success_at_the_end_is_one(
    fake: FakeServer,
    server: CopyServer,
    client: CriClient,
    tmp_path: Path,
    script: Script,
    message: str,
) -> None:
    offer(fake, server)
    server.script = script
    COPY_IS_OVER.clear()
    (tmp_path / "big").write_bytes(bytes(16 * MIB))
    copier = impatient(client, message)
    with pytest.raises(PycrictlError) as caught:
        copier.into(tmp_path / "big", "/to")
    COPY_IS_OVER.set()
    assert any(part in str(caught.value) for part in message.split("|"))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\ngone\n", UpgradeRefused, "404"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://1.2.3.4/\r\n\r\n", UpgradeRefused, "302"),
        (b"HTTP/1.1 200 OK\r\n\r\nplain", UpgradeRefused, "200"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", RemoteProtocolError, "handshake"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", RemoteProtocolError, "HTTP"),
        (b"H", PycrictlError, "does not answer within"),
    ],
)
def test_no_stream_behind_the_url(
    fake: FakeServer,
    server: CopyServer,
    tmp_path: Path,
    answer: bytes,
    error: type[Exception],
    message: str,
) -> None:
    offer(fake, server, HONEST)
    server.answer = answer
    with CriClient(fake.path, timeout_s=3) as client, pytest.raises(error) as caught:
        Copier(client).out("/x/d", tmp_path / "new")
    assert message in str(caught.value)
    assert "token" not in str(caught.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("url", ["", "ftp://127.0.0.1/x", "http://a b/", "http://127.0.0.1:1/x"])
def test_bad_urls(fake: FakeServer, copier: Copier, tmp_path: Path, url: str) -> None:
    fake.offer("CopyFromContainer", cri_pb2.CopyFromContainerResponse(url=url, size=1024))
    with pytest.raises(PycrictlError):
        copier.out("/x/d", tmp_path / "new")
    assert not (tmp_path / "new").exists()
