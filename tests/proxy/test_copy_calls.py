"""Copies through a whole proxy; the container is a process with its own root directory."""

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

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import CopyError, FailedPrecondition, PycrictlError
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.service.transfer import LARGE_BYTES, REST_S
from pycrictl.copy.transfer.link import SocketLink
from pycrictl.copy.transfer.messages import CHANNEL_END, STATUS, TO_CONTAINER
from pycrictl.proxy.copy_calls import COPY_FROM, CopyCalls
from pycrictl.proxy.runtime_lookup import RuntimeLookup
from pycrictl.proxy.serve.stream_server import Tokens
from pycrictl.proxy.upstream import Answer, CallRequest, Upstream
from tests.copy.hostile import FILE, member
from tests.copy.trees import contents, listing, stages_in, times_in, tree
from tests.e2e.node.kubelet import RUNTIME
from tests.fakecri.server import FakeServer
from tests.processes import descriptors
from tests.proxy.copier import (
    ARCHIVE,
    CHANNELS,
    MIB,
    UPGRADE,
    Copier,
    Pretended,
    Start,
    asked,
    finish,
    outcome_of,
    refusal,
    spools,
    stream,
)
from tests.proxy.settings import settings_from
from tests.support.containers import ID
from tests.waiting import until, wait_until

pytestmark = pytest.mark.root


__all__ = ["tree"]


# Successful copies


def test_a_tree_both_ways(copier: Copier, container: Pretended, tree: Path, tmp_path: Path) -> None:
    there = copier.into(tree, "/to")
    assert listing(container.root / "to/tree", times=False) == listing(tree, times=False)
    back = copier.out("/to/tree", tmp_path / "back")
    assert listing(tmp_path / "back", times=False) == listing(tree, times=False)
    assert there == back
    assert (there.files, there.directories, there.links) == (4, 3, 1)
    assert stages_in(container.root) == []
    wait_until(lambda: copier.proxy.log().count(" copy ") == 2)
    lines = [line for line in copier.proxy.log().splitlines() if " copy " in line]
    assert [line.count("end=done") for line in lines] == [1, 1]
    assert f"container={ID} pod=pod1 path=/to size_bytes=" in lines[0]
    assert "/copy/" not in copier.proxy.log()  # URLs contain the token


def test_times_arrive_as_they_are(copier: Copier, container: Pretended) -> None:
    file = container.root / "to/f"
    file.touch()
    os.utime(file, ns=(0, 1_500_000_001))
    with copier.read(b"/to/f", Rules(), copier.watch) as archive:
        assert times_in(archive.pieces()) == [1_500_000_001]


# Large files at rest, which are read twice instead of spooled


def at_rest(path: Path) -> bytes:
    """Write a large file whose mtime is old enough; return its content."""
    data = os.urandom(LARGE_BYTES + 5)
    path.write_bytes(data)
    os.utime(path, (time.time() - REST_S - 1,) * 2)
    return data


def test_when_a_file_is_not_spooled(copier: Copier, container: Pretended, tmp_path: Path) -> None:
    big = container.root / "to/big"
    data = at_rest(big)
    messages = stream(copier.ask_from("/to/big").url)
    wait_until(lambda: [copy["state"] for copy in copier.copies] == ["copying"])
    assert spools(copier.proxy.pid) == []
    messages.abort()
    summary = copier.out("/to/big", tmp_path / "big")
    assert (summary.files, summary.size_bytes) == (1, len(data))
    assert (tmp_path / "big").read_bytes() == data

    # The proxy holds the open file, not its name.
    new = container.root / "to/new"
    new.write_text("new")
    copier.out("/to/big", tmp_path / "again", on_total=lambda _: new.rename(big))
    assert (tmp_path / "again").read_bytes() == data
    copier.wait_until_idle()
    wait_until(lambda: not any("/to/big" in name for name in descriptors(copier.proxy.pid)))

    for age_s, size in ((0, LARGE_BYTES), (REST_S + 1, LARGE_BYTES - 1)):
        big.write_bytes(bytes(size))
        os.utime(big, (time.time() - age_s,) * 2)
        url = copier.ask_from("/to/big").url
        assert len(spools(copier.proxy.pid)) == 1
        stream(url).abort()
        copier.wait_until_idle()


def test_changes_after_the_call(copier: Copier, container: Pretended, tmp_path: Path) -> None:
    big = container.root / "to/big"
    (tmp_path / "big").write_text("old")
    other = os.urandom(LARGE_BYTES + 5)
    for act, why in (
        (lambda _: big.write_bytes(other), "does not have the announced checksum"),
        (lambda _: os.truncate(big, LARGE_BYTES // 2), "the source changed while"),
        (lambda _: os.truncate(big, 2 * LARGE_BYTES), "the source changed while"),
        (lambda _: os.utime(big), "does not have the announced checksum"),
    ):
        at_rest(big)
        with pytest.raises(CopyError, match=why):
            copier.out("/to/big", tmp_path / "big", on_total=act)
        assert contents(tmp_path) == {"big": "old"}


@pytest.fixture
def disk() -> Iterator[Path]:
    """A file system of 4 MiB."""
    with tempfile.TemporaryDirectory(prefix="pct-") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
        yield Path(folder)
        subprocess.run(["umount", "--lazy", folder], check=True)


# Copies that end early


def check_exhausted(why: str, call: Callable[..., object], *words: object, **named: object) -> None:
    code, message = refusal(call, *words, **named)
    assert code == "RESOURCE_EXHAUSTED"
    assert re.search(why, message)


def test_client_that_breaks_off_before_the_answer(copier: Copier) -> None:
    """The copy frees its slot however early its client disconnects."""
    for _ in range(20):
        with asked(copier.ask_to(), *UPGRADE, CHANNELS) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: copier.proxy.log().count(" copy direction=to ") == 20)
    copier.wait_until_idle()


def test_a_client_that_goes_frees_everything(copier: Copier, container: Pretended) -> None:
    (container.root / "big").write_bytes(bytes(range(256)) * (32 * MIB // 256))
    for go in (SocketLink.close, SocketLink.abort):
        writing = stream(copier.ask_to("/to/new", 10 * MIB))
        writing.send(TO_CONTAINER, member(b"f", FILE, size=9 * MIB) + bytes(MIB))
        reading = stream(copier.ask_from("/big").url)
        assert reading.receive() is not None
        wait_until(lambda: [copy["state"] for copy in copier.copies] == ["copying"] * 2)
        go(writing)
        go(reading)
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
    if way == "terminate":
        copier.proxy.terminate()
        assert copier.proxy.wait() == 0
        assert copier.proxy.log().count("end=stopped") == 2
        assert stages_in(container.root) == []
    else:
        copier.proxy.kill9()
    for connection in (writing, reading):
        with pytest.raises((PycrictlError, AssertionError)):
            outcome_of(connection)
        connection.abort()
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
        for other in (connection, late):
            assert not finish(other).failure
            other.close()
    assert copier.proxy.wait() == 0
    assert contents(container.root / "to") == {"new": "content", "other": "content"}


def test_no_room_to_spool(container: Pretended, start: Start, disk: Path, tmp_path: Path) -> None:
    (container.root / "big").write_bytes(os.urandom(8 * MIB))
    (container.root / "small").write_text("1")
    copier = Copier(start("--spool-dir", str(disk)))
    with copier.client:
        check_exhausted("not enough space .*try again later", copier.ask_from, "/big")
        copier.wait_until_idle()
        copier.out("/small", tmp_path / "o")
        copier.wait_until_idle()
    assert (tmp_path / "o").read_text() == "1"


def test_what_nobody_goes_on_with_ends(
    fake: FakeServer, container: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots and spools are freed if a URL expires, a call is cancelled or the service stops."""
    (container.root / "f").write_text("1")
    (container.root / "big").write_bytes(bytes(64 * MIB))

    async def run() -> None:
        loop, ahead_s = asyncio.get_running_loop(), 0.0
        monkeypatch.setattr(loop, "time", lambda: time.monotonic() + ahead_s)
        lookup, tokens = RuntimeLookup(Upstream(fake.path)), Tokens()
        words = "--upstream", fake.endpoint, "--spool-dir", "/var/tmp"
        settings = settings_from(*words, "--container-copies-per-pod", "3")
        copies = CopyCalls(settings, lookup, tokens, str)
        copies.service.sweep_s = 0.05
        copies.service.start()

        async def ask(path: str) -> Answer:
            message = cri_pb2.CopyFromContainerRequest(container_id=ID, path=path)
            return await copies.handle(CallRequest(COPY_FROM, message.SerializeToString()))

        async def nothing_is_left() -> None:
            await until(lambda: not copies.service.current and not spools(os.getpid()))
            assert copies.snapshot() == []

        for _ in range(2):
            answers = [await ask("/f") for _ in range(4)]
            assert [answer.code for answer in answers] == [0, 0, 0, 8]
            assert len(spools(os.getpid())) == 3
            ahead_s += 60.0
            await nothing_is_left()
        url = cri_pb2.CopyFromContainerResponse.FromString(answers[0].response or b"").url
        assert tokens.redeem(url.removeprefix("http://"), now=loop.time()) is None

        asking = asyncio.create_task(ask("/big"))
        while not copies.service.current:  # noqa: ASYNC110 (during a pause the copy might be made)
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await nothing_is_left()

        assert (await ask("/f")).code == 0
        await copies.service.stop()
        await nothing_is_left()

    asyncio.run(run())


# Refused copies


def test_codes(copier: Copier, container: Pretended) -> None:
    """Status codes that tests/conformance does not cover."""
    for ask in (copier.ask_to, copier.ask_from):
        for path in ("", "/to/\0"):
            assert refusal(ask, path)[0] == "INVALID_ARGUMENT"
        assert refusal(ask, "/to", container="")[0] == "INVALID_ARGUMENT"
    os.mkfifo(container.root / "pipe")
    assert refusal(copier.ask_from, "/pipe")[0] == "FAILED_PRECONDITION"
    container.runtime_type = "io.containerd.kata.v2"
    assert refusal(copier.ask_to, "")[0] == "UNIMPLEMENTED"
    assert refusal(copier.ask_from, "/to")[0] == "UNIMPLEMENTED"
    container.state = cri_pb2.CONTAINER_EXITED
    with pytest.raises(FailedPrecondition, match="is not running"):
        copier.into("/etc/hostname", "/to")
    for name in ("CopyToContainer", "CopyFromContainer"):
        call: Callable[..., object] = copier.proxy.channel.unary_unary(RUNTIME + name)
        assert refusal(call, b"\xff\xff", timeout=5)[0] == "INVALID_ARGUMENT"


def test_quotas_are_exact(container: Pretended, start: Start) -> None:
    per_pod, too_large = "ContainerCopiesPerPod; try again", "ContainerCopySizeLimit; copy less"
    for name, count in (("exact", 20480), ("more", 20481)):
        (container.root / name).write_bytes(bytes(count))
        os.utime(container.root / name, (0, 0))  # a fractional mtime needs a pax header
    size = 512 + 20480 + 1024
    limits = ("--container-copy-size-limit", str(size), "--container-copies-per-pod", "2")
    copier = Copier(start(*limits))
    with copier.client:
        check_exhausted(too_large, copier.ask_from, "/more")
        for more in (size + 1, 2**64 - 1):
            check_exhausted(too_large, copier.ask_to, "/to", more)
        copier.wait_until_idle()

        first = stream(copier.ask_to("/to", size))
        assert copier.ask_from("/exact").size == size
        check_exhausted(per_pod, copier.ask_to)
        check_exhausted(per_pod, copier.ask_from, "/exact")
        # A call that only checks whether copies are supported needs no slot.
        assert refusal(copier.ask_to, "")[0] == "INVALID_ARGUMENT"
        copier.ask_to(container="d" * 64)
        assert [copy["pod"] for copy in copier.copies] == ["pod1", "pod1", "pod2"]
        assert len(spools(copier.proxy.pid)) == 1
        first.abort()
        wait_until(lambda: len(copier.copies) == 2)
        copier.ask_to()
        check_exhausted(per_pod, copier.ask_to)


BAD: tuple[tuple[list[tuple[int, bytes]], int, str], ...] = (
    ([(TO_CONTAINER, bytes(MIB))] * 17, 2**64 - 1, "data after the end of the archive"),
    ([(TO_CONTAINER, b"x" * 1024)], 1024, "not a tar archive"),
    ([], 0, "too early"),
    *(
        ([(channel, b"x")], 9, "channel that is not its own")
        for channel in (1, STATUS, 77, CHANNEL_END)
    ),
)


def test_a_bad_stream_changes_nothing(copier: Copier, container: Pretended) -> None:
    (container.root / "to/f").write_text("old")
    for messages, size, why in BAD:
        connection = stream(copier.ask_to("/to/f", size))
        for channel, data in (*messages, (CHANNEL_END, bytes((TO_CONTAINER,)))):
            if not connection.can_receive():  # otherwise the proxy has refused the rest
                connection.send(channel, data)
        assert why in outcome_of(connection).failure
        connection.close()
    copier.wait_until_idle()
    assert (container.root / "to/f").read_text() == "old"
    assert stages_in(container.root) == []
    wait_until(lambda: copier.proxy.log().count("end=failed") == len(BAD))


def test_a_url_works_once_and_only_as_a_websocket(copier: Copier, container: Pretended) -> None:
    (container.root / "f").write_text("1")
    url = copier.ask_from("/f").url
    fields: tuple[str, ...]
    for fields, early in (
        ((), b""),
        (UPGRADE, b""),
        ((*UPGRADE, CHANNELS.replace("v5", "v4")), b""),
        ((*UPGRADE, CHANNELS), b"\x88\x80abcd"),  # before the handshake is over
    ):
        with asked(url, *fields, early=early) as sock:
            assert sock.recv(100).startswith(b"HTTP/1.1 400 ")
    with pytest.raises(PycrictlError, match="404"):
        stream(url.replace("/copy/", "/progress/"))
    stream(url).close()


@pytest.mark.parametrize("copier", [("--container-copies-per-pod", "1")], indirect=True)
def test_a_slot_is_free_as_soon_as_the_outcome_is_known(copier: Copier, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("1")
    for number in range(20):
        connection = copier.send_archive(f"/to/{number}")
        assert finish(connection).failure == ""
        reading = stream(copier.ask_from(f"/to/{number}").url)
        connection.abort()
        assert outcome_of(reading).failure == ""
        copier.into(tmp_path / "f", "/to")
        reading.abort()
