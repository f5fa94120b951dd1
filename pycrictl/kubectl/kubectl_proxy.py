"""``kubectl proxy`` on a socket of our own: the way of streams to the API server.

It serves whoever reaches its socket with the user's credential. So the socket is in a folder that
only the user can enter, it forwards to the agent's API alone, and it ends with this program,
however that ends. What a killed program leaves of its folder, the next one removes.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from pycrictl.agent.api.names import GROUP
from pycrictl.errors import ConnectError
from pycrictl.kubectl import refusals
from pycrictl.kubectl.program import Kubectl
from pycrictl.streaming.target import Target

READY_S: Final = 20.0
"""How long kubectl may take until it listens; a busy machine loads it slowly."""

_PREFIX: Final = "pycrictl-kubectl-"
_LONGEST_PATH: Final = 100
"""Bytes of a socket's path (108 with its end), less a few."""

_PR_SET_PDEATHSIG: Final = 1
_GROUP_ONLY: Final = rf"^/apis/{GROUP.replace('.', '[.]')}(/.*)?$"
_ENDS_S: Final = 2.0


class KubectlProxy:
    """A running ``kubectl proxy``. Use it in a ``with`` statement, in the main thread.

    Entering raises as ``target`` does.

    Args:
        kubectl: with the connection's options.
        environ: variables of this process.
    """

    def __init__(self, kubectl: Kubectl, environ: Mapping[str, str]) -> None:
        self._kubectl = kubectl
        self._environ = environ
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._listening = ExitStack()

    def __enter__(self) -> KubectlProxy:
        self._socket = self._stack.enter_context(_private_folder(self._environ)) / "s"
        self._stack.callback(self._end)
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def target(self, path: str) -> Target:
        """Return what reaches a path of the API server; start kubectl again if it has ended."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        return Target("http", "localhost", 80, path, str(self._socket))

    def _start(self) -> None:
        self._end()
        self._socket.unlink(missing_ok=True)
        words = ["proxy", f"--unix-socket={self._socket}", f"--accept-paths={_GROUP_ONLY}"]
        process = self._process = self._kubectl.start(
            words,
            stdin=subprocess.DEVNULL,
            preexec_fn=_ending_with(os.getpid()),
            process_group=0,  # Ctrl-C is for us, who end it
        )
        complaint = self._listening.enter_context(self._kubectl.listening(process))
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], READY_S)
        if not ready:
            self._end()
            raise ConnectError(f"kubectl proxy does not listen within {READY_S:g} s")
        if not process.stdout.readline():
            code = process.wait()
            raise refusals.of_text(complaint(), code)

    def _end(self) -> None:
        if (process := self._process) is None:
            return
        self._process = None
        process.terminate()
        try:
            process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
        self._listening.close()


def _ending_with(parent: int) -> Callable[[], None]:
    """Return what to do in a child so that the kernel kills it when its parent is gone.

    The kernel means the thread that made the child, so that must be the main thread.
    """
    prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it was gone already
            os._exit(1)

    return prepare


@contextmanager
def _private_folder(environ: Mapping[str, str]) -> Iterator[Path]:
    """Make a folder that only this user can enter, and remove it at the end."""
    parent = _parent(environ)
    _sweep(parent)
    folder, lock = _locked_folder(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder(parent: str) -> tuple[Path, int]:
    """Return a new folder, and the descriptor whose lock says that its maker lives."""
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # another program swept it up before it was locked
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return Path(folder), lock
        os.close(lock)


def _parent(environ: Mapping[str, str]) -> str:
    own = environ.get("XDG_RUNTIME_DIR", "")
    is_good = own.startswith("/") and os.access(own, os.W_OK | os.X_OK)
    parent = own if is_good else tempfile.gettempdir()
    return parent if len(os.fsencode(parent)) + len(_PREFIX) + 12 <= _LONGEST_PATH else "/tmp"


def _sweep(parent: str) -> None:
    """Remove folders whose makers were killed."""
    with suppress(OSError):
        for entry in list(os.scandir(parent)):
            if entry.name.startswith(_PREFIX):
                with suppress(OSError):
                    _remove_if_left(entry.path)


def _remove_if_left(folder: str) -> None:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(lock)
        if found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    finally:
        os.close(lock)
