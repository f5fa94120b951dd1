"""Copies through a whole proxy, with a pretended container: a process with a root of its own."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.copy.messages import CHANNEL_END, OUTCOME, TO_CONTAINER, Messages
from pycrictl.copy.method import Watch
from pycrictl.copy.outcome import Outcome, decode
from pycrictl.copy.over_rpc import OverRpc
from pycrictl.copy.policy import Rules, Skipped
from pycrictl.copy.upgrade import open_stream
from pycrictl.cri.client import CriClient
from pycrictl.errors import CopyError, FailedPrecondition, PycrictlError
from pycrictl.proxy import admin
from pycrictl.proxy.calls import Answer, Request
from pycrictl.proxy.copies import Copies
from pycrictl.proxy.copy_content import LARGE_BYTES, REST_S
from pycrictl.proxy.copy_job import CopyJob
from pycrictl.proxy.forward import Peer
from pycrictl.proxy.log import Log
from pycrictl.proxy.lookup import Lookup
from pycrictl.proxy.quotas import Quotas
from pycrictl.proxy.tokens import Tokens
from pycrictl.proxy.upstream import Upstream
from pycrictl.wire.tar_writer import END_OF_ARCHIVE
from tests.copy.hostile import FILE, member
from tests.copy.test_on_node import ID, ignore, needs_root, stop
from tests.copy.test_on_node import start as start_container
from tests.fakecri.server import FakeServer
from tests.node.kubelet import RUNTIME
from tests.node.soak import descriptors
from tests.proxy.program import Program
from tests.proxy.test_endpoints import until
from tests.proxy.test_pulls import wait_until

pytestmark = needs_root

Start = Callable[..., Program]
MIB = 1 << 20
ARCHIVE = member(b"f", FILE, b"content") + END_OF_ARCHIVE


class Pretended:
    """What the fake runtime says of the container.

    Attributes:
        root: its root directory.
        state: of the container.
        runtime_type: how containerd calls what runs it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = cri_pb2.CONTAINER_RUNNING
        self.runtime_type = "io.containerd.runc.v2"
        self.pods = {ID: "pod1", "d" * 64: "pod2"}
        self._process = start_container(root)

    def stop(self) -> None:
        stop(self._process)

    def containers(self, request: Any, context: Any) -> cri_pb2.ListContainersResponse:
        found = [
            cri_pb2.Container(id=one, pod_sandbox_id=pod, state=self.state)
            for one, pod in self.pods.items()
            if one.startswith(request.filter.id)
        ]
        return cri_pb2.ListContainersResponse(containers=found)

    def status(self, request: Any, context: Any) -> cri_pb2.ContainerStatusResponse:
        info = {"pid": self._process.pid, "runtimeType": self.runtime_type}
        status = cri_pb2.ContainerStatus(id=request.container_id, state=self.state, started_at=1)
        return cri_pb2.ContainerStatusResponse(status=status, info={"info": json.dumps(info)})


@contextmanager
def pretended(fake: FakeServer, root: Path) -> Iterator[Pretended]:
    (root / "to").mkdir(parents=True)
    container = Pretended(root)
    fake.offer("ListContainers", container.containers)
    fake.offer("ContainerStatus", container.status)
    try:
        yield container
    finally:
        container.stop()


@pytest.fixture
def container(fake: FakeServer) -> Iterator[Pretended]:
    # Not in pytest's folder, which may be in memory.
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pct-") as folder,
        pretended(fake, Path(folder, "root")) as container,
    ):
        yield container


@pytest.fixture
def disk() -> Iterator[Path]:
    """A file system of 4 MiB."""
    with tempfile.TemporaryDirectory(prefix="pct-") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
        yield Path(folder)
        subprocess.run(["umount", "--lazy", folder], check=True)


class Copier:
    """A client of the proxy."""

    def __init__(self, proxy: Program) -> None:
        self.proxy = proxy
        self.client = CriClient(str(proxy.socket_path), timeout_s=10)
        self.skipped: list[Skipped] = []
        self._rpc = OverRpc(self.client, ID)
        self.watch = Watch(ignore, self.skipped.append)

    def out(self, path: str, local: Path, on_total: Callable[[int], None] | None = None) -> Any:
        """Copy out of the container; ``on_total`` is called between the call and the stream."""
        watch = Watch(ignore, self.skipped.append, on_total)
        return self._rpc.copy_from(path.encode(), os.fsencode(local), Rules(), watch)

    def into(self, local: Path | str, path: str) -> Any:
        return self._rpc.copy_to(os.fsencode(local), path.encode(), Rules(), self.watch)

    def ask_to(
        self, path: str = "/to", size: int = 1024, checksum: int = 0, container: str = ID
    ) -> str:
        """The URL of a copy into the container."""
        request = cri_pb2.CopyToContainerRequest(
            container_id=container, path=path, size=size, checksum=checksum
        )
        response = cri_pb2.CopyToContainerResponse
        return self.proxy.kubelet.call(RUNTIME + "CopyToContainer", request, response).url

    def ask_from(self, path: str, container: str = ID) -> cri_pb2.CopyFromContainerResponse:
        request = cri_pb2.CopyFromContainerRequest(container_id=container, path=path)
        response = cri_pb2.CopyFromContainerResponse
        return self.proxy.kubelet.call(RUNTIME + "CopyFromContainer", request, response)

    @property
    def copies(self) -> list[dict[str, Any]]:
        """What the proxy says is under way."""
        path = str(self.proxy.admin_path)
        return list(admin.ask(path, "status", timeout_s=10)["copies"])

    def wait_until_idle(self) -> None:
        """Nothing is left of any copy: no slot, no spool, no stage."""
        wait_until(lambda: self.copies == [])
        assert spools(self.proxy.pid) == []


def spools(pid: int) -> list[str]:
    """Files without a name that a process holds on disks."""
    return [
        name
        for name in descriptors(pid)
        if name.startswith("/var/tmp/") and name.endswith("(deleted)")
    ]


def stages(container: Pretended) -> list[Path]:
    return list(container.root.rglob(".pycrictl-*"))


def refusal(call: Callable[..., object], *arguments: object, **named: object) -> tuple[str, str]:
    """Code and message of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **named)
    error: Any = caught.value
    return error.code().name, error.details()


def stream(url: str) -> Messages:
    return open_stream(url, timeout_s=5, idle_s=5)


def outcome_of(messages: Messages) -> Outcome:
    while piece := messages.receive():
        if piece.channel == OUTCOME:
            return decode(bytes(piece.data))
    raise AssertionError("no outcome")


@pytest.fixture
def copier(container: Pretended, start: Start) -> Iterator[Copier]:
    copier = Copier(start())
    with copier.client:
        yield copier
        copier.wait_until_idle()


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
    assert stages(container) == []
    copier.wait_until_idle()
    lines = [line for line in copier.proxy.log().splitlines() if " copy " in line]
    assert [line.count("end=done") for line in lines] == [1, 1]
    assert f"container={ID} pod=pod1 path=/to bytes=" in lines[0]
    assert "/copy/" not in copier.proxy.log()  # where the token is


def test_every_row_of_the_rules_of_the_destination(
    copier: Copier, container: Pretended, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("1")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/g").write_text("2")
    top = container.root / "to"

    copier.into(tmp_path / "f", "/to/new")
    assert (top / "new").read_text() == "1"
    for wrong in ("/to/none/", "/none/f"):
        with pytest.raises(CopyError, match="there is no directory"):
            copier.into(tmp_path / "f", wrong)
    (tmp_path / "f").write_text("11")
    copier.into(tmp_path / "f", "/to/new")
    assert (top / "new").read_text() == "11"
    copier.into(tmp_path / "f", "/to")
    assert (top / "f").read_text() == "11"
    copier.into(tmp_path / "d", "/to/dir")
    assert (top / "dir/g").read_text() == "2"
    with pytest.raises(CopyError, match="cannot copy a directory over the file"):
        copier.into(tmp_path / "d", "/to/f")
    copier.into(tmp_path / "d", "/to/dir/.")
    assert (top / "dir/d/g").read_text() == "2"
    copier.into(f"{tmp_path}/d/.", "/to")
    assert (top / "g").read_text() == "2"

    copier.out("/to/new", tmp_path / "o")
    assert (tmp_path / "o").read_text() == "11"
    with pytest.raises(CopyError, match="there is no directory"):
        copier.out("/to/new", Path(f"{tmp_path}/none/o"))
    copier.out("/to/f", tmp_path / "o")
    copier.out("/to/f", tmp_path / "d")
    assert (tmp_path / "d/f").read_text() == "11"
    copier.out("/to/dir", tmp_path / "made")
    assert (tmp_path / "made/d/g").read_text() == "2"
    with pytest.raises(CopyError, match="cannot copy a directory over the file"):
        copier.out("/to/dir", tmp_path / "f")
    copier.out("/to/dir", tmp_path / "d")
    assert (tmp_path / "d/dir/g").read_text() == "2"
    copier.out("/to/dir/.", tmp_path / "d")
    assert (tmp_path / "d/d/g").read_text() == "2"


def test_archives(copier: Copier, container: Pretended, tmp_path: Path) -> None:
    archive = member(b"a", FILE, b"1") + member(b"b/c", FILE, b"2") + END_OF_ARCHIVE
    (tmp_path / "a.tar").write_bytes(archive)
    rpc = OverRpc(copier.client, ID)

    def unpack(path: bytes) -> None:
        with (tmp_path / "a.tar").open("rb") as file:
            rpc.unpack_to(file.fileno(), path, Rules(), copier.watch)

    unpack(b"/to")
    assert (container.root / "to/b/c").read_text() == "2"
    unpack(b"/")
    assert (container.root / "a").read_text() == "1"
    for path in (b"/none", b"/to/a"):
        with pytest.raises(CopyError):
            unpack(path)
    pieces = rpc.pack_from(b"/to/b", copier.watch)
    (tmp_path / "b.tar").write_bytes(b"".join(map(bytes, pieces)))
    assert subprocess.check_output(["tar", "tf", tmp_path / "b.tar"]) == b"b/\nb/c\n"


def test_what_is_left_out_is_told(copier: Copier, container: Pretended, tmp_path: Path) -> None:
    os.mkfifo(container.root / "to/pipe")
    assert copier.out("/to", tmp_path / "o").skipped == 1
    (tmp_path / "d").mkdir()
    (tmp_path / "d/out").symlink_to("/etc")
    summary = copier.into(tmp_path / "d", "/to")
    assert (summary.links, summary.skipped) == (0, 1)
    assert [(one.path, one.rule) for one in copier.skipped] == [
        (b"to/pipe", "special"),
        (b"d/out", "outward-link"),
    ]
    wait_until(lambda: copier.proxy.log().count("skipped=1") == 2)


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
    rest(path)
    return data


def rest(path: Path) -> None:
    then = time.time() - REST_S - 1
    os.utime(path, (then, then))


def test_a_large_file_at_rest_is_not_spooled(
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


def test_what_is_young_small_or_no_file_is_spooled(copier: Copier, container: Pretended) -> None:
    big = container.root / "to/big"

    def check(path: str) -> None:
        url = copier.ask_from(path).url
        assert len(spools(copier.proxy.pid)) == 1
        stream(url).abort()
        copier.wait_until_idle()

    at_rest(big)
    check("/to")
    os.utime(big)
    check("/to/big")
    os.truncate(big, LARGE_BYTES - 1)
    rest(big)
    check("/to/big")


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


# What is refused


def test_codes(copier: Copier, container: Pretended) -> None:
    for ask in (copier.ask_to, copier.ask_from):
        for path in ("", "to", "/to/../to", "/to/\0"):
            assert refusal(ask, path)[0] == "INVALID_ARGUMENT"
        assert refusal(ask, "/to", container="")[0] == "INVALID_ARGUMENT"
        assert refusal(ask, "/to", container="e" * 64)[0] == "NOT_FOUND"
    assert refusal(copier.ask_from, "/none")[0] == "NOT_FOUND"
    assert refusal(copier.ask_from, "/dev")[0] == "NOT_FOUND"
    os.mkfifo(container.root / "pipe")
    assert refusal(copier.ask_from, "/pipe")[0] == "FAILED_PRECONDITION"
    container.runtime_type = "io.containerd.kata.v2"
    assert refusal(copier.ask_to, "")[0] == "UNIMPLEMENTED"
    assert refusal(copier.ask_from, "/to")[0] == "UNIMPLEMENTED"
    container.state = cri_pb2.CONTAINER_EXITED
    for ask in (copier.ask_to, copier.ask_from):
        code, message = refusal(ask, "/to")
        assert code == "FAILED_PRECONDITION"
        assert message.startswith(f'pycrictl proxy: container "{ID}" is not running')
    with pytest.raises(FailedPrecondition, match="is not running"):
        copier.into("/etc/hostname", "/to")


def test_a_request_that_cannot_be_read(copier: Copier) -> None:
    for name in ("CopyToContainer", "CopyFromContainer"):
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = copier.proxy.channel.unary_unary(
            RUNTIME + name
        )
        assert refusal(call, b"\xff\xff", timeout=5)[0] == "INVALID_ARGUMENT"


def test_the_size_limit_is_exact(container: Pretended, start: Start, tmp_path: Path) -> None:
    (container.root / "to/exact").write_bytes(bytes(2048))
    (container.root / "to/more").write_bytes(bytes(2049))
    for name in ("exact", "more"):
        os.utime(container.root / "to" / name, (0, 0))  # else the time needs a header of its own
    size = 512 + 2048 + 1024
    copier = Copier(start("--container-copy-size-limit", str(size)))
    with copier.client:
        assert copier.ask_from("/to/exact").size == size
        code, message = refusal(copier.ask_from, "/to/more")
        assert code == "RESOURCE_EXHAUSTED"
        assert "ContainerCopySizeLimit" in message
        assert "try again later" in message
        stream(copier.ask_to(size=size)).close()
        for more in (size + 1, 2**64 - 1):
            assert refusal(copier.ask_to, size=more) == (code, message)
        # Only the one that nobody has opened.
        wait_until(lambda: [copy["direction"] for copy in copier.copies] == ["from"])
        assert len(spools(copier.proxy.pid)) == 1


def test_copies_of_a_pod_are_exact(container: Pretended, start: Start) -> None:
    (container.root / "f").write_text("1")
    copier = Copier(start("--container-copies-per-pod", "2"))
    other = "d" * 64
    with copier.client:
        first = stream(copier.ask_to())
        copier.ask_from("/f")
        code, message = refusal(copier.ask_to)
        assert code == "RESOURCE_EXHAUSTED"
        assert "ContainerCopiesPerPod" in message
        assert "try again later" in message
        assert refusal(copier.ask_from, "/f")[0] == code
        # Asking whether a copy is possible takes none.
        assert refusal(copier.ask_to, "")[0] == "INVALID_ARGUMENT"
        copier.ask_to(container=other)
        assert [copy["pod"] for copy in copier.copies] == ["pod1", "pod1", "pod2"]
        first.abort()
        wait_until(lambda: len(copier.copies) == 2)
        copier.ask_to()
        assert refusal(copier.ask_to)[0] == code


def send(messages: Messages, data: bytes) -> Outcome:
    """Send all of it, or as much as the proxy takes before it says why it takes no more."""
    for start in range(0, len(data), MIB):
        messages.send(TO_CONTAINER, data[start : start + MIB])
        if piece := messages.receive_waiting():
            return decode(bytes(piece.data))
    messages.end_channel(TO_CONTAINER)
    return outcome_of(messages)


BAD = (
    (ARCHIVE[:-512], len(ARCHIVE), None, "bytes arrived, and"),
    (ARCHIVE + bytes(512), len(ARCHIVE), None, "more than the"),
    (ARCHIVE, len(ARCHIVE), 1, "another checksum"),
    (ARCHIVE.replace(b"content", b"CONTENT"), len(ARCHIVE), None, "another checksum"),
    (ARCHIVE[:-1024], len(ARCHIVE) - 1024, zlib.crc32(ARCHIVE[:-1024]), "too early"),
    (bytes(17 * MIB), 2**64 - 1, None, "follows the end of the archive"),
    (b"x" * 1024, 1024, None, "not a tar archive"),
    (member(b"../f", FILE, b"x") + END_OF_ARCHIVE, 2560, None, "holds"),
    (b"", 0, 0, "too early"),
)


def test_a_bad_stream_changes_nothing(copier: Copier, container: Pretended) -> None:
    (container.root / "to/f").write_text("old")
    for data, size, checksum, why in BAD:
        checksum = zlib.crc32(ARCHIVE) if checksum is None else checksum
        messages = stream(copier.ask_to("/to/f", size, checksum))
        assert why in send(messages, data).failure
        messages.close()
        copier.wait_until_idle()
        assert (container.root / "to/f").read_text() == "old"
        assert stages(container) == []
    assert copier.proxy.log().count("end=failed") == len(BAD)


def test_a_good_stream_changes_it(copier: Copier, container: Pretended) -> None:
    (container.root / "to/f").write_text("old")
    messages = stream(copier.ask_to("/to/f", len(ARCHIVE), zlib.crc32(ARCHIVE)))
    outcome = send(messages, ARCHIVE)
    assert outcome.failure == ""
    assert outcome.copied is not None
    assert outcome.copied.files == 1
    assert messages.receive() is None  # closed in good order
    messages.close()
    assert (container.root / "to/f").read_text() == "content"


def test_other_channels_are_not_the_clients(copier: Copier, container: Pretended) -> None:
    for channel in (1, OUTCOME, 77, CHANNEL_END):
        messages = stream(copier.ask_to("/to/f"))
        messages.send(channel, b"x")
        assert "channel that is not its own" in outcome_of(messages).failure
        messages.close()


def test_a_url_works_once_and_only_as_a_websocket(copier: Copier, container: Pretended) -> None:
    (container.root / "f").write_text("1")
    upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
    upgrade.append("Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==")
    protocol = "Sec-WebSocket-Protocol: v5.channel.k8s.io"
    for fields, early in (
        ([], b""),
        (upgrade, b""),
        ([*upgrade, protocol.replace("v5", "v4")], b""),
        ([*upgrade, protocol], b"\x88\x80abcd"),  # before the handshake is over
    ):
        url = copier.ask_from("/f").url
        address, _, path = url.removeprefix("http://").partition("/")
        head = "\r\n".join([f"GET /{path} HTTP/1.1", f"Host: {address}", *fields, "", ""])
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 5) as sock:
            sock.sendall(head.encode() + early)
            assert sock.recv(100).startswith(b"HTTP/1.1 400 ")
        with pytest.raises(PycrictlError, match="404"):
            stream(url)
    with pytest.raises(PycrictlError, match="404"):
        stream(url.replace("/copy/", "/progress/"))
    copier.wait_until_idle()
    messages = stream(copier.ask_from("/f").url)
    assert outcome_of(messages).failure == ""
    messages.close()


def test_a_slot_is_free_as_soon_as_the_outcome_is_known(
    container: Pretended, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("1")
    copier = Copier(start("--container-copies-per-pod", "1"))
    with copier.client:
        for number in range(20):
            messages = stream(copier.ask_to(f"/to/{number}", len(ARCHIVE), zlib.crc32(ARCHIVE)))
            assert send(messages, ARCHIVE).failure == ""
            reading = stream(copier.ask_from(f"/to/{number}").url)
            messages.abort()
            assert outcome_of(reading).failure == ""
            copier.into(tmp_path / "f", "/to")
            reading.abort()
        copier.wait_until_idle()


# What ends in the middle


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "dropped"])
def test_a_client_that_goes_frees_everything(
    copier: Copier, container: Pretended, is_closed: bool
) -> None:
    (container.root / "big").write_bytes(bytes(range(256)) * (32 * MIB // 256))
    messages = stream(copier.ask_to("/to/new", 10 * MIB))
    messages.send(TO_CONTAINER, member(b"f", FILE, size=9 * MIB))
    messages.send(TO_CONTAINER, bytes(MIB))
    reading = stream(copier.ask_from("/big").url)
    assert reading.receive() is not None
    wait_until(lambda: [copy["state"] for copy in copier.copies] == ["copying"] * 2)
    for one in (messages, reading):
        if is_closed:
            one.close()
        else:
            one.abort()
    copier.wait_until_idle()
    assert list((container.root / "to").iterdir()) == []


def test_a_container_that_stops(copier: Copier, container: Pretended, tmp_path: Path) -> None:
    messages = stream(copier.ask_to("/to/new", len(ARCHIVE), zlib.crc32(ARCHIVE)))
    messages.send(TO_CONTAINER, ARCHIVE)
    wait_until(lambda: copier.copies[0]["state"] == "copying")
    container.stop()
    messages.end_channel(TO_CONTAINER)
    assert "has stopped" in outcome_of(messages).failure
    messages.close()
    assert list((container.root / "to").iterdir()) == []


@pytest.mark.parametrize("way", ["terminate", "kill9"])
def test_a_proxy_that_ends(container: Pretended, start: Start, way: str) -> None:
    (container.root / "to/d").mkdir()
    (container.root / "to/d/slow").write_text("old")
    (container.root / "big").write_bytes(bytes(64 * MIB))
    copier = Copier(start())
    reading = stream(copier.ask_from("/big").url)
    assert reading.receive() is not None
    writing = stream(copier.ask_to("/to", 2**40))
    head = member(b"d/", b"5", mode=0o755) + member(b"d/slow", FILE, size=2**39)
    writing.send(TO_CONTAINER, head + bytes(MIB))
    wait_until(lambda: len(copier.copies) == 2 and bool(stages(container)))
    begin = time.monotonic()
    if way == "terminate":
        copier.proxy.terminate()
        assert copier.proxy.wait() == 0
        assert copier.proxy.log().count("end=stopped") == 2
        assert stages(container) == []
    else:
        copier.proxy.kill9()
    assert time.monotonic() - begin < 8
    with pytest.raises((PycrictlError, AssertionError)):
        outcome_of(writing)
    with pytest.raises((PycrictlError, AssertionError)):
        outcome_of(reading)
    writing.abort()
    reading.abort()
    copier.client.close()
    wait_until(lambda: stages(container) == [])
    assert (container.root / "to/d/slow").read_text() == "old"


def test_no_room_for_the_spool(
    container: Pretended, start: Start, disk: Path, tmp_path: Path
) -> None:
    (container.root / "big").write_bytes(os.urandom(8 * MIB))
    (container.root / "small").write_text("1")
    copier = Copier(start("--spool-dir", str(disk)))
    with copier.client:
        for _ in range(2):
            code, message = refusal(copier.ask_from, "/big")
            assert code == "RESOURCE_EXHAUSTED"
            assert "not enough space" in message
            assert "try again later" in message
            copier.wait_until_idle()
        copier.out("/small", tmp_path / "o")
        assert (tmp_path / "o").read_text() == "1"
        copier.wait_until_idle()


def test_no_place_for_the_spool(container: Pretended, start: Start) -> None:
    (container.root / "f").write_text("1")
    copier = Copier(start("--spool-dir", "/nonexistent"))
    with copier.client:
        assert "cannot spool in" in refusal(copier.ask_from, "/f")[1]
        copier.wait_until_idle()


def test_no_room_in_the_container(
    fake: FakeServer, start: Start, disk: Path, tmp_path: Path
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/small").write_text("1")
    (tmp_path / "d/big").write_bytes(os.urandom(8 * MIB))
    with pretended(fake, disk / "root") as container:
        copier = Copier(start())
        with copier.client:
            for source in (tmp_path / "d", tmp_path / "d/big"):
                with pytest.raises(CopyError, match="no space left on device"):
                    copier.into(source, "/to")
                copier.wait_until_idle()
                assert list((container.root / "to").iterdir()) == []
            copier.into(tmp_path / "d/small", "/to")


# Without a whole proxy


class Direct:
    """The calls alone, with URLs that expire soon."""

    def __init__(self, fake: FakeServer, lifetime_s: float) -> None:
        self.quotas = Quotas(copies_per_pod=3)
        self.urls: list[str] = []
        self.copies = Copies(
            Lookup(Upstream(fake.path)),
            self.quotas,
            runtime_path=fake.path,
            spool_folder="/var/tmp",
            tokens=Tokens[CopyJob](lifetime_s=lifetime_s),
            url=lambda token: token,
            log=Log("pycrictl.proxy.test"),
            lifetime_s=lifetime_s,
        )

    async def ask_from(self, path: str) -> Answer:
        message = cri_pb2.CopyFromContainerRequest(container_id=ID, path=path)
        request = Request("", message.SerializeToString())
        return await self.copies.handle_from(request, Peer(1, 0))

    async def until_idle(self) -> None:
        await until(lambda: not self.quotas.taken)
        assert self.copies.snapshot() == []


def test_urls_that_nobody_opens_expire(fake: FakeServer, container: Pretended) -> None:
    (container.root / "f").write_text("1")

    async def run() -> None:
        direct = Direct(fake, 0.3)
        for _ in range(2):
            answers = [await direct.ask_from("/f") for _ in range(4)]
            assert [answer.code for answer in answers] == [0, 0, 0, 8]
            assert len(spools(os.getpid())) == 3
            await direct.until_idle()
            assert spools(os.getpid()) == []
        token = cri_pb2.CopyFromContainerResponse.FromString(answers[0].response or b"").url
        assert direct.copies.redeem(token) is None

    asyncio.run(run())


def test_a_call_that_is_given_up_leaves_nothing(fake: FakeServer, container: Pretended) -> None:
    (container.root / "big").write_bytes(bytes(64 * MIB))

    async def run() -> None:
        direct = Direct(fake, 60.0)
        asking = asyncio.create_task(direct.ask_from("/big"))
        await until(lambda: direct.quotas.taken > 0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await direct.until_idle()
        assert spools(os.getpid()) == []

    asyncio.run(run())


def test_stopping_ends_what_waits(fake: FakeServer, container: Pretended) -> None:
    (container.root / "f").write_text("1")

    async def run() -> None:
        direct = Direct(fake, 60.0)
        assert (await direct.ask_from("/f")).code == 0
        await direct.copies.stop()
        await direct.until_idle()
        assert spools(os.getpid()) == []

    asyncio.run(run())
