"""``tar`` in a container, which unpacks what it is sent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from pycrictl.copy.exec.remote import Ended, Remote, Session, in_large_pieces
from pycrictl.errors import CopyError

_DEAD_AFTER_S: Final = 6.0
"""How long a session may stand still before ``tar`` is looked for."""

_IDLE_S: Final = 300.0
"""How long ``tar`` may stand still."""

_MAX_WORDS: Final = 200
_MAX_WORDS_BYTES: Final = 16 * 1024
"""No more than ``xargs`` of BusyBox puts into one command."""


def unpack(
    remote: Remote,
    stage: bytes,
    archive: Iterable[bytes | memoryview],
    *options: str,
    path: bytes = b"",
) -> Ended:
    """Unpack an archive in a stage.

    Args:
        remote: the container.
        stage: where the stage is.
        archive: what is sent; what ``tar`` does not want any more is not read.
        options: more options of ``tar``.
        path: what errors name; the stage if empty.

    Raises:
        CopyError: ``tar`` has ended, and nobody has told.
    """
    words = ["tar", "-x", *options, "-f", "-", "-C", os.fsdecode(stage)]
    with remote.stream(*words, stdin=True) as session:
        session.on_stall = partial(_require_tar, remote, session, stage, path or stage)
        for piece in in_large_pieces(archive):
            if not session.send(piece):
                break  # what is left of the source need not be read
        return session.ended()


def batches(paths: Iterable[bytes]) -> Iterator[list[str]]:
    """Paths in portions that a command line can hold."""
    words: list[str] = []
    size_bytes = 0
    for path in paths:
        if words and (len(words) >= _MAX_WORDS or size_bytes + len(path) > _MAX_WORDS_BYTES):
            yield words
            words, size_bytes = [], 0
        words.append(os.fsdecode(path))
        size_bytes += len(path)
    if words:
        yield words


def _require_tar(
    remote: Remote, session: Session, stage: bytes, path: bytes, stalled_s: float
) -> None:
    """Require that the container and ``tar`` are still there.

    A runtime may never tell the end of a program that has left much of its input unread, as
    ``tar`` does on a disk that is full.
    """
    remote.check_running()
    if stalled_s < _DEAD_AFTER_S or (stalled_s < _IDLE_S and _is_tar_there(remote, stage)):
        return
    if session.so_far.stderr:
        raise session.so_far.failure("copy to", path)
    raise CopyError("tar in the container has ended before it had read everything")


def _is_tar_there(remote: Remote, stage: bytes) -> bool:
    """Whether a process is at work in the stage; True if that cannot be seen."""
    pids = [word for word in remote.run("ls", "/proc").stdout.split() if word.isdigit()]
    links = b"".join(
        remote.run("ls", "-ld", "--", *words).stdout
        for words in batches(b"/proc/%s/cwd" % pid for pid in pids)
    )
    return b" -> " not in links or b" -> " + stage in links
