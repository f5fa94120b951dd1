"""What comes for a container: unpacked beside its destination as it arrives. It blocks."""

from __future__ import annotations

import os
from collections.abc import Callable

from pycrictl.copy.archive.checksum import Checksum
from pycrictl.copy.archive.unpack import Unpacker
from pycrictl.copy.rules import outcome
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.rules.spec import Existing
from pycrictl.copy.rules.summary import Summary
from pycrictl.copy.stream.connection import CHANNEL_END, OUTCOME, TO_CONTAINER, CopyConnection
from pycrictl.copy.stream.transfer import wrong_checksum
from pycrictl.copy.tree.identity import ContainerRoot, Locate
from pycrictl.copy.tree.places import open_destination
from pycrictl.errors import Cancelled, CopyError, PycrictlError, RemoteProtocolError
from pycrictl.proxy.copies.outgoing import Skips


def take_in(
    connection: CopyConnection,
    locate: Locate,
    path: bytes,
    *,
    size_bytes: int,
    checksum: int,
    rules: Rules,
    check_wanted: Callable[[], None],
    on_done: Callable[[], None],
) -> Summary:
    """Unpack what a client sends into a container, and send the client the outcome.

    The path has the meaning that it has for ``docker cp``: if it is a directory, what the archive
    holds goes into it, each entry under its own name; ``DIR/.`` requires a directory. Otherwise the
    archive must hold one file or directory, which gets the path as its name.

    On any error nothing was changed, and the reason was sent to the client if it still listens.
    """
    try:
        summary, skipped = _unpack(
            connection, locate, path, size_bytes, checksum, rules, check_wanted
        )
    except Exception as exc:
        on_done()
        connection.send(OUTCOME, outcome.encode_failure(to_error(exc)))
        raise
    on_done()
    connection.send(OUTCOME, outcome.encode_success(summary, skipped))
    return summary


def _unpack(
    connection: CopyConnection,
    locate: Locate,
    path: bytes,
    size_bytes: int,
    checksum: int,
    rules: Rules,
    check_wanted: Callable[[], None],
) -> tuple[Summary, list[Skipped]]:
    skips = Skips()
    with ContainerRoot(locate) as root, open_destination(root, path) as destination:
        is_directory = destination.existing is Existing.DIRECTORY
        with Unpacker(
            destination,
            rules,
            on_skip=skips.add,
            single=not (is_directory or destination.text.wants_contents),
        ) as unpacker:
            arrived = _receive(connection, unpacker, size_bytes, check_wanted)
            if unpacker.size_bytes == size_bytes and arrived != checksum:
                raise wrong_checksum()
            check_wanted()
            root.check_running()
            summary = unpacker.finish(size_bytes=size_bytes)
            root.check_running()
            return summary, skips.named


def _receive(
    connection: CopyConnection,
    unpacker: Unpacker,
    size_bytes: int,
    check_wanted: Callable[[], None],
) -> int:
    """Unpack what comes; return its checksum."""
    checksum = Checksum()
    while (piece := connection.receive()) is not None:
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
    """Return the error to report: a bug in the proxy, too, ends one copy and nothing else."""
    if isinstance(exc, PycrictlError):
        return exc
    if isinstance(exc, OSError):
        return CopyError(f"the proxy cannot copy: {os.strerror(exc.errno or 0).lower()}")
    return CopyError(f"the proxy failed: {type(exc).__name__}: {exc}")
