"""The proxy's socket and the link to it: permissions, leftovers, rivals and successors."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pycrictl.base.errors import UsageError
from pycrictl.proxy.serve.listen import MAX_PATH_BYTES, OwnSocket


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@contextmanager
def served(own: OwnSocket) -> Iterator[None]:
    """Listen on the socket and publish it while the block runs; then close it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(own.path))
        listener.listen(1000)
        own.publish()
        yield
    own.close()


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        OwnSocket(path)
    return caught.value.message


def test_it_is_for_its_owner_only_whatever_the_umask(folder: Path) -> None:
    previous = os.umask(0)
    try:
        own = OwnSocket(folder / "own" / "cri.sock")
    finally:
        os.umask(previous)
    with served(own):
        assert stat.S_IMODE(own.path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "own").stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "own" / "cri.sock.lock").stat().st_mode) == 0o600
        assert answers(own.link)
        # The link works wherever the directory is mounted.
        (folder / "own").rename(folder / "there")
        assert answers(folder / "there" / "cri.sock")
        (folder / "there").rename(folder / "own")
    assert [path.name for path in (folder / "own").iterdir()] == ["cri.sock.lock"]


def test_what_a_killed_program_left_is_removed(folder: Path) -> None:
    path = folder / "cri.sock"
    words = (
        "import os, sys, pathlib; from pycrictl.proxy.serve.listen import OwnSocket; "
        "own = OwnSocket(pathlib.Path(sys.argv[1])); own.publish(); os.kill(os.getpid(), 9)"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", words, str(path)], check=False, timeout=60)
    assert path.is_symlink()
    assert len(list(folder.glob("cri.sock.????????"))) == 1
    own = OwnSocket(path)
    with served(own):
        assert answers(path)
        assert list(folder.glob("cri.sock.????????")) == [own.folder]


def test_name_is_never_without_a_listener(folder: Path) -> None:
    """During a take-over, a client always reaches the old or the new process."""
    path = folder / "cri.sock"
    codes: set[int] = set()
    stop = threading.Event()

    def dial() -> None:
        while not stop.is_set():
            with socket.socket(socket.AF_UNIX) as client:
                client.setblocking(False)  # nobody accepts: the queue fills
                codes.add(client.connect_ex(str(path)))

    with ExitStack() as stack:
        first = OwnSocket(path)
        stack.enter_context(served(first))
        with ThreadPoolExecutor(1) as pool:
            pool.submit(dial)
            try:
                for _ in range(20):  # none ends before a client that has read the link connects
                    stack.enter_context(served(OwnSocket(path, [first.folder.name])))
                    first.publish()
            finally:
                stop.set()
    assert codes <= {0, errno.EAGAIN}


def test_only_its_heir_may_take_a_path(folder: Path) -> None:
    path = folder / "cri.sock"
    first = OwnSocket(path)
    with served(first):
        assert refusal(path) == f'another proxy listens on "{path}"'
        second = OwnSocket(path, [first.folder.name])
        assert refusal(path).startswith("another proxy listens on ")  # ``second`` is starting
        with served(second):
            first.close()
            assert answers(path)
            assert refusal(path).startswith("another proxy listens on ")
    assert not path.is_symlink()


@pytest.mark.parametrize("kind", ["file", "socket", "link", "link to a proxy's"])
def test_what_is_no_socket_of_ours_is_left_alone(folder: Path, kind: str) -> None:
    path = folder / "cri.sock"
    match kind:
        case "file":
            path.write_text("precious")
        case "socket":
            with socket.socket(socket.AF_UNIX) as other:
                other.bind(str(path))
        case "link":
            path.symlink_to("/nonexistent")
        case "link to a proxy's":
            path.symlink_to("other.sock.abcdefgh/sock")
    assert refusal(path) == f'"{path}" exists and is not a socket of a proxy'
    assert path.is_symlink() or path.exists()


def test_lock_that_is_a_link_is_refused(folder: Path) -> None:
    (folder / "victim").write_text("")
    (folder / "cri.sock.lock").symlink_to(folder / "victim")
    assert "cannot listen" in refusal(folder / "cri.sock")


def test_directory_of_others_is_refused(folder: Path) -> None:
    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert refusal(shared / "cri.sock") == f'the directory "{shared}" is writable by other users'
    shared.chmod(0o1777)
    OwnSocket(shared / "cri.sock").close()


def test_replaced_link_is_not_removed(folder: Path) -> None:
    own = OwnSocket(folder / "cri.sock")
    own.publish()
    own.link.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(own.link))
        other.listen()
        own.close()
        assert answers(own.link)


@pytest.mark.parametrize("length", [MAX_PATH_BYTES, MAX_PATH_BYTES + 1])
def test_length_of_the_path(folder: Path, length: int) -> None:
    path = folder / "d" / ("x" * (length - len(str(folder)) - 3))
    assert len(str(path)) == length
    if length <= MAX_PATH_BYTES:
        with served(OwnSocket(path)):
            assert answers(path)
    else:
        assert f"at most {MAX_PATH_BYTES} bytes" in refusal(path)
        assert "absolute path" in refusal(Path("cri.sock"))
