"""Limits the parallel pulls of all pycrictl processes on a node, without a daemon.

The slots of a limit are files, ``slot-0``, ``slot-1`` and so on; a process holds one while it has
locked it (``flock(2)``). The kernel releases the locks of a process when it ends, however it ends,
so none is ever stale. Processes that find no free slot try again, in no particular order. A process
with a limit of N uses only the first N slots, so it does not count pulls in other slots.

Processes of different users never share slots: a directory is only trusted if the process's own
user owns it and nobody else may write to it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from pycrictl.base import noderoot
from pycrictl.base.errors import DeadlineExceeded, PycrictlError
from pycrictl.base.units import quote

DIRECTORY_VARIABLE: Final = "PYCRICTL_SLOTS_DIR"
MAX_LIMIT: Final = 10_000

_POLL_S: Final = 0.1
"""The pause between attempts: ``flock`` cannot wait for one of several locks, or with a timeout."""


def default_directory(environ: Mapping[str, str], uid: int) -> Path:
    """Return the directory in which this user's processes share slots.

    Only root can create files in ``/run``, so nobody else can plant one there. The proxy's own
    directory is not used, since it exists only with the proxy.
    """
    if named := environ.get(DIRECTORY_VARIABLE):
        return Path(named)
    if uid == 0:
        return Path(noderoot.locate("/run/pycrictl-slots"))
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "pycrictl-slots"
    return Path(f"/tmp/pycrictl-slots-{uid}")


@contextmanager
def pull_slot(
    limit: int,
    *,
    image: str,
    directory: Path,
    timeout_s: float | None = None,
    on_wait: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Hold a slot while the block runs.

    ``on_wait`` is called before a wait. A ``timeout_s`` of 0 means not to wait.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    with ExitStack() as held:
        try:
            folder = _opened(directory)
            held.callback(os.close, folder)
            if not _took_slot(folder, limit, held):
                on_wait()
                while not _took_slot(folder, limit, held):
                    left_s = _POLL_S if deadline is None else deadline - time.monotonic()
                    if left_s <= 0:
                        raise DeadlineExceeded(
                            f"no slot for pulling {quote(image)} became free in time",
                            code="DeadlineExceeded",
                            hint=f"the limit is {limit}, and other processes hold all slots",
                        )
                    time.sleep(min(_POLL_S, left_s))
        except OSError as exc:
            raise PycrictlError(
                f"cannot use the directory {quote(str(directory))} for pull slots: {exc.strerror}",
                hint=f"set {DIRECTORY_VARIABLE} to another one",
            ) from exc
        yield


def _took_slot(folder: int, limit: int, held: ExitStack) -> bool:
    return any(_locked(folder, f"slot-{number}", held) for number in range(limit))


def _locked(folder: int, name: str, held: ExitStack) -> bool:
    """Lock a file until ``held`` is closed; return False if another process has locked it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with ExitStack() as opened:
        fd = os.open(name, flags, 0o600, dir_fd=folder)
        opened.callback(os.close, fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # Closing is not enough: a forked child may have a copy of the descriptor.
        opened.callback(fcntl.flock, fd, fcntl.LOCK_UN)
        held.push(opened.pop_all())
        return True


def _opened(directory: Path) -> int:
    """Open the directory, unless another user could have planted it, or could change it."""
    directory.mkdir(mode=0o700, exist_ok=True)
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    facts = os.fstat(folder)
    if facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(folder)
        raise PermissionError(errno.EPERM, "another user owns it or may write to it")
    return folder
