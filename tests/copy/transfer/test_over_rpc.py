"""The method rpc with honest, broken and hostile servers, and the limits of its calls."""

from __future__ import annotations

import io
import os
import socket
import tarfile
import threading
import zlib
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from websockets.frames import Frame, Opcode
from websockets.sync.server import ServerConnection

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import (
    CopyError,
    PycrictlError,
    RemoteProtocolError,
    StreamError,
    Unimplemented,
    UpgradeRefused,
)
from pycrictl.copy import methods
from pycrictl.copy.rules import outcome
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.rules.spec import SourceKind, address
from pycrictl.copy.service.transfer import Transfer
from pycrictl.copy.transfer import over_rpc
from pycrictl.copy.transfer.link import SocketLink
from pycrictl.copy.transfer.messages import (
    FROM_CONTAINER,
    STATUS,
    TO_CONTAINER,
    ChannelProtocol,
)
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.streams.target import TlsFiles
from tests.copy.transfer.conftest import (
    FAILURE,
    HONEST,
    MIB,
    SUCCESS,
    Copier,
    CopyServer,
    Script,
    copy_server,
    messages,
    say,
    sending,
)
from tests.copy.trees import ignore, tree
from tests.fakecri.server import FakeServer
from tests.streams.servers import make_certificates

__all__ = ["tree"]

DAMAGED = HONEST.replace(b"content", b"CONTENT")
SIZES = Summary(files=1, directories=1, size_bytes=7)
LEFT_OUT = [Skipped(b"tree/\xff", "special", "it is a named pipe")]
TOLD = outcome.encode_success(Summary(files=7, skipped=1), LEFT_OUT)


# Honest servers


def test_copying_into(fake: FakeServer, server: CopyServer, copier: Copier, tree: Path) -> None:
    summary = copier.into(tree, "/to/")
    assert summary == Summary(files=4, directories=3, links=1, size_bytes=MIB + 77 + 8)
    with tarfile.open(fileobj=io.BytesIO(server.received)) as tar:
        names = {str(path.relative_to(tree.parent)) for path in (tree, *tree.rglob("*"))}
        assert {*tar.getnames()} == names
    probe, request = (call.request for call in fake.calls)
    assert (probe.container_id, probe.path, probe.size) == ("c1", "", 0)
    assert (request.container_id, request.path) == ("c1", "/to/")
    assert request.size == len(server.received) == copier.bytes
    assert request.checksum == zlib.crc32(server.received)
    assert copier.totals == [request.size]
    server.script = partial(server.receive_archive, outcome=TOLD)
    assert copier.into(tree, "/to") == Summary(files=7, skipped=1)
    assert copier.skipped == LEFT_OUT


def test_copying_out(fake: FakeServer, server: CopyServer, copier: Copier, tmp_path: Path) -> None:
    server.script = sending(HONEST, TOLD, piece_bytes=100)
    assert copier.out("/x/d", tmp_path / "new") == SIZES
    assert (tmp_path / "new/f").read_text() == "content"
    assert (copier.totals, copier.bytes) == ([len(HONEST)], len(HONEST))
    assert copier.skipped == LEFT_OUT
    (call,) = fake.calls
    assert (call.request.container_id, call.request.path) == ("c1", "/x/d")
    # Long enough for the server to measure the source.
    assert call.deadline_s is not None
    assert call.deadline_s > 500


def test_archives(fake: FakeServer, server: CopyServer, copier: Copier, tmp_path: Path) -> None:
    server.script = sending(HONEST, piece_bytes=100)
    written = b""
    for piece in methods.pack_from(copier, b"/x/d", Rules(), copier.watch):
        written += piece
        assert (copier.bytes, copier.totals) == (len(written), [len(HONEST)])
    assert written == HONEST
    server.script = sending(DAMAGED)
    with pytest.raises(CopyError, match="announced checksum"):
        b"".join(methods.pack_from(copier, b"/x/d", Rules(), copier.watch))
    server.script = server.receive_archive
    assert unpacked(copier, HONEST, tmp_path) == SIZES
    assert server.received == HONEST
    request = fake.calls[-1].request
    # Makes the server treat it as an archive, whatever it contains.
    assert request.path == "/to/."
    assert (request.size, request.checksum) == (len(HONEST), zlib.crc32(HONEST))


def test_rules_for_an_archive_that_is_not_unpacked(server: CopyServer, copier: Copier) -> None:
    server.script = sending(HONEST)
    with pytest.raises(CopyError, match="more than 1 entry would be copied"):
        b"".join(map(bytes, methods.pack_from(copier, b"/x/d", Rules(max_entries=1), copier.watch)))


def unpacked(copier: Copier, data: bytes, folder: Path) -> Summary:
    (folder / "a.tar").write_bytes(data)
    with (folder / "a.tar").open("rb") as file:
        return methods.unpack_to(copier, file.fileno(), b"/to", Rules(), copier.watch)


def test_a_directory_is_not_asked_for_as_if_for_an_archive() -> None:
    for paths, asked in (
        (("/to/.", "/to/./", "/to/./.", "/to//.//", "/to/"), "/to/"),
        (("/.", "/"), "/"),
        (("/to",), "/to"),
        (("/to/a.",), "/to/a."),
    ):
        addresses = {address(path.encode(), SourceKind.DIRECTORY) for path in paths}
        assert addresses == {asked.encode()}


# Interruptions


def test_an_interruption_while_the_server_is_at_it(
    server: CopyServer,
    copier: Copier,
    tree: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(over_rpc, "_wait", Mock(side_effect=KeyboardInterrupt))
    server.script = lambda connection: deque(messages(connection), maxlen=0).clear()
    with pytest.raises(KeyboardInterrupt):
        copier.into(tree, "/to")
    assert "did not report the outcome" in caplog.text


@pytest.mark.parametrize("is_verified", [True, False])
def test_tls(fake: FakeServer, client: CriClient, tmp_path: Path, is_verified: bool) -> None:
    certificates = make_certificates(tmp_path)
    with copy_server(fake, certificates.server_context()) as server:
        server.script = sending(HONEST)
        copier = Copier(client, tls=TlsFiles(ca=certificates.ca) if is_verified else None)
        copier.out("/d", tmp_path / "new")
        assert (tmp_path / "new/f").read_text() == "content"
        server.script = server.receive_archive
        (tmp_path / "big").write_bytes(os.urandom(3 * MIB))
        copier.into(tmp_path / "big", "/to")
        assert len(server.received) == copier.totals[-1]


# Sources that change


@pytest.mark.parametrize("size", [1000, 2 * MIB])
@pytest.mark.parametrize("change", [b"yyy", b"", b"x", None], ids=str)
def test_a_source_that_changes_after_it_was_measured(
    fake: FakeServer,
    server: CopyServer,
    copier: Copier,
    tmp_path: Path,
    change: bytes | None,
    size: int,
) -> None:
    file = tmp_path / "d/f"
    file.parent.mkdir()
    file.write_bytes(b"y" * size)

    def answer(*asked: Any) -> cri_pb2.CopyToContainerResponse:
        if change is None:
            file.unlink()
        else:
            file.write_bytes(change * size)
        return server.offered_to(*asked)

    fake.prepare("CopyToContainer", cri_pb2.CopyToContainerResponse(), answer)
    server.script = partial(server.receive_archive, outcome=FAILURE)
    is_as_long = change == b"x"  # only the server can detect this
    with pytest.raises(CopyError, match="the disk is" if is_as_long else "changed while it was"):
        copier.into(tmp_path / "d", "/to")
    if is_as_long:
        assert zlib.crc32(server.received) != fake.calls[-1].request.checksum


# What the calls cannot express, and runtimes that lack them


def test_what_the_calls_cannot_carry(fake: FakeServer, copier: Copier, tree: Path) -> None:
    rules = Rules(archive=True)
    with pytest.raises(Unimplemented, match="CopyToContainer cannot"):
        copier.into(tree, "/to", rules)
    with pytest.raises(Unimplemented, match="CopyToContainer cannot"):
        methods.unpack_to(copier, -1, b"/to", rules, copier.watch)
    for path, follow, why in ((b"/x", True, "-L"), (b"/\xff", False, "UTF-8")):
        rules = Rules(follow=follow)
        with pytest.raises(Unimplemented, match=why) as caught:
            methods.copy_from(copier, path, bytes(tree / "n"), rules, copier.watch)
        assert "--method node" in (caught.value.hint or "")
    assert fake.calls == []


def test_a_runtime_without_the_calls_is_asked_first(copier: Copier, tree: Path) -> None:
    with pytest.raises(Unimplemented, match="CopyFromContainer"):
        copier.out("/x", tree / "new")
    with pytest.raises(Unimplemented, match="CopyToContainer"):
        copier.into(tree, "/to")
    reading, writing = os.pipe()
    os.write(writing, HONEST)
    with pytest.raises(Unimplemented, match="CopyToContainer"):
        methods.unpack_to(copier, reading, b"/to", Rules(), copier.watch)
    assert os.read(reading, 10_000) == HONEST
    os.close(reading)
    os.close(writing)
    with pytest.raises(Unimplemented):
        next(methods.pack_from(copier, b"/x", Rules(), copier.watch))
    assert (copier.totals, copier.bytes, copier.skipped) == ([], 0, [])


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
    """Return a script that sends bytes unchanged, such as invalid frames."""

    def script(connection: ServerConnection) -> None:
        connection.socket.sendall(data)
        connection.recv()

    return script


@pytest.mark.parametrize(
    ("server_does", "error", "message"),
    [
        (silent, StreamError, "was silent for 0.3 s"),
        (forever(FROM_CONTAINER, bytes(MIB)), PycrictlError, "more than the"),
        (forever(FROM_CONTAINER, b""), RemoteProtocolError, "too many empty messages"),
        (forever(STATUS, b"x" * 100_000), RemoteProtocolError, "report on the copy is too long"),
        (forever(TO_CONTAINER, b"x"), RemoteProtocolError, "channel that is not its own"),
        (raw(b"\x82\x85abcdefghi"), RemoteProtocolError, "broke the WebSocket protocol"),
        (raw(b"\x82\x7f" + b"\xff" * 8), RemoteProtocolError, "a message of more than"),
        (sending(HONEST[:-512]), CopyError, "2560 were announced"),
        (sending(HONEST + bytes(512)), StreamError, "more than the 2560 announced bytes"),
        (sending(DAMAGED), CopyError, "announced checksum"),
        (sending(HONEST, b""), StreamError, "before it reported the outcome"),
        (sending(HONEST, b"{}"), StreamError, "is not a Status object"),
        (sending(HONEST, FAILURE), CopyError, r"the disk is \x1b[31mfull"),
        (sending(b"", SUCCESS), CopyError, "0 bytes arrived, but 2560 were announced"),
        (broken, StreamError, "dropped the connection"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\ngone\n", UpgradeRefused, "404"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://1.2.3.4/\r\n\r\n", UpgradeRefused, "302"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", RemoteProtocolError, "handshake"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", RemoteProtocolError, "HTTP"),
        (b"H", PycrictlError, "does not answer within"),
        ("ftp://127.0.0.1/token", RemoteProtocolError, "http"),
        ("http://127.0.0.1:1/token", PycrictlError, "127.0.0.1:1"),
    ],
)
def test_nothing_comes_of_a_bad_stream(
    server: CopyServer,
    copier: Copier,
    tmp_path: Path,
    server_does: Script | bytes | str,
    error: type[Exception],
    message: str,
) -> None:
    """Nor of a bad response to the handshake, or of a bad URL."""
    match server_does:
        case bytes():
            server.answer = server_does
        case str():
            server.url = server_does
        case _:
            server.script = server_does
    copier.client.timeout_s = 3.0
    copier.idle_s = 0.3 if server_does is silent else 60.0
    (tmp_path / "to").mkdir()
    with pytest.raises(error) as caught:
        copier.out("/x/d", tmp_path / "to")
    assert message in str(caught.value)
    assert "token" not in str(caught.value)
    assert list((tmp_path / "to").iterdir()) == []


COPY_IS_OVER = threading.Event()


def saying(
    data: bytes, *, late: bool, then: Callable[[ServerConnection], object] = ignore
) -> Script:
    """Return a script that sends an outcome, if any, at once or after the whole archive."""

    def script(connection: ServerConnection) -> None:
        if late:
            for channel, _ in messages(connection):
                if channel != TO_CONTAINER:
                    break
        if data:
            say(connection, STATUS, data)
        then(connection)

    return script


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (saying(FAILURE, late=False), r"the disk is \x1b[31mfull"),
        (saying(FAILURE, late=True), r"the disk is \x1b[31mfull"),
        (saying(b"", late=True), "before it reported the outcome"),
        (saying(b"", late=True, then=silent), "was silent for 0.3 s"),
        (lambda _: COPY_IS_OVER.wait(60), "was silent for 0.3 s"),
        (broken, "connection"),
        # These do not read either: the error depends on what the client notices first.
        (saying(SUCCESS, late=False, then=silent), "success before it had everything|connection"),
        (forever(TO_CONTAINER, b"x"), "channel that is not its own|was silent for 0.3 s"),
    ],
)
def test_only_a_success_at_the_end_is_one(
    server: CopyServer, copier: Copier, tmp_path: Path, script: Script, message: str
) -> None:
    server.script = script
    copier.idle_s = copier.outcome_s = 0.3 if "was silent" in message else 60.0
    COPY_IS_OVER.clear()
    (tmp_path / "big").write_bytes(bytes(16 * MIB))
    with pytest.raises(PycrictlError) as caught:
        copier.into(tmp_path / "big", "/to")
    COPY_IS_OVER.set()
    assert any(part in str(caught.value) for part in message.split("|"))
    assert "\n" not in caught.value.message


def test_a_client_that_is_too_slow_for_a_server() -> None:
    client, sock = socket.socketpair()
    with client, SocketLink(sock, idle_s=60, deadline=0.0) as link:
        client.sendall(Frame(Opcode.BINARY, b"\x00abc").serialize(mask=True))
        with pytest.raises(StreamError, match="the client is too slow"):
            link.receive()


def test_the_outcome_of_a_commit_that_outlasts_the_deadline() -> None:
    transfer = Transfer(ChannelProtocol(TO_CONTAINER))
    client, sock = socket.socketpair()
    with client:
        transfer.attach(SocketLink(sock, idle_s=60, deadline=0.0))
        transfer.conclude(SUCCESS)
        assert SUCCESS in client.recv(1000)
