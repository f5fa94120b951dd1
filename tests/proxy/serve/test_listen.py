"""The proxy's socket: permissions, stale files, rivals, and heirs."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pycrictl.errors import UsageError
from pycrictl.proxy.serve.listen import MAX_PATH_BYTES, Inherited, UnixListener


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        UnixListener(path)
    return caught.value.message


def test_socket_is_for_its_owner_only_whatever_the_umask(folder: Path) -> None:
    previous = os.umask(0)
    try:
        listener = UnixListener(folder / "own" / "cri.sock")
    finally:
        os.umask(previous)
    try:
        assert stat.S_IMODE(listener.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(listener.path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "own" / "cri.sock.lock").stat().st_mode) == 0o600
        assert answers(listener.path)
    finally:
        listener.close()


def test_closing_removes_the_socket(folder: Path) -> None:
    listener = UnixListener(folder / "cri.sock")
    assert sorted(path.name for path in folder.iterdir()) == ["cri.sock", "cri.sock.lock"]
    listener.close()
    assert [path.name for path in folder.iterdir()] == ["cri.sock.lock"]
    again = UnixListener(folder / "cri.sock")
    assert answers(again.path)
    again.close()


def test_stale_socket_is_replaced(folder: Path) -> None:
    path = folder / "cri.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert not answers(path)
    listener = UnixListener(path)
    assert answers(path)
    listener.close()


def test_name_is_never_without_a_listener(folder: Path) -> None:
    """While a stale socket is replaced, a client meets the old one or the new one, nothing else."""
    path = folder / "cri.sock"
    codes: set[int] = set()
    stop = threading.Event()

    def dial() -> None:
        while not stop.is_set():
            with socket.socket(socket.AF_UNIX) as client:
                codes.add(client.connect_ex(str(path)))

    for _ in range(20):
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        stop.clear()
        dialling = threading.Thread(target=dial)
        dialling.start()
        listener = UnixListener(path)
        stop.set()
        dialling.join()
        listener.close()
    assert codes <= {0, errno.ECONNREFUSED, errno.EAGAIN}


def test_second_proxy_is_refused(folder: Path) -> None:
    path = folder / "cri.sock"
    first = UnixListener(path)
    assert refusal(path) == f'another proxy serves "{path}"'
    assert answers(path)
    first.close()


def test_somebody_elses_socket_is_left_alone(folder: Path) -> None:
    path = folder / "cri.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        assert refusal(path) == f'somebody else serves "{path}"'
        assert answers(path)
    # The failed attempt has not kept the lock.
    UnixListener(path).close()


def test_socket_with_a_full_backlog_is_somebodys(folder: Path) -> None:
    path = folder / "cri.sock"
    clients = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(0)
        for client in clients:
            client.setblocking(False)
        assert errno.EAGAIN in [client.connect_ex(str(path)) for client in clients]
        assert refusal(path) == f'somebody else serves "{path}"'
    for client in clients:
        client.close()


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_is_no_socket_is_left_alone(folder: Path, kind: str) -> None:
    path = folder / "cri.sock"
    match kind:
        case "file":
            path.write_text("precious")
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to("/nonexistent")
    assert refusal(path) == f'"{path}" exists and is not a socket'
    assert path.is_symlink() or path.exists()


def test_lock_that_is_a_link_is_refused(folder: Path) -> None:
    (folder / "victim").write_text("")
    (folder / "cri.sock.lock").symlink_to(folder / "victim")
    assert "cannot listen" in refusal(folder / "cri.sock")


def test_directory_of_others_is_refused(folder: Path) -> None:
    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert refusal(shared / "cri.sock") == f'the directory "{shared}" is open to other users'
    shared.chmod(0o1777)
    UnixListener(shared / "cri.sock").close()


def test_replaced_socket_is_not_removed(folder: Path) -> None:
    path = folder / "cri.sock"
    listener = UnixListener(path)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        listener.close()
        assert answers(path)


def test_removed_socket_is_no_error(folder: Path) -> None:
    listener = UnixListener(folder / "cri.sock")
    listener.path.unlink()
    listener.close()
    assert not listener.path.exists()


@pytest.mark.parametrize("length", [MAX_PATH_BYTES, MAX_PATH_BYTES + 1])
def test_length_of_the_path(folder: Path, length: int) -> None:
    path = folder / "d" / ("x" * (length - len(str(folder)) - 3))
    assert len(str(path)) == length
    if length <= MAX_PATH_BYTES:
        listener = UnixListener(path)
        assert answers(path)
        listener.close()
    else:
        assert "at most 107 bytes" in refusal(path)


def test_relative_path_is_refused() -> None:
    assert "absolute path" in refusal(Path("cri.sock"))


def test_reason_of_the_system_is_told(folder: Path) -> None:
    (folder / "file").write_text("")
    assert refusal(folder / "file" / "x" / "cri.sock").endswith(": Not a directory")


def test_only_one_of_many_that_start_at_once_serves(folder: Path) -> None:
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from pycrictl.errors import UsageError\n"
        "from pycrictl.proxy.serve.listen import UnixListener\n"
        "sys.stdin.read(1)\n"
        "try:\n"
        "    listener = UnixListener(Path(sys.argv[1]))\n"
        "except UsageError:\n"
        "    print('refused', flush=True)\n"
        "else:\n"
        "    print('serves', flush=True)\n"
        "    sys.stdin.read(1)\n"
        "    listener.close()\n"
    )
    path = folder / "cri.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    rivals = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for rival in rivals:
        assert rival.stdin
        rival.stdin.write("g")
        rival.stdin.flush()
    outcomes = sorted(rival.stdout.readline().strip() for rival in rivals if rival.stdout)
    assert outcomes == ["refused", "refused", "refused", "serves"]
    assert answers(path)
    for rival in rivals:
        rival.communicate("g", timeout=30)
        assert rival.returncode == 0
    assert not path.exists()


def heir(listener: UnixListener) -> Inherited:
    """What another process would have of it."""
    sock, lock = (os.dup(fd) for fd in listener.descriptors())
    return Inherited(socket.socket(fileno=sock), lock)


def test_an_heir_goes_on_when_the_first_lets_go(folder: Path) -> None:
    first = UnixListener(folder / "cri.sock")
    second = UnixListener(first.path, heir(first))
    second.claim()
    first.release()
    first.close()
    assert answers(second.path)
    assert refusal(second.path).startswith("another proxy serves ")
    second.close()
    assert not second.path.exists()
    UnixListener(second.path).close()


def test_an_heir_that_fails_takes_nothing_away(folder: Path) -> None:
    first = UnixListener(folder / "cri.sock")
    UnixListener(first.path, heir(first)).close()
    assert answers(first.path)
    assert refusal(first.path).startswith("another proxy serves ")
    first.close()


def test_systemds_socket_stays(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as systemds:
        systemds.bind(str(folder / "cri.sock"))
        systemds.listen()
        listener = UnixListener(folder / "cri.sock", Inherited(systemds.dup(), None))
        listener.claim()
        assert len(listener.descriptors()) == 1
        listener.close()
        assert answers(folder / "cri.sock")
