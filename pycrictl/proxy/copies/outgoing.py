"""What is taken from a container: measured for the answer to the call, then sent. It blocks.

The answer has size and checksum, so the content is read before anything is sent, and the same bytes
must be sent afterwards. So it waits in a spool file; only a large file that nobody has written to
for a while is left where it is, and read a second time.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final

from pycrictl.copy.archive.measure import Census, Measured, measure
from pycrictl.copy.archive.pack import pack
from pycrictl.copy.archive.spool import Spool
from pycrictl.copy.rules import outcome
from pycrictl.copy.rules.policy import Skipped
from pycrictl.copy.rules.summary import Summary
from pycrictl.copy.stream.connection import FROM_CONTAINER, OUTCOME, CopyConnection
from pycrictl.copy.stream.transfer import send_content
from pycrictl.copy.tree.identity import ContainerRoot, Locate
from pycrictl.copy.tree.places import Source, open_source
from pycrictl.copy.tree.walk import OnSkip
from pycrictl.errors import CopyError

LARGE_BYTES: Final = 16 * 1024 * 1024
"""Smaller files are not worth keeping a container's file open for."""

REST_S: Final = 10.0
"""For how long a file must not have been written to, so that it is left where it is."""


@dataclass(frozen=True, slots=True)
class Content:
    """What was taken from a container.

    Attributes:
        keeper: what holds it: a spool file, or the source itself.
        size_bytes: of the archive.
        crc32: its checksum.
        summary: what is in it.
        skipped: what was left out.
    """

    keeper: Spool | Source
    size_bytes: int
    crc32: int
    summary: Summary
    skipped: list[Skipped]

    def pieces(self) -> Generator[memoryview, None, None]:
        """Iterate over the archive, as long as nobody has changed the source.

        Raises:
            CopyError: it cannot be read any more.
        """
        if isinstance(self.keeper, Source):
            yield from pack(self.keeper, on_skip=_ignore)
        else:
            yield from self.keeper.pieces()

    def close(self) -> None:
        """Let go of what holds it."""
        self.keeper.close()


def collect(
    locate: Locate,
    path: bytes,
    *,
    folder: str,
    check_size: Callable[[int], None],
    check_wanted: Callable[[], None],
) -> Content:
    """Measure what is at a path of a container, and spool it unless that is not needed.

    Args:
        locate: finds the container's first process.
        path: in it, absolute.
        folder: where to spool.
        check_size: called with the size of the archive as it grows; raises if it is too large.
        check_wanted: raises if nobody waits for the copy any more.

    Returns:
        The content; closed by the caller.

    Raises:
        NoSpace: there is not enough room to spool it.
        CopyError: it cannot be read.
        FailedPrecondition: the container is not running, or stopped meanwhile.
    """
    skips = Skips()

    def check(size_bytes: int) -> None:
        check_wanted()
        check_size(size_bytes)

    with ExitStack() as kept, ContainerRoot(locate) as root:
        source = open_source(root, path)
        keeper: Spool | Source
        if _is_at_rest(source):
            keeper = kept.enter_context(source)
            found = measure(source, on_skip=skips.add, check=check)
        else:
            with source:
                keeper = kept.enter_context(Spool(folder))
                found = _spool(source, keeper, on_skip=skips.add, check=check)
        root.check_running()
        kept.pop_all()
    found.summary.skipped = skips.count
    return Content(keeper, found.size_bytes, found.crc32, found.summary, skips.named)


def deliver(
    connection: CopyConnection,
    content: Content,
    *,
    check_wanted: Callable[[], None],
    on_done: Callable[[], None],
) -> Summary:
    """Send what was taken from the container, then the outcome.

    Args:
        connection: to the client.
        content: what to send.
        check_wanted: raises if it is to stop.
        on_done: called when the content is not needed any more, before the client has the outcome.

    Raises:
        CopyError: the source has changed; the client has the error.
        StreamError: the client has gone.
    """
    try:
        with closing(content.pieces()) as pieces:
            send_content(
                connection,
                FROM_CONTAINER,
                pieces,
                content.size_bytes,
                after=lambda _: check_wanted(),
            )
    except CopyError as exc:
        on_done()
        connection.send(OUTCOME, outcome.encode_failure(exc))
        raise
    on_done()
    connection.send(OUTCOME, outcome.encode_success(content.summary, content.skipped))
    return content.summary


def _spool(
    source: Source, spool: Spool, *, on_skip: OnSkip, check: Callable[[int], None]
) -> Measured:
    census = Census()
    with closing(pack(source, on_skip=on_skip, on_entry=census.count)) as pieces:
        for piece in pieces:
            check(spool.size_bytes + len(piece))
            spool.write(piece)
    spool.finish()
    return Measured(spool.size_bytes, spool.crc32, census.summary)


def _is_at_rest(source: Source) -> bool:
    status = os.fstat(source.fd)
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_size >= LARGE_BYTES
        and time.time() - status.st_mtime > REST_S
    )


class Skips:
    """What was left out: how much, and the first few by name."""

    def __init__(self) -> None:
        self.count = 0
        self.named: list[Skipped] = []

    def add(self, one: Skipped) -> None:
        """Count an entry that was left out."""
        self.count += 1
        if len(self.named) < outcome.MAX_SKIPPED:
            self.named.append(one)


def _ignore(_: Skipped) -> None:
    """Report nothing: that was done when the archive was measured."""
