"""``kubectl proxy`` on a socket of our own: the way of streams to the API server.

It serves whoever reaches its socket with the user's credential. So the socket is in a folder that
only the user can enter, it forwards to the agent's API alone, and it ends with this program,
however that ends.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
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
    """A running ``kubectl proxy``. Use it in a ``with`` statement, in the main thread."""

    def __init__(self, kubectl: Kubectl, environ: Mapping[str, str]) -> None:
        self._kubectl = kubectl
        self._environ = environ
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._listening = ExitStack()

    def __enter__(self) -> KubectlProxy:
        folder = tempfile.TemporaryDirectory(
            prefix=_PREFIX, dir=_parent(self._environ), ignore_cleanup_errors=True
        )
        self._socket = Path(self._stack.enter_context(folder)) / "s"
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
    """Return what a child calls to be killed by the kernel when its parent is gone.

    The kernel means the thread that made the child, so that must be the main thread.
    """
    prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it was gone already
            os._exit(1)

    return prepare


def _parent(environ: Mapping[str, str]) -> str:
    """Return where the socket's folder is made: paths of sockets are short."""
    own = environ.get("XDG_RUNTIME_DIR", "")
    is_good = own.startswith("/") and os.access(own, os.W_OK | os.X_OK)
    parent = own if is_good else tempfile.gettempdir()
    return parent if len(os.fsencode(parent)) + len(_PREFIX) + 12 <= _LONGEST_PATH else "/tmp"
