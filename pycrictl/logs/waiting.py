"""Waiting for a log to change: by inotify where it is available, else by looking often."""

from __future__ import annotations

import ctypes
import os
import select
import time
from typing import Final

IDLE_S: Final = 1.0
"""Longest wait: some file systems report no changes, and a container may end in silence."""

POLL_S: Final = 0.25
"""Longest wait without inotify."""

COALESCE_S: Final = 0.01
"""Pause after a change, so that what is written line by line is read in blocks."""

_IN_MODIFY: Final = 0x002
_IN_MOVED_TO: Final = 0x080
_IN_CREATE: Final = 0x100
_EVENTS_BYTES: Final = 64 << 10


class LogWatch:
    """Waits for changes of log files, which may be links, and of those beside them.

    Waiting ends when nobody can read from ``reader_fd``, which is not noticed otherwise before the
    container writes again.
    """

    def __init__(self, *paths: str, reader_fd: int | None = None) -> None:
        self._inotify_fd = _inotify()
        for path in paths:
            self.add(path)
        self._poll = select.poll()
        if self._inotify_fd is not None:
            self._poll.register(self._inotify_fd, select.POLLIN)
        if reader_fd is not None:
            self._poll.register(reader_fd, 0)

    def add(self, path: str) -> None:
        folder = os.path.dirname(os.path.realpath(path))  # noqa: PTH120 (all in one)
        if self._inotify_fd is not None and not _is_watched(self._inotify_fd, folder):
            self.close()

    @property
    def has_inotify(self) -> bool:
        return self._inotify_fd is not None

    def wait(self) -> None:
        """Return when something may have changed; raise BrokenPipeError without a reader."""
        limit_s = IDLE_S if self.has_inotify else POLL_S
        for fd, event in self._poll.poll(limit_s * 1000):
            if fd != self._inotify_fd:
                if event & select.POLLERR:
                    raise BrokenPipeError
                self._poll.unregister(fd)
                continue
            time.sleep(COALESCE_S)
            os.read(fd, _EVENTS_BYTES)

    def close(self) -> None:
        if self._inotify_fd is not None:
            os.close(self._inotify_fd)
            self._inotify_fd = None

    def __enter__(self) -> LogWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _inotify() -> int | None:
    try:
        fd = int(ctypes.CDLL(None).inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    except (OSError, AttributeError):
        return None
    return fd if fd >= 0 else None  # this user may have as many as the kernel allows


def _is_watched(fd: int, folder: str) -> bool:
    mask = _IN_MODIFY | _IN_MOVED_TO | _IN_CREATE
    return int(ctypes.CDLL(None).inotify_add_watch(fd, os.fsencode(folder), mask)) >= 0
