"""What comes for a container: unpacked beside its destination as it arrives. It blocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from pycrictl.copy.archive.archives import Announced
from pycrictl.copy.node.on_node import OnNode
from pycrictl.copy.rules import outcome
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.summary import Summary
from pycrictl.copy.stream.connection import CHANNEL_END, OUTCOME, TO_CONTAINER, CopyConnection
from pycrictl.copy.tree.identity import Locate
from pycrictl.copy.tree.watch import Watch
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

    On any error nothing was changed, and the reason was sent to the client if it still listens.
    """
    skips = Skips()
    try:
        summary = OnNode(locate).write(
            Announced(_received(connection, check_wanted), size_bytes, checksum),
            path,
            rules,
            Watch(_ignore, skips.add),
        )
    except Exception as exc:
        on_done()
        connection.send(OUTCOME, outcome.encode_failure(to_error(exc)))
        raise
    on_done()
    connection.send(OUTCOME, outcome.encode_success(summary, skips.named))
    return summary


def _received(connection: CopyConnection, check_wanted: Callable[[], None]) -> Iterator[memoryview]:
    """Yield what comes, until the client has closed its channel."""
    while (piece := connection.receive()) is not None:
        check_wanted()
        if piece.channel == TO_CONTAINER:
            yield piece.data
        elif piece.channel == CHANNEL_END and bytes(piece.data) == bytes((TO_CONTAINER,)):
            return
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


def _ignore(_: int) -> None:
    """Count nothing."""
