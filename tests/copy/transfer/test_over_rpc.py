"""The method rpc with honest servers, and what its calls cannot do."""

from __future__ import annotations

import io
import os
import signal
import tarfile
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import grpc
import pytest
from websockets.sync.server import ServerConnection

from pycrictl._proto import cri_pb2
from pycrictl.copy import ends
from pycrictl.copy.rules import outcome
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.rules.spec import SourceKind, address
from pycrictl.copy.transfer.messages import CHANNEL_END
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import CopyError, StreamError, Unimplemented
from pycrictl.streaming.target import TlsFiles
from tests.copy.transfer.conftest import (
    FAILURE,
    HONEST,
    MIB,
    Copier,
    CopyServer,
    copy_server,
    messages,
    offer,
    sending,
)
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


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/to/.", "/to/"),
        ("/to/./", "/to/"),
        ("/to/./.", "/to/"),
        ("/to//.//", "/to/"),
        ("/.", "/"),
        ("/to/", "/to/"),
        ("/to", "/to"),
        ("/", "/"),
        ("/to/a.", "/to/a."),
    ],
)
def test_a_directory_is_not_asked_for_as_if_for_an_archive(path: str, asked: str) -> None:
    assert address(path.encode(), SourceKind.DIRECTORY) == asked.encode()


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
