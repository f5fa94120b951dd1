"""Copying by the runtime's own calls, ``CopyToContainer`` and ``CopyFromContainer`` (KEP-4582).

A call tells the receiver the archive's size and checksum, and returns a URL for the transfer. The
receiver makes no file visible before the whole archive has arrived.

The calls name only a container and a path. They have no options for how files are created in the
container (``-a``), or for following its links (``-L``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import (
    CopyError,
    Invalid,
    RemoteProtocolError,
    RuntimeFault,
    StreamError,
    Unimplemented,
)
from pycrictl.base.units import quote, short_id
from pycrictl.copy.archive.archives import Archive, Outgoing, from_server
from pycrictl.copy.rules import outcome
from pycrictl.copy.rules.outcome import Outcome, Summary
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import address
from pycrictl.copy.transfer.messages import (
    FROM_CONTAINER,
    STREAM_PROTOCOL,
    TO_CONTAINER,
    Arriving,
    ChannelProtocol,
    Event,
    StatusText,
    next_event,
    receive,
    send,
)
from pycrictl.copy.tree.walk import Watch
from pycrictl.streams.target import beside, parse_url

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from pycrictl.copy.transfer.link import SocketLink
    from pycrictl.runtime.cri.calls.client import CriClient
    from pycrictl.streams.target import TlsFiles

log = logging.getLogger("pycrictl.copy")

MEASURE_S: Final = 600.0
"""The minimum timeout for a server to measure a copy out of a container."""

SERVER_IDLE_S: Final = 60.0
"""The timeout of each read from and write to a server."""

OUTCOME_S: Final = 300.0
"""How long a server may take to move a received copy into place."""

_LAST_WORD_S: Final = 2.0


@dataclass(eq=False)
class OverRpc:
    """Copies by the runtime's own calls: ``cp --method rpc``.

    Attributes:
        idle_s: how long the server may be silent during the transfer.
        outcome_s: how long it may be silent after the transfer, before it reports the outcome.
    """

    client: CriClient
    container_id: str
    tls: TlsFiles | None = None
    idle_s: float = SERVER_IDLE_S
    outcome_s: float = OUTCOME_S
    name = "rpc"

    @contextmanager
    def read(self, path: bytes, rules: Rules, watch: Watch) -> Iterator[Outgoing]:
        if rules.follow:
            raise _unable("CopyFromContainer cannot follow links (-L)")
        request = cri_pb2.CopyFromContainerRequest(container_id=self.container_id, path=_text(path))
        # The server reads the whole source, and may spool it, before it responds.
        timeout_s = max(self.client.timeout_s, MEASURE_S)
        answer: cri_pb2.CopyFromContainerResponse = self._call(
            "CopyFromContainer", request, "from", timeout_s=timeout_s
        )
        if watch.on_total is not None:
            watch.on_total(answer.size)

        def pieces() -> Generator[memoryview, None, None]:
            protocol = ChannelProtocol(FROM_CONTAINER, is_client=True)
            arriving, statuses = Arriving(answer.size, answer.checksum), list[StatusText]()
            with self._opened(answer.url) as link:
                for piece in receive(link, protocol, arriving, on_status=statuses.append):
                    watch.on_bytes(len(piece))
                    yield piece
                result = _success(statuses[0])
                arriving.check()
            result.report(watch.on_skip, watch.note)

        yield from_server(path, pieces)

    def write(self, archive: Archive, path: bytes, rules: Rules, watch: Watch) -> Summary:
        if rules.archive:
            raise _unable("CopyToContainer cannot keep modes, times and owners (-a)")
        # Every server with this call rejects an empty path: test that before anything is read.
        with suppress(Invalid):
            self._ask_to(b"", 0, 0)
        measured = archive.measured(rules, watch)
        url = self._ask_to(address(path, archive.kind), measured.size_bytes, measured.crc32)
        if watch.on_total is not None and archive.tree is not None:
            watch.on_total(measured.size_bytes)
        with self._opened(url) as link, closing(archive.pieces()) as pieces:
            result = _put(link, pieces, measured.size_bytes, self.outcome_s, watch.on_bytes)
        result.report(watch.on_skip, watch.note)
        return result.copied or measured.summary

    def _ask_to(self, path: bytes, size_bytes: int, checksum: int) -> str:
        request = cri_pb2.CopyToContainerRequest(
            container_id=self.container_id, size=size_bytes, checksum=checksum, path=_text(path)
        )
        return str(self._call("CopyToContainer", request, "to").url)

    def _call(self, name: str, request: Message, direction: str, **terms: Any) -> Any:
        action = f"copying {direction} container {quote(short_id(self.container_id))}"
        try:
            return self.client.call(name, request, action=action, **terms)
        except RuntimeFault as exc:
            # A proxy's text is a complete message about the copy, the same as from method ``node``.
            _, is_own, text = exc.message.partition("pycrictl proxy: ")
            if is_own:
                exc.message, exc.args = text, (text,)
            raise

    def _opened(self, url: str) -> SocketLink:
        from pycrictl.copy.transfer.link import open_link  # noqa: PLC0415 (only if needed)

        target = beside(parse_url(url), self.client.path)
        return open_link(
            target,
            STREAM_PROTOCOL,
            label=quote(target.label),
            timeout_s=max(self.client.timeout_s, 1.0),
            idle_s=self.idle_s,
            tls=self.tls,
        )


def _wait(link: SocketLink, protocol: ChannelProtocol) -> Outcome:
    """Wait for the outcome, and return it if it is a success."""
    while not isinstance(event := next_event(link, protocol), StatusText):
        pass
    return _success(event)


def _success(status: StatusText) -> Outcome:
    if len(status.data) > outcome.MAX_BYTES:
        raise RemoteProtocolError("the server's report on the copy is too long")
    result = outcome.decode(bytes(status.data))
    if result.failure:
        raise CopyError(result.failure)
    return result


def _put(
    link: SocketLink,
    pieces: Iterable[memoryview],
    size_bytes: int,
    outcome_s: float,
    on_bytes: Callable[[int], None],
) -> Outcome:
    """Send an archive, and wait until the server has moved it into place.

    Raises:
        CopyError: the server reports a failure, or the size of the archive has changed.
        StreamError: the connection broke, or there is no outcome.
        KeyboardInterrupt: nothing was changed, or a warning says that this is unknown.
    """
    protocol = ChannelProtocol(TO_CONTAINER, is_client=True)

    def on_event(event: Event) -> None:
        if isinstance(event, StatusText):
            _success(event)
            raise RemoteProtocolError("the server reported success before it had everything")

    try:
        send(link, protocol, pieces, on_event, size_bytes=size_bytes, on_sent=on_bytes)
        link.send(*protocol.end(size_bytes, 0))
    except RemoteProtocolError:
        raise
    except StreamError as exc:
        link.set_idle(_LAST_WORD_S)
        try:  # a server that disconnected may have sent a reason
            _wait(link, protocol)
        except StreamError:
            raise exc from None
        raise
    link.set_idle(outcome_s)
    try:
        return _wait(link, protocol)
    except (KeyboardInterrupt, SystemExit):  # the server may be moving everything into place
        log.warning("the server did not report the outcome; the copy may still be completed")
        raise


def _text(path: bytes) -> str:
    try:
        return path.decode()
    except UnicodeDecodeError:
        shown = quote(os.fsdecode(path))
        raise Unimplemented(
            f"the CRI can only name files in UTF-8, which {shown} is not",
            hint="use --method node",
        ) from None


def _unable(message: str) -> Unimplemented:
    return Unimplemented(message, hint="use --method node")
