"""What happens to the files of a copy, at the proxy's end: blocking, for a thread of its own.

What comes for a container is unpacked beside its destination as it arrives; what is taken from one
has been measured before (``copy_content``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

from pycrictl.copy.archive.checksum import Checksum
from pycrictl.copy.archive.unpack import Unpacker
from pycrictl.copy.rules import outcome
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.rules.spec import Existing
from pycrictl.copy.rules.summary import Summary
from pycrictl.copy.stream.messages import (
    CHANNEL_END,
    FROM_CONTAINER,
    OUTCOME,
    TO_CONTAINER,
    Messages,
)
from pycrictl.copy.stream.transfer import send_content, wrong_checksum
from pycrictl.copy.tree.identity import ContainerRoot, Locate
from pycrictl.copy.tree.places import open_destination
from pycrictl.errors import Cancelled, CopyError, PycrictlError, RemoteProtocolError
from pycrictl.proxy.copies.outgoing import Content, Skips

IDLE_S: Final = 60.0
"""How long a client may send nothing, or take nothing."""

SLOWEST_BYTES_PER_S: Final = 64 * 1024
"""A client that is slower than that is given up, or a few of them would hold all slots."""


def deadline(size_bytes: int) -> float:
    """When a copy of that size must be over, from now."""
    return time.monotonic() + IDLE_S + size_bytes / SLOWEST_BYTES_PER_S


def deliver(
    messages: Messages,
    content: Content,
    *,
    check_wanted: Callable[[], None],
    on_done: Callable[[], None],
) -> Summary:
    """Send what was taken from the container, and that it is all.

    Args:
        messages: to the client.
        content: what to send.
        check_wanted: raises if it is to stop.
        on_done: called when the content is not needed any more, before the client learns of it.

    Raises:
        CopyError: the source has changed; the client has been told.
        StreamError: the client is gone.
    """
    try:
        with closing(content.pieces()) as pieces:
            send_content(
                messages,
                FROM_CONTAINER,
                pieces,
                content.size_bytes,
                after=lambda _: check_wanted(),
            )
    except CopyError as exc:
        on_done()
        messages.send(OUTCOME, outcome.encode_failure(exc))
        raise
    on_done()
    messages.send(OUTCOME, outcome.encode_success(content.summary, content.skipped))
    return content.summary


def take_in(
    messages: Messages,
    locate: Locate,
    path: bytes,
    *,
    size_bytes: int,
    checksum: int,
    check_wanted: Callable[[], None],
    on_done: Callable[[], None],
) -> Summary:
    """Unpack what a client sends into a container, and tell the client the outcome.

    The path is that of ``docker cp``: if there is a directory, what the archive holds goes into
    it, each entry under its own name; ``DIR/.`` requires that. Otherwise the archive must hold one
    file or directory, which gets the path as its name.

    On any error nothing was changed, and the client has been told why if it still listens.
    """
    try:
        summary, skipped = _unpack(messages, locate, path, size_bytes, checksum, check_wanted)
    except Exception as exc:
        on_done()
        messages.send(OUTCOME, outcome.encode_failure(to_error(exc)))
        raise
    on_done()
    messages.send(OUTCOME, outcome.encode_success(summary, skipped))
    return summary


def _unpack(
    messages: Messages,
    locate: Locate,
    path: bytes,
    size_bytes: int,
    checksum: int,
    check_wanted: Callable[[], None],
) -> tuple[Summary, list[Skipped]]:
    skips = Skips()
    with ContainerRoot(locate) as root, open_destination(root, path) as destination:
        is_directory = destination.existing is Existing.DIRECTORY
        with Unpacker(
            destination,
            Rules(),
            on_skip=skips.add,
            single=not (is_directory or destination.text.wants_contents),
        ) as unpacker:
            arrived = _receive(messages, unpacker, size_bytes, check_wanted)
            if unpacker.size_bytes == size_bytes and arrived != checksum:
                raise wrong_checksum()
            check_wanted()
            root.check_running()
            summary = unpacker.finish(size_bytes=size_bytes)
            root.check_running()
            return summary, skips.named


def _receive(
    messages: Messages, unpacker: Unpacker, size_bytes: int, check_wanted: Callable[[], None]
) -> int:
    """Unpack what comes; return its checksum."""
    checksum = Checksum()
    while (piece := messages.receive()) is not None:
        check_wanted()
        if piece.channel == TO_CONTAINER:
            if unpacker.size_bytes + len(piece.data) > size_bytes:
                raise CopyError(f"more than the {size_bytes} announced bytes arrived")
            checksum.add(piece.data)
            unpacker.receive_data(piece.data)
        elif piece.channel == CHANNEL_END and bytes(piece.data) == bytes((TO_CONTAINER,)):
            return checksum.value
        else:
            raise RemoteProtocolError("the client sent data on a channel that is not its own")
    raise Cancelled("the client left", code="Canceled")


def to_error(exc: Exception) -> PycrictlError:
    """What to tell of it: a bug of the proxy too ends a copy and nothing else."""
    if isinstance(exc, PycrictlError):
        return exc
    if isinstance(exc, OSError):
        return CopyError(f"the proxy cannot copy: {os.strerror(exc.errno or 0).lower()}")
    return CopyError(f"the proxy failed: {type(exc).__name__}: {exc}")
