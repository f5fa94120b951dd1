"""Copies through a whole proxy, with a pretended container: a process with a root of its own."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import struct
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.copy.rules.quotas import Quotas
from pycrictl.copy.transfer.messages import TO_CONTAINER
from pycrictl.errors import CopyError, PycrictlError
from pycrictl.proxy.calls import Answer, CallRequest
from pycrictl.proxy.copies.copy_service import CopyService
from pycrictl.proxy.copies.job import LARGE_BYTES, REST_S, CopyJob
from pycrictl.proxy.runtime_lookup import RuntimeLookup
from pycrictl.proxy.serve.tokens import Tokens
from pycrictl.proxy.upstream import Upstream
from pycrictl.servicelog import Log
from tests.copy.hostile import FILE, member
from tests.copy.test_on_node import ID
from tests.copy.trees import needs_root, stages_in
from tests.fakecri.server import FakeServer
from tests.processes import descriptors
from tests.proxy.copier import (
    ARCHIVE,
    MIB,
    Copier,
    Pretended,
    Start,
    finish,
    outcome_of,
    refusal,
    spools,
    stream,
)
from tests.waiting import until, wait_until

pytestmark = needs_root


def listing(top: Path) -> dict[str, object]:
    return {
        str(path.relative_to(top)): (
            path.readlink()
            if path.is_symlink()
            else (path.stat().st_mode, path.read_bytes() if path.is_file() else None)
        )
        for path in (top, *top.rglob("*"))
    }


def make_tree(top: Path) -> None:
    (top / "sub/empty").mkdir(parents=True)
    (top / "sub/f").write_bytes(os.urandom(3 * MIB + 5))
    (top / "sub/f").chmod(0o640)
    (top / "new\nline \udcff").write_text("odd")
    (top / "sub/hard").hardlink_to(top / "sub/f")
    (top / "link").symlink_to("sub/f")


# What is copied


def test_a_tree_both_ways(copier: Copier, container: Pretended, tmp_path: Path) -> None:
    make_tree(tmp_path / "tree")
    there = copier.into(tmp_path / "tree", "/to")
    assert listing(container.root / "to/tree") == listing(tmp_path / "tree")
    back = copier.out("/to/tree", tmp_path / "back")
    assert listing(tmp_path / "back") == listing(tmp_path / "tree")
    assert there == back
    assert (there.files, there.directories, there.links) == (3, 3, 1)
    assert stages_in(container.root) == []
    wait_until(lambda: copier.proxy.log().count(" copy ") == 2)
    lines = [line for line in copier.proxy.log().splitlines() if " copy " in line]
    assert [line.count("end=done") for line in lines] == [1, 1]
    assert f"container={ID} pod=pod1 path=/to size_bytes=" in lines[0]
    assert "/copy/" not in copier.proxy.log()  # where the token is


def test_large_files_take_little_memory(
    copier: Copier, container: Pretended, tmp_path: Path
) -> None:
    copier.into(tmp_path, "/to/warm")
    copier.out("/to/warm", tmp_path / "warm")
    before = copier.proxy.peak_bytes()
    with (tmp_path / "big").open("wb") as file:
        for _ in range(64):
            file.write(os.urandom(MIB))
        file.truncate(256 * MIB)  # the rest is a hole
    copier.into(tmp_path / "big", "/to/big")
    inside = (container.root / "to/big").stat()
    assert (inside.st_size, inside.st_blocks * 512 < 66 * MIB) == (256 * MIB, True)
    copier.out("/to/big", Path(container.root.parent, "back"))
    back = Path(container.root.parent, "back").stat()
    assert (back.st_size, back.st_blocks * 512 < 66 * MIB) == (256 * MIB, True)
    assert copier.proxy.peak_bytes() - before <= 16 * MIB


# Large files at rest, which are read twice instead of spooled


def at_rest(path: Path) -> bytes:
    """A large file that nobody has written to for a while; its content."""
    data = os.urandom(LARGE_BYTES + 5)
    path.write_bytes(data)
    os.utime(path, (time.time() - REST_S - 1,) * 2)
    return data


def test_only_a_large_file_at_rest_is_not_spooled(
    copier: Copier, container: Pretended, tmp_path: Path
) -> None:
    big = container.root / "to/big"
    data = at_rest(big)
    messages = stream(copier.ask_from("/to/big").url)
    wait_until(lambda: [copy["state"] for copy in copier.copies] == ["copying"])
    assert spools(copier.proxy.pid) == []
    messages.abort()
    summary = copier.out("/to/big", tmp_path / "big")
    assert (summary.files, summary.size_bytes) == (1, len(data))
    assert (tmp_path / "big").read_bytes() == data

    # What is held is the file, not its name.
    def replace(_: int) -> None:
        (container.root / "to/new").write_text("new")
        (container.root / "to/new").rename(big)

    copier.out("/to/big", tmp_path / "again", on_total=replace)
    assert (tmp_path / "again").read_bytes() == data
    copier.wait_until_idle()
    assert not [name for name in descriptors(copier.proxy.pid) if "/to/big" in name]

    for age_s, size in ((0, LARGE_BYTES), (REST_S + 1, LARGE_BYTES - 1)):
        big.write_bytes(bytes(size))
        os.utime(big, (time.time() - age_s,) * 2)
        url = copier.ask_from("/to/big").url
        assert len(spools(copier.proxy.pid)) == 1
        stream(url).abort()
        copier.wait_until_idle()


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(LARGE_BYTES // 2)
        file.write(b"something else")


CHANGES: tuple[tuple[Callable[[Path], None], str], ...] = (
    (overwrite, "another checksum than announced"),
    (lambda path: os.truncate(path, LARGE_BYTES // 2), "the source changed while"),
    (lambda path: os.truncate(path, 2 * LARGE_BYTES), "the source changed while"),
    (os.utime, "another checksum than announced"),
)


def test_a_change_between_the_call_and_the_stream_is_noticed(
    copier: Copier, container: Pretended, tmp_path: Path
) -> None:
    big = container.root / "to/big"
    (tmp_path / "big").write_text("old")
    before = listing(tmp_path)

    def copy(act: Callable[[Path], None]) -> None:
        copier.out("/to/big", tmp_path / "big", on_total=lambda _: act(big))

    for act, why in CHANGES:
        at_rest(big)
        with pytest.raises(CopyError, match=why):
            copy(act)
        assert listing(tmp_path) == before


@pytest.fixture
def disk() -> Iterator[Path]:
    """A file system of 4 MiB."""
    with tempfile.TemporaryDirectory(prefix="pct-") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
        yield Path(folder)
        subprocess.run(["umount", "--lazy", folder], check=True)


# What ends in the middle


def test_client_that_breaks_off_before_the_answer(copier: Copier) -> None:
    """The copy does not count any more, however early it was."""
    for _ in range(20):
        url = urlsplit(copier.ask_to())
        head = [
            *(f"GET {url.path} HTTP/1.1", f"Host: {url.netloc}"),
            *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
            "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==",
            "Sec-WebSocket-Protocol: v5.channel.k8s.io",
        ]
        assert url.port
        with socket.create_connection(("127.0.0.1", url.port)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.sendall("\r\n".join([*head, "", ""]).encode())
    wait_until(lambda: copier.proxy.log().count(" copy direction=to ") == 20)
    copier.wait_until_idle()


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "dropped"])
def test_a_client_that_goes_frees_everything(
    copier: Copier, container: Pretended, is_closed: bool
) -> None:
    (container.root / "big").write_bytes(bytes(range(256)) * (32 * MIB // 256))
    connection = stream(copier.ask_to("/to/new", 10 * MIB))
    connection.send(TO_CONTAINER, member(b"f", FILE, size=9 * MIB))
    connection.send(TO_CONTAINER, bytes(MIB))
    reading = stream(copier.ask_from("/big").url)
    assert reading.receive() is not None
    wait_until(lambda: [copy["state"] for copy in copier.copies] == ["copying"] * 2)
    for one in (connection, reading):
        if is_closed:
            one.close()
        else:
            one.abort()
    copier.wait_until_idle()
    assert list((container.root / "to").iterdir()) == []


@pytest.mark.parametrize("way", ["terminate", "kill9"])
def test_a_proxy_that_ends(container: Pretended, start: Start, way: str) -> None:
    (container.root / "to/d").mkdir()
    (container.root / "to/d/slow").write_text("old")
    (container.root / "big").write_bytes(bytes(64 * MIB))
    copier = Copier(start("--drain-timeout", "200ms"))
    reading = stream(copier.ask_from("/big").url)
    assert reading.receive() is not None
    writing = stream(copier.ask_to("/to", 2**40))
    head = member(b"d/", b"5", mode=0o755) + member(b"d/slow", FILE, size=2**39)
    writing.send(TO_CONTAINER, head + bytes(MIB))
    wait_until(lambda: len(copier.copies) == 2 and bool(stages_in(container.root)))
    begin = time.monotonic()
    if way == "terminate":
        copier.proxy.terminate()
        assert copier.proxy.wait() == 0
        assert copier.proxy.log().count("end=stopped") == 2
        assert stages_in(container.root) == []
    else:
        copier.proxy.kill9()
    assert time.monotonic() - begin < 20  # of the 30 s that calls are given
    with pytest.raises((PycrictlError, AssertionError)):
        outcome_of(writing)
    with pytest.raises((PycrictlError, AssertionError)):
        outcome_of(reading)
    writing.abort()
    reading.abort()
    copier.client.close()
    if way == "kill9":
        assert stages_in(container.root) != []
        copier.proxy.start()
    wait_until(lambda: stages_in(container.root) == [])
    assert (container.root / "to/d/slow").read_text() == "old"


def test_copies_may_finish_after_sigterm(container: Pretended, start: Start) -> None:
    copier = Copier(start())
    with copier.client:
        connection = copier.send_archive("/to/new")
        unopened = copier.ask_to("/to/other", len(ARCHIVE), zlib.crc32(ARCHIVE))
        wait_until(lambda: len(copier.copies) == 2)
        copier.proxy.terminate()
        wait_until(lambda: "stopping" in copier.proxy.log())
        late = stream(unopened)
        late.send(TO_CONTAINER, ARCHIVE)
        for one in (connection, late):
            assert not finish(one).failure
            one.close()
    assert copier.proxy.wait() == 0
    assert (container.root / "to/new").read_bytes() == b"content"
    assert (container.root / "to/other").read_bytes() == b"content"


def test_no_room_for_the_spool(
    container: Pretended, start: Start, disk: Path, tmp_path: Path
) -> None:
    (container.root / "big").write_bytes(os.urandom(8 * MIB))
    (container.root / "small").write_text("1")
    copier = Copier(start("--spool-dir", str(disk)))
    with copier.client:
        code, message = refusal(copier.ask_from, "/big")
        assert code == "RESOURCE_EXHAUSTED"
        assert re.search("not enough space .*try again later", message)
        copier.wait_until_idle()
        copier.out("/small", tmp_path / "o")
        assert (tmp_path / "o").read_text() == "1"
        copier.wait_until_idle()


# Without a whole proxy


class Direct:
    """The calls alone, with a clock that can be set forward."""

    def __init__(self, fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.quotas = Quotas(copies_per_pod=3)
        self.ahead_s = 0.0
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: time.monotonic() + self.ahead_s)
        self.copies = CopyService(
            RuntimeLookup(Upstream(fake.path)),
            self.quotas,
            runtime_path=fake.path,
            spool_folder="/var/tmp",
            tokens=Tokens[CopyJob](),
            url=lambda token: token,
            log=Log("pycrictl.proxy.test"),
        )

    async def ask_from(self, path: str) -> Answer:
        message = cri_pb2.CopyFromContainerRequest(container_id=ID, path=path)
        request = CallRequest("", message.SerializeToString())
        return await self.copies.handle_from(request)

    async def until_idle(self) -> None:
        await until(lambda: not self.quotas.taken)
        assert self.copies.snapshot() == []
        assert spools(os.getpid()) == []


def test_what_nobody_goes_on_with_ends(
    fake: FakeServer, container: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    """URLs that nobody opens expire, calls may be given up, and the service may stop."""
    (container.root / "f").write_text("1")
    (container.root / "big").write_bytes(bytes(64 * MIB))

    async def run() -> None:
        direct = Direct(fake, monkeypatch)
        for _ in range(2):
            answers = [await direct.ask_from("/f") for _ in range(4)]
            assert [answer.code for answer in answers] == [0, 0, 0, 8]
            assert len(spools(os.getpid())) == 3
            direct.ahead_s += 60.0
            await direct.until_idle()
        token = cri_pb2.CopyFromContainerResponse.FromString(answers[0].response or b"").url
        assert direct.copies.redeem(token) is None

        asking = asyncio.create_task(direct.ask_from("/big"))
        while not direct.quotas.taken:  # noqa: ASYNC110 (in a pause the copy might be made)
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await direct.until_idle()

        assert (await direct.ask_from("/f")).code == 0
        await direct.copies.stop()
        await direct.until_idle()

    asyncio.run(run())
