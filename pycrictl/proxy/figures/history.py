"""The last pulls in a file that survives restarts and crashes of the proxy.

One JSON object a line, each appended by one write. A line that a crash cut short is skipped, and
the next one begins on a line of its own. A full file becomes the older one of two, so at least
``KEPT`` pulls are there and never more than two files. Several processes may write at once, as an
old and a new proxy do while one takes over from the other.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from pycrictl.foreign import mapping, parse
from pycrictl.proxy.figures.record import PullRecord
from pycrictl.servicelog import Log

log = Log(__name__)

STATE_FOLDER: Final = "/var/lib/pycrictl"
KEPT: Final = 10_000

NAME: Final = "pulls.jsonl"
_OLDER: Final = "pulls.1.jsonl"
DAMAGED: Final = "pulls.damaged"
FILE_BYTES: Final = KEPT * 1024
"""The size at which a file is full: a record takes 300 to 500 bytes, and rarely more than 1 KiB."""

_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def append(folder: Path, record: PullRecord, *, file_bytes: int = FILE_BYTES) -> None:
    """Add a record at the end. The folder must exist.

    Raises:
        OSError: it cannot be written.
    """
    line = json.dumps(record.document(), separators=(",", ":")).encode() + b"\n"
    descriptor = _opened(folder, file_bytes)
    try:
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes and os.pread(descriptor, 1, size_bytes - 1) != b"\n":
            line = b"\n" + line
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def newest(folder: Path, *, kept: int = KEPT) -> list[PullRecord]:
    """Return the last records, the oldest first; none if there is no history.

    Raises:
        OSError: it cannot be read.
    """
    return list(deque(_read(folder), maxlen=kept))


def _opened(folder: Path, file_bytes: int) -> int:
    """Open the file to append to, and lock it; make room first if it is full."""
    path = folder / NAME
    while True:
        descriptor = os.open(path, _FLAGS, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            status = os.fstat(descriptor)
            # Another process may have put another file in its place before it was locked.
            with suppress(FileNotFoundError):
                if os.path.samestat(status, path.stat()):
                    if not stat.S_ISREG(status.st_mode) or status.st_size > 2 * file_bytes:
                        path.rename(folder / DAMAGED)
                        log.warning("damaged_history", file=str(folder / DAMAGED))
                    elif status.st_size < file_bytes:
                        return descriptor
                    else:
                        path.rename(folder / _OLDER)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _read(folder: Path) -> Iterator[PullRecord]:
    for name in (_OLDER, NAME):
        for line in _lines(folder / name):
            with suppress(ValueError):
                yield PullRecord.from_document(mapping(parse(line)))


def _lines(path: Path) -> Iterator[bytes]:
    """Iterate over the lines of a file; what is no file of ours has none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with os.fdopen(descriptor, "rb") as file:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            rest = file.read(2 * FILE_BYTES)
            yield from rest.splitlines()
