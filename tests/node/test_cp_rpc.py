"""``pycrictl cp --method rpc`` through the proxy, with containers of the real containerd."""

from __future__ import annotations

import os
import subprocess
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.copy.messages import OUTCOME, TO_CONTAINER
from pycrictl.copy.outcome import decode
from pycrictl.copy.over_rpc import OverRpc
from pycrictl.copy.policy import Rules
from pycrictl.copy.upgrade import open_stream
from pycrictl.cri.client import CriClient
from pycrictl.errors import PycrictlError
from pycrictl.proxy import admin
from pycrictl.wire.tar_writer import END_OF_ARCHIVE
from tests.copy.hostile import FILE, member
from tests.copy.racer import flipping
from tests.copy.test_on_node import ignore
from tests.proxy.program import Program

from .images import File
from .kubelet import RUNTIME
from .lab import MIB
from .test_copy_node import listing, make_tree, stages_in
from .test_cp import Cp, folder, start_container
from .test_proxy import wait_until

if TYPE_CHECKING:
    from .lab import Lab

__all__ = ["folder", "start_container"]

Start = Callable[..., Cp]


@pytest.fixture
def proxy(lab: Lab) -> Iterator[Program]:
    with Program(lab.folder, lab.node.endpoint) as proxy:
        yield proxy
    proxy.log_path.unlink(missing_ok=True)


@pytest.fixture
def start(proxy: Program, start_container: Start) -> Start:
    """Starts a container, to be copied from and to through the proxy."""

    def run(**settings: object) -> Cp:
        return replace(start_container("rpc", **settings), endpoint=proxy.endpoint)

    return run


def proxy_state(proxy: Program) -> list[str]:
    """What the copies under way are doing."""
    found = admin.ask(str(proxy.admin_path), "status", timeout_s=10)["copies"]
    return [copy["state"] for copy in found]


def copies(proxy: Program) -> int:
    return len(proxy_state(proxy))


def plain(top: Path) -> dict[str, object]:
    """A listing without times and the bits that are not kept."""
    found = listing(top)
    return {
        path: (oct(int(str(mode)) & 0o170777), content)
        for path, (mode, *_, content) in found.items()
    }


def test_trees_files_and_archives(start: Start, proxy: Program, folder: Path) -> None:
    cp = start()
    make_tree(folder / "tree")
    cp.ok(folder / "tree", "C:/root")
    assert plain(cp.root / "root/tree") == plain(folder / "tree")
    cp.ok("C:/root/tree", folder / "back")
    assert plain(folder / "back") == plain(folder / "tree")
    cp.ok("-a", "C:/root/tree", folder / "kept")
    assert listing(folder / "kept", ids=True) == listing(cp.root / "root/tree", ids=True)
    cp.ok(folder / "tree/nothing", "C:/root/n")
    assert (cp.root / "root/n").read_bytes() == b""
    cp.ok(folder / "tree/empty", "C:/root/e")
    assert list((cp.root / "root/e").iterdir()) == []

    code, archive, _ = cp("C:/root/tree", "-")
    assert code == 0
    (folder / "a.tar").write_bytes(archive)
    with tarfile.open(folder / "a.tar") as tar:
        assert len(tar.getnames()) == len(listing(folder / "tree"))
    cp.ok("-", "C:/tmp", stdin=archive)
    assert plain(cp.root / "tmp/tree") == plain(folder / "tree")
    assert "there is no directory" in cp.refused("-", "C:/none", stdin=archive)
    assert "not a tar archive" in cp.refused("-", "C:/tmp", stdin=b"x" * 1024)

    assert stages_in(folder, cp.root / "root", cp.root / "tmp") == []
    assert copies(proxy) == 0
    assert proxy.log().count("end=done") == 7


def test_a_container_with_one_static_binary(lab: Lab, start: Start, folder: Path) -> None:
    binary = Path("/bin/busybox")
    only = File("busybox-app", binary.stat().st_size, lambda: binary.open("rb"), mode=0o755)
    image = lab.layout.image("static:1", [lab.layout.layer([only])])
    cp = start(image=image, command=["/busybox-app", "sleep", "1000000"])
    make_tree(folder / "tree")
    cp.ok(folder / "tree", "C:/tree")
    cp.ok("C:/tree", folder / "back")
    assert plain(folder / "back") == plain(folder / "tree")
    cp.ok("C:/busybox-app", folder)
    assert (folder / "busybox-app").read_bytes() == binary.read_bytes()


def test_many_files_and_a_sparse_one(start: Start, proxy: Program, folder: Path) -> None:
    cp = start()
    for number in range(20):
        (folder / f"tree/{number}").mkdir(parents=True)
        for inner in range(100):
            (folder / f"tree/{number}/{inner}").write_bytes(b"%d" % number * 1365)
    size_bytes = 1024 * MIB
    with (folder / "tree/sparse").open("wb") as file:
        file.truncate(size_bytes)
        file.seek(size_bytes // 2 + 12345)
        file.write(b"an island")
    before = proxy.peak_bytes()
    cp.ok(folder / "tree", "C:/root")
    cp.ok("C:/root/tree", folder / "back")
    assert proxy.peak_bytes() - before < 32 * MIB  # for the names of the files too
    for top in (cp.root / "root/tree", folder / "back"):
        assert sum(len(names) for _, _, names in os.walk(top)) == 2_001
        assert (top / "17/99").read_bytes() == b"17" * 1365
        status = (top / "sparse").stat()
        assert (status.st_size, status.st_blocks * 512 < MIB) == (size_bytes, True)
        with (top / "sparse").open("rb") as file:
            file.seek(size_bytes // 2 + 12344)
            assert file.read(11) == b"\0an island\0"


def test_users_volumes_and_read_only_file_systems(start: Start, folder: Path) -> None:
    (folder / "volume").mkdir()
    (folder / "single").write_text("old")
    (folder / "f").write_text("1")
    mounts = [(folder / "volume", "/volume"), (folder / "single", "/etc/single")]
    cp = start(mounts=mounts, read_only=True, user=1234)
    assert "read-only file system" in cp.refused(folder / "f", "C:/f")
    cp.ok(folder / "f", "C:/volume/f")
    assert (folder / "volume/f").stat().st_uid == 1234
    assert "is mounted there" in cp.refused(folder / "f", "C:/etc/single")
    assert (folder / "single").read_text() == "old"
    assert "is on procfs" in cp.refused(folder / "f", "C:/proc/sys/kernel/core_pattern")
    assert "is on procfs" in cp.refused("C:/proc/1/environ", folder / "out")
    assert "never copied" in cp.refused("C:/dev/zero", folder / "out")


def test_what_the_call_cannot_carry_goes_another_way(start: Start, folder: Path) -> None:
    cp = start()
    (folder / "f").write_text("1")
    os.utime(folder / "f", (0, 0))
    assert "cannot be told to keep" in cp.refused("-a", folder / "f", "C:/f")
    assert not (cp.root / "f").exists()
    replace(cp, method="auto").ok("-a", folder / "f", "C:/f")
    assert (cp.root / "f").stat().st_mtime == 0
    assert "cannot be told to follow" in cp.refused("-L", "C:/f", folder / "out")


def test_a_client_that_is_killed(start: Start, proxy: Program, folder: Path) -> None:
    cp = start()
    (folder / "d").mkdir()
    for number in range(4):
        (folder / f"d/{number}").write_bytes(os.urandom(32 * MIB))
    (folder / "to").mkdir()
    cp.ok(folder / "d", "C:/root/d")
    for words in ((folder / "d", "C:/tmp"), ("C:/root/d", folder / "to")):
        for pause_s in (0.0, 0.05, 0.15):
            process = cp.start(*words)
            wait_until(lambda process=process: process.poll() is not None or copies(proxy))  # type: ignore[misc]
            time.sleep(pause_s)
            process.kill()
            process.communicate()
            wait_until(lambda: copies(proxy) == 0)
            for top in (cp.root / "tmp", folder / "to"):
                wait_until(lambda top=top: not stages_in(top))  # type: ignore[misc]
                # All of it or nothing.
                assert [len(list(one.iterdir())) for one in top.iterdir()] in ([], [4])
                subprocess.run(["rm", "-rf", str(top / "d")], check=True)


def test_a_container_that_stops(lab: Lab, start: Start, proxy: Program) -> None:
    cp = start()
    archive = member(b"f", FILE, b"content") + END_OF_ARCHIVE
    request = cri_pb2.CopyToContainerRequest(
        container_id=cp.id, path="/root/f", size=len(archive), checksum=zlib.crc32(archive)
    )
    call = proxy.kubelet.call
    answer = call(RUNTIME + "CopyToContainer", request, cri_pb2.CopyToContainerResponse)
    messages = open_stream(answer.url, timeout_s=5, idle_s=20)
    messages.send(TO_CONTAINER, archive)
    wait_until(lambda: proxy_state(proxy) == ["copying"])
    stop = cri_pb2.StopContainerRequest(container_id=cp.id, timeout=0)
    lab.node.kubelet.call(RUNTIME + "StopContainer", stop, cri_pb2.StopContainerResponse)
    messages.end_channel(TO_CONTAINER)
    piece = messages.receive()
    assert piece is not None
    assert piece.channel == OUTCOME
    assert "has stopped" in decode(bytes(piece.data)).failure
    messages.close()
    wait_until(lambda: copies(proxy) == 0)
    assert "is not running" in cp.refused("C:/root/f", "/nonexistent/f")


def test_no_escape_while_a_component_is_exchanged(start: Start, folder: Path) -> None:
    cp = start()
    (folder / "outside/sub").mkdir(parents=True)
    (folder / "local").mkdir()
    for path in ("outside/data", "outside/sub/data"):
        (folder / path).write_text("SECRET OF THE NODE")
    (folder / "data").write_text("from the user")
    (cp.root / "play/dir/sub").mkdir(parents=True)
    (cp.root / "play/dir/data").write_text("of the container")
    (cp.root / "play/dir/sub/data").write_text("of the container")
    (cp.root / "play/evil").symlink_to(folder / "outside")
    before = listing(folder / "outside")
    ended = {"done": 0, "failed": 0}
    with (
        CriClient(cp.endpoint.removeprefix("unix://"), timeout_s=10) as client,
        flipping(cp.root / "play", "dir", "evil"),
    ):
        rpc = OverRpc(client, cp.id)
        give_up_at, number = time.monotonic() + 3, 0
        while time.monotonic() < give_up_at:
            number += 1
            out = bytes(folder / f"local/{number}")
            for attempt in (
                partial(rpc.copy_to, bytes(folder / "data"), b"/play/dir/data"),
                partial(rpc.copy_to, bytes(folder / "data"), b"/play/dir/sub"),
                partial(rpc.copy_from, b"/play/dir/sub", out),
            ):
                try:
                    attempt(Rules(), on_bytes=ignore, on_skip=ignore)
                    ended["done"] += 1
                except PycrictlError:
                    ended["failed"] += 1
    assert listing(folder / "outside") == before
    stolen = [path for path in (folder / "local").rglob("data") if "SECRET" in path.read_text()]
    assert stolen == []
    assert min(ended.values()) > 3, ended
    assert stages_in(cp.root / "play") == []
