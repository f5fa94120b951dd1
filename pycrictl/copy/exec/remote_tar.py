"""``tar`` in a container: to unpack what it is sent, and to end when its reader has gone."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from pycrictl.copy.exec.remote import Remote, batches
from pycrictl.copy.exec.running import Ended, Running, in_large_pieces
from pycrictl.errors import CopyError

_DEAD_AFTER_S: Final = 6.0
"""How long a stream may stand still before ``tar`` is looked for."""

_IDLE_S: Final = 300.0
"""How long ``tar`` may stand still."""

_MARK_BITS: Final = 32


def unpack(
    remote: Remote,
    stage: bytes,
    archive: Iterable[bytes | memoryview],
    *options: str,
    path: bytes,
) -> Ended:
    """Unpack an archive in a stage.

    Args:
        remote: the container.
        stage: where the stage is.
        archive: what is sent; it is read no further than ``tar`` reads it.
        options: more options of ``tar``.
        path: what errors name.

    Raises:
        CopyError: ``tar`` has ended, and the runtime has not reported it.
    """
    words = ["tar", "-x", *options, "-f", "-", "-C", os.fsdecode(stage)]
    with remote.stream(*words, stdin=True) as tar:
        tar.on_stall = partial(_require_tar, remote, tar, stage, path)
        for piece in in_large_pieces(archive):
            if not tar.send(piece):
                break  # what is left of the source need not be read
        return tar.ended()


@contextmanager
def watched(remote: Remote) -> Iterator[str]:
    """Let a ``tar`` that packs end soon after this block, or after the death of this program.

    The runtime does not let it know that its reader has gone: it would wait to write more for as
    long as the container runs. A ``tar`` that unpacks needs no such help, as its input ends. Where
    the container has none of the programs that are needed, nothing happens.

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
    pattern = mark.replace(".", "[.]")  # which does not match itself
    words = ["xargs", "-0", "find", "/proc", "-maxdepth", "1"]
    # tar may be about to start.
    words += ["-path", "/proc", "-exec", "sleep", "1", ";", "-o"]
    words += ["-name", "[1-9]*", "-exec", "grep", "-qsz", pattern, "{}/cmdline", ";"]
    words += ["(", "-exec", "start-stop-daemon", "-K", "-s", "KILL", "-p", "{}/stat", ";"]
    words += ["-o", "-exec", "pkill", "-KILL", "-f", pattern, ";", ")"]
    return words


def _require_tar(remote: Remote, tar: Running, stage: bytes, path: bytes, stalled_s: float) -> None:
    """Require that the container and ``tar`` are still there.

    A runtime may never report the end of a program that has left much of its input unread, as
    ``tar`` does on a full disk.
    """
    remote.check_running()
    if stalled_s < _DEAD_AFTER_S or (stalled_s < _IDLE_S and _is_tar_there(remote, stage)):
        return
    if tar.so_far.stderr:
        raise tar.so_far.failure("copy to", path)
    raise CopyError("tar in the container ended before it had read everything")


def _is_tar_there(remote: Remote, stage: bytes) -> bool:
    """Return whether a process is at work in the stage; True if that cannot be seen."""
    pids = [word for word in remote.run("ls", "/proc").stdout.split() if word.isdigit()]
    links = b"".join(
        remote.run_bytes(b"ls", b"-ld", b"--", *batch).stdout
        for batch in batches((b"/proc/%s/cwd" % pid,) for pid in pids)
    )
    return b" -> " not in links or b" -> " + stage in links
