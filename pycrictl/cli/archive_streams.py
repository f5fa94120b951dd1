"""Standard input and output as the bytes of an archive.

The parent process may have closed them, or made them non-blocking for all processes that share
them.
"""

from __future__ import annotations

import fcntl
import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TextIO

from pycrictl.errors import CopyError, UsageError

if TYPE_CHECKING:
    from pycrictl.environ import Environment

_PIECE_BYTES: Final = 256 * 1024


def check_input(env: Environment) -> None:
    """Require that standard input can be read.

    Raises:
        UsageError: it is closed, or open for writing only.
    """
    fd = _descriptor(env.stdin, "standard input")
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
        raise UsageError("standard input is open for writing only")


def output_of(env: Environment) -> int:
    """Return the descriptor of standard output.

    Raises:
        UsageError: it is closed.
    """
    return _descriptor(env.stdout, "standard output")


@contextmanager
def input_of(env: Environment) -> Iterator[int]:
    """Give a descriptor that blocks until standard input can be read.

    Raises:
        UsageError: it is closed.
    """
    fd = _descriptor(env.stdin, "standard input")
    if os.get_blocking(fd):
        yield fd
        return
    # It stays as it is: other processes that share it may rely on that.
    reader, writer = os.pipe()
    threading.Thread(target=_pass_on, args=(fd, writer), daemon=True).start()
    try:
        yield reader
    finally:
        os.close(reader)


def write_all(fd: int, piece: memoryview) -> None:
    """Write all of ``piece`` to standard output.

    Raises:
        CopyError: it cannot be written.
    """
    while piece:
        try:
            piece = piece[os.write(fd, piece) :]
        except BlockingIOError:
            _wait(fd, select.POLLOUT)
        except OSError as exc:
            reason = os.strerror(exc.errno or 0).lower()
            raise CopyError(
                f"cannot write to standard output: {reason}", hint="the archive is not complete"
            ) from exc


def _descriptor(stream: TextIO, name: str) -> int:
    try:
        fd = stream.fileno()
        if not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH:  # as __main__ opens what is closed
            return fd
    except (OSError, ValueError):
        pass
    raise UsageError(f"{name} is closed", hint="an archive needs it open")


def _pass_on(source: int, target: int) -> None:
    """Pass on what comes; an error ends it, which leaves the archive incomplete."""
    try:
        # The reader may have gone, whether it has read all that it wanted or not.
        with suppress(OSError):
            while True:
                try:
                    data = os.read(source, _PIECE_BYTES)
                except BlockingIOError:
                    _wait(source, select.POLLIN)
                    continue
                if not data:
                    return
                view = memoryview(data)
                while view:
                    view = view[os.write(target, view) :]
    finally:
        os.close(target)


def _wait(fd: int, event: int) -> None:
    poll = select.poll()
    poll.register(fd, event)
    poll.poll()
