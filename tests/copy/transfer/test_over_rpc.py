"""The method rpc with servers that are honest, broken or hostile, and what its calls cannot do."""

from __future__ import annotations

import io
import os
import signal
import socket
import tarfile
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from websockets.frames import Frame, Opcode
from websockets.sync.server import ServerConnection

from pycrictl._proto import cri_pb2
from pycrictl.copy import ends
from pycrictl.copy.rules import outcome
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.rules.spec import SourceKind, address
from pycrictl.copy.transfer.link import SocketLink
from pycrictl.copy.transfer.messages import CHANNEL_END, FROM_CONTAINER, STATUS, TO_CONTAINER
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import (
    CopyError,
    PycrictlError,
    RemoteProtocolError,
    StreamError,
    Unimplemented,
    UpgradeRefused,
)
from pycrictl.streaming.target import TlsFiles
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
    offer,
    say,
    sending,
)
from tests.copy.trees import ignore
from tests.fakecri.server import FakeServer, Status
from tests.streaming.servers import make_certificates


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    (top / "sub").mkdir(parents=True)
    (top / "f").write_bytes(os.urandom(2 * MIB + 7))
    (top / "sub/g").write_text("g")
    (top / "sub/link").symlink_to("../f")
    return top


def names_of(archive: bytes | bytearray) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return sorted(tar.getnames())


# Honest servers


def test_into_a_container(fake: FakeServer, server: CopyServer, copier: Copier, tree: Path) -> None:
    offer(fake, server)
    summary = copier.into(tree, "/to/")
    assert summary == Summary(files=2, directories=2, links=1, size_bytes=2 * MIB + 8)
    names = ["tree", "tree/f", "tree/sub", "tree/sub/g", "tree/sub/link"]
    assert names_of(server.received) == names
    probe, request = (call.request for call in fake.calls)
    assert (probe.container_id, probe.path, probe.size) == ("c1", "", 0)
    assert (request.container_id, request.path) == ("c1", "/to/")
    assert request.size == len(server.received) == copier.bytes
    assert request.checksum == zlib.crc32(server.received)
    assert copier.totals == [request.size]


def test_out_of_a_container(
    fake: FakeServer, server: CopyServer, copier: Copier, tmp_path: Path
) -> None:
    offer(fake, server, HONEST)
    server.script = sending(HONEST, piece_bytes=100)
    assert copier.out("/x/d", tmp_path / "new") == Summary(files=1, directories=1, size_bytes=7)
    assert (tmp_path / "new/f").read_text() == "content"
    assert (copier.totals, copier.bytes) == ([len(HONEST)], len(HONEST))
    (call,) = fake.calls
    assert (call.request.container_id, call.request.path) == ("c1", "/x/d")
    # As long as it may take to measure what is copied.
    assert call.deadline_s is not None
    assert call.deadline_s > 500


def test_archives_both_ways(
    fake: FakeServer, server: CopyServer, copier: Copier, tmp_path: Path
) -> None:
    offer(fake, server, HONEST)
    server.script = sending(HONEST, piece_bytes=100)
    written = b""
    for piece in ends.pack_from(copier, b"/x/d", Rules(), copier.watch):
        written += piece
        assert (copier.bytes, copier.totals) == (len(written), [len(HONEST)])
    assert written == HONEST
    server.script = server.take
    (tmp_path / "a.tar").write_bytes(HONEST)
    with (tmp_path / "a.tar").open("rb") as file:
        summary = ends.unpack_to(copier, file.fileno(), b"/to", Rules(), copier.watch)
    assert summary == Summary(files=1, directories=1, size_bytes=7)
    assert server.received == HONEST
    request = fake.calls[-1].request
    # So that the server takes it for an archive, whatever it holds.
    assert (request.path, request.size, request.checksum) == (
        "/to/.",
        len(HONEST),
        zlib.crc32(HONEST),
    )


def test_what_the_server_did_and_left_out(
    fake: FakeServer, server: CopyServer, copier: Copier, tree: Path, tmp_path: Path
) -> None:
    left_out = [Skipped(b"tree/\xff", "special", "it is a named pipe")]
    said = outcome.encode_success(Summary(files=7, skipped=1), left_out)
    offer(fake, server, HONEST)

    server.script = lambda connection: server.take(connection, said)
    assert copier.into(tree, "/to") == Summary(files=7, skipped=1)
    assert copier.skipped == left_out
    server.script = sending(HONEST, said)
    out = copier.out("/d", tmp_path / "new")
    assert out == Summary(files=1, directories=1, size_bytes=7)
    assert copier.skipped == left_out * 2


def test_a_directory_is_not_asked_for_as_if_for_an_archive() -> None:
    for paths, asked in (
        (("/to/.", "/to/./", "/to/./.", "/to//.//", "/to/"), "/to/"),
        (("/.", "/"), "/"),
        (("/to",), "/to"),
        (("/to/a.",), "/to/a."),
    ):
        found = {address(path.encode(), SourceKind.DIRECTORY) for path in paths}
        assert found == {asked.encode()}


# Interruptions


def test_an_interruption_while_the_server_is_at_it(
    fake: FakeServer,
    server: CopyServer,
    copier: Copier,
    tree: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    offer(fake, server)
    given_up = threading.Event()

    def take(connection: ServerConnection) -> None:
        for channel, _ in messages(connection):
            if channel == CHANNEL_END:
                break
        time.sleep(0.2)  # the client waits by now
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        given_up.wait(60)

    server.script = take
    with pytest.raises(KeyboardInterrupt):
        copier.into(tree, "/to")
    given_up.set()
    assert "did not report whether" in caplog.text


@pytest.mark.parametrize("is_verified", [True, False])
def test_tls(fake: FakeServer, client: CriClient, tmp_path: Path, is_verified: bool) -> None:
    certificates = make_certificates(tmp_path)
    with copy_server(certificates.server_context()) as server:
        offer(fake, server, HONEST)
        server.script = sending(HONEST)
        copier = Copier(client, tls=TlsFiles(ca=certificates.ca) if is_verified else None)
        copier.out("/d", tmp_path / "new")
        assert (tmp_path / "new/f").read_text() == "content"
        server.script = server.take
        (tmp_path / "big").write_bytes(os.urandom(3 * MIB))
        copier.into(tmp_path / "big", "/to")
        assert len(server.received) == copier.totals[-1]


# Sources that change


@pytest.mark.parametrize("size", [1000, 2 * MIB])
@pytest.mark.parametrize("change", ["longer", "shorter", "gone", "other"])
def test_a_source_that_changes_after_it_was_measured(
    fake: FakeServer, server: CopyServer, copier: Copier, tmp_path: Path, change: str, size: int
) -> None:
    (tmp_path / "d").mkdir()
    file = tmp_path / "d/f"
    file.write_bytes(b"y" * size)

    def answer(request: Any, context: Any) -> cri_pb2.CopyToContainerResponse:
        if change == "longer":
            file.write_bytes(b"y" * 3 * size)
        elif change == "shorter":
            file.write_bytes(b"")
        elif change == "gone":
            file.unlink()
        elif request.size:
            file.write_bytes(b"x" * size)
        return cri_pb2.CopyToContainerResponse(url=server.url)

    fake.prepare("CopyToContainer", cri_pb2.CopyToContainerResponse(), answer)
    server.script = lambda connection: server.take(connection, FAILURE)
    with pytest.raises(CopyError, match=r"changed while it was copied|the disk is"):
        copier.into(tmp_path / "d", "/to")
    if change == "other":
        assert zlib.crc32(server.received) != fake.calls[-1].request.checksum


# What the calls cannot carry, and runtimes without them


def test_what_the_calls_cannot_carry(
    fake: FakeServer, copier: Copier, tree: Path, tmp_path: Path
) -> None:
    for rules in (Rules(archive=True), Rules(no_clobber=True)):
        with pytest.raises(Unimplemented, match="CopyToContainer cannot"):
            copier.into(tree, "/to", rules)
        with pytest.raises(Unimplemented, match="CopyToContainer cannot"):
            ends.unpack_to(copier, -1, b"/to", rules, copier.watch)
    for path, follow, why in ((b"/x", True, "-L"), (b"/\xff", False, "UTF-8")):
        with pytest.raises(Unimplemented, match=why) as caught:
            ends.copy_from(
                copier, path, bytes(tmp_path / "n"), Rules(), copier.watch, follow=follow
            )
        assert "--method node" in (caught.value.hint or "")
    assert fake.calls == []


def test_a_runtime_without_the_calls_is_asked_first(
    fake: FakeServer, copier: Copier, tree: Path, tmp_path: Path
) -> None:
    with pytest.raises(Unimplemented, match="CopyFromContainer"):
        copier.out("/x", tmp_path / "new")
    with pytest.raises(Unimplemented, match="CopyToContainer"):
        copier.into(tree, "/to")
    reading, writing = os.pipe()
    os.write(writing, HONEST)
    with pytest.raises(Unimplemented, match="CopyToContainer"):
        ends.unpack_to(copier, reading, b"/to", Rules(), copier.watch)
    assert os.read(reading, 10_000) == HONEST
    os.close(reading)
    os.close(writing)
    with pytest.raises(Unimplemented):
        next(ends.pack_from(copier, b"/x", Rules(), copier.watch))
    assert (copier.totals, copier.bytes, copier.skipped) == ([], 0, [])


@pytest.mark.parametrize("data", [b"no archive" * 100, HONEST[:-1024], b""])
def test_a_bad_archive_is_not_sent(
    fake: FakeServer, server: CopyServer, copier: Copier, tmp_path: Path, data: bytes
) -> None:
    fake.prepare("CopyToContainer", Status(grpc.StatusCode.INVALID_ARGUMENT, "no path"))
    (tmp_path / "a.tar").write_bytes(data)
    with (tmp_path / "a.tar").open("rb") as file, pytest.raises((CopyError, StreamError)):
        ends.unpack_to(copier, file.fileno(), b"/to", Rules(), copier.watch)


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


COPY_IS_OVER = threading.Event()


def saying(
    data: bytes, *, late: bool, then: Callable[[ServerConnection], object] = ignore
) -> Script:
    """Says how the copy ended, if anything, early or when all has come."""

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
        (saying(b"", late=True), "before the outcome"),
        (saying(SUCCESS, late=False, then=silent), "success before it has everything"),
        (saying(b"", late=True, then=silent), "was silent for 0.3 s"),
        (lambda _: COPY_IS_OVER.wait(60), "was silent for 0.3 s"),
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


def test_a_client_that_is_too_slow_for_a_server() -> None:
    client, sock = socket.socketpair()
    with client, SocketLink(sock, idle_s=60, deadline=0.0) as link:
        client.sendall(Frame(Opcode.BINARY, b"\x00abc").serialize(mask=True))
        with pytest.raises(StreamError, match="the client is too slow"):
            link.receive()
