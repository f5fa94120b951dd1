"""``tar`` in a container: to unpack what it is sent, and to end when this program does."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, NoReturn

from pycrictl.copy.exec.remote import Remote
from pycrictl.copy.exec.running import Ended, ProgramMissing, Running
from pycrictl.errors import CopyError, PycrictlError

_DEAD_AFTER_S: Final = 6.0
"""How long a stream may stand still before ``tar`` is looked for."""

_IDLE_S: Final = 300.0
"""How long ``tar`` may stand still."""

_MARK_BITS: Final = 32


def unpack(
    remote: Remote,
    folder: bytes,
    archive: Iterable[bytes],
    *options: str,
    path: bytes,
) -> Ended:
    """Unpack an archive into a directory. However this ends, ``tar`` soon does as well.

    Args:
        remote: the container.
        folder: the directory.
        archive: what is sent; it is read no further than ``tar`` reads it.
        options: more options of ``tar``.
        path: what errors name.

    Raises:
        CopyError: ``tar`` has ended before it had read everything.
    """
    with watched(remote) as mark:
        words = ["tar", "-x", *options, "-f", "-", "-C", os.fsdecode(folder) + mark]
        with remote.stream(*words, stdin=True) as tar:
            tar.on_stall = partial(_require_tar, remote, tar, mark, path)
            try:
                is_read = all(tar.send(piece) for piece in archive)
            except BaseException:
                # It unpacks what it was sent, and ends. If it takes longer, it is killed.
                tar.on_stall = _give_up
                with suppress(PycrictlError):
                    tar.ended()
                raise
            ended = tar.ended()
    if not is_read and not ended.status:  # the runtime may have lost the status
        raise _unfinished()
    return ended


@contextmanager
def watched(remote: Remote) -> Iterator[str]:
    """Let a ``tar`` end soon after this block, or after the death of this program.

    The runtime does not let it know that its reader has gone: it would wait to write more for as
    long as the container runs. One that unpacks may have much left to read when its input ends.
    Where the container has none of the programs that are needed, nothing happens.

    Yields:
        What to add to the path of the directory that ``tar`` enters. It means nothing in a path,
        and marks the command.
    """
    bits = f"{random.getrandbits(_MARK_BITS):0{_MARK_BITS}b}"
    mark = bits.replace("0", "/.").replace("1", "//.")
    with remote.stream(*watchdog(mark), stdin=True) as dog:
        dog.wait_for_streams()  # a tar that ran before might outlive this program
        yield mark


def watchdog(mark: str) -> list[str]:
    """Return a command that waits for the end of its input, and then kills what bears a mark.

    It takes what containers have: ``xargs`` waits, ``find`` and ``grep`` look for the process, and
    ``start-stop-daemon`` (BusyBox, Debian) or ``pkill`` (procps) ends it. For the former,
    ``/proc/PID/stat`` serves as a PID file, since it begins with the number of the process.
    """
    words = ["xargs", "-0", "find", "/proc", "-maxdepth", "1"]
    # tar may be about to start.
    words += ["-path", "/proc", "-exec", "sleep", "1", ";", "-o"]
    words += [
        *_bears(mark),
        "(",
        "-exec",
        "start-stop-daemon",
        "-K",
        "-s",
        "KILL",
        "-p",
        "{}/stat",
        ";",
    ]
    words += ["-o", "-exec", "pkill", "-KILL", "-f", _pattern(mark), ";", ")"]
    return words


def _pattern(mark: str) -> str:
    """Return a regular expression for a mark that does not match itself."""
    return mark.replace(".", "[.]")


def _bears(mark: str) -> list[str]:
    """Return what lets ``find`` go on with the processes of ``/proc`` that bear a mark."""
    return ["-name", "[1-9]*", "-exec", "grep", "-qsz", _pattern(mark), "{}/cmdline", ";"]


def _require_tar(remote: Remote, tar: Running, mark: str, path: bytes, stalled_s: float) -> None:
    """Require that the container and ``tar`` are still there.

    A runtime may never report the end of a program that has left much of its input unread, as
    ``tar`` does on a full disk.
    """
    remote.check_running()
    if stalled_s < _DEAD_AFTER_S or (stalled_s < _IDLE_S and _is_there(remote, mark)):
        return
    if tar.so_far.stderr:
        raise tar.so_far.failure("copy to", path)
    raise _unfinished()


def _give_up(_: float) -> NoReturn:
    raise _unfinished()


def _is_there(remote: Remote, mark: str) -> bool:
    """Return whether a process bears a mark; True if that cannot be seen."""
    try:
        found = remote.run("find", "/proc", "-maxdepth", "1", *_bears(mark), "-print")
    except ProgramMissing:
        return True
    return bool(found.status or found.stdout)


def _unfinished() -> CopyError:
    return CopyError("tar in the container ended before it had read everything")
