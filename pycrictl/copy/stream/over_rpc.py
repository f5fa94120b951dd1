"""Copying by the runtime's own calls, ``CopyToContainer`` and ``CopyFromContainer`` (KEP-4582).

A call carries the size and checksum of the archive, and the answer has a URL; the archive goes
through that. Whoever receives it shows nothing of it before it has arrived whole.

The calls name a container and a path, and nothing else. They cannot ask for other ways to make
files in the container (``-a``, ``--no-clobber``, ``--in-place``), or to follow its links (``-L``).
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from pycrictl._proto import cri_pb2
from pycrictl.copy.archive.archives import Incoming, Outgoing
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import take_apart
from pycrictl.copy.rules.summary import Summary
from pycrictl.copy.stream.connection import CopyConnection, open_stream
from pycrictl.copy.stream.transfer import Verdict, receive, send
from pycrictl.copy.tree.walk import OnSkip
from pycrictl.copy.tree.watch import Watch
from pycrictl.errors import Invalid, Unimplemented
from pycrictl.streaming.target import beside, parse_url
from pycrictl.units import quote

if TYPE_CHECKING:
    from pycrictl.copy.rules.outcome import Outcome
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.streaming.target import TlsFiles

MEASURE_S: Final = 600.0
"""How long a server may take to measure what is copied out of a container, at least."""

IDLE_S: Final = 60.0
"""How long a server may send nothing, or take nothing."""

OUTCOME_S: Final = 300.0
"""How long a server may take to put into its place what has arrived."""


class OverRpc:
    """The method ``rpc``.

    Args:
        client: of the runtime service.
        container_id: the full ID.
        tls: for URLs of https and wss.
        idle_s: how long the server may be silent in the middle of a stream.
        outcome_s: how long it may be silent at the end.
        has_others: another method will be tried if the server does not have these calls, so find
            that out before anything is read.
    """

    name = "rpc"

    def __init__(
        self,
        client: CriClient,
        container_id: str,
        *,
        tls: TlsFiles | None = None,
        idle_s: float = IDLE_S,
        outcome_s: float = OUTCOME_S,
        has_others: bool = True,
    ) -> None:
        self._client = client
        self._container_id = container_id
        self._tls = tls
        self._idle_s = idle_s
        self._outcome_s = outcome_s
        self._has_others = has_others

    @contextmanager
    def read(
        self, path: bytes, rules: Rules, watch: Watch, *, follow: bool = False
    ) -> Iterator[Outgoing]:
        """See ``Method``."""
        answer = self._ask_from(path, follow=follow)
        for on_total in (watch.on_total, watch.on_archive):
            if on_total is not None:
                on_total(answer.size)

        def pieces() -> Generator[memoryview, None, None]:
            verdict = Verdict()
            with self._opened(answer.url) as connection:
                for piece in receive(
                    connection, verdict, size_bytes=answer.size, crc32=answer.checksum
                ):
                    watch.on_bytes(len(piece))
                    yield piece
            archive.skipped = _report_skipped(verdict, watch.on_skip)

        text = take_apart(path)
        archive = Outgoing(pieces, b"." if text.wants_contents else text.name, is_counted=True)
        yield archive

    def write(self, archive: Incoming, path: bytes, rules: Rules, watch: Watch) -> Summary:
        """See ``Method``."""
        self._require_plain(rules)
        if archive.kind is not None and (self._has_others or archive.tree is None):
            self._probe()
        measured = archive.measured(rules, watch)
        url = self._ask_to(archive.address(path), measured.size_bytes, measured.crc32)
        if watch.on_total is not None and archive.tree is not None:
            watch.on_total(measured.size_bytes)
        with self._opened(url) as connection, closing(archive.pieces()) as pieces:
            found = send(
                connection,
                pieces,
                measured.size_bytes,
                outcome_s=self._outcome_s,
                on_bytes=watch.on_bytes,
            )
        return _summary(found, measured.summary, watch.on_skip)

    def _ask_from(self, path: bytes, *, follow: bool) -> cri_pb2.CopyFromContainerResponse:
        if follow:
            raise _unable("CopyFromContainer cannot follow links (-L)")
        request = cri_pb2.CopyFromContainerRequest(
            container_id=self._container_id, path=_text(path)
        )
        # The server reads all of it, and may write it, before it answers.
        timeout_s = max(self._client.timeout_s, MEASURE_S)
        answer: cri_pb2.CopyFromContainerResponse = self._client.call(
            "CopyFromContainer", request, timeout_s=timeout_s, what=self._what("from")
        )
        return answer

    def _ask_to(self, path: bytes, size_bytes: int, checksum: int) -> str:
        request = cri_pb2.CopyToContainerRequest(
            container_id=self._container_id, size=size_bytes, checksum=checksum, path=_text(path)
        )
        answer = self._client.call("CopyToContainer", request, what=self._what("to"))
        return str(answer.url)

    def _probe(self) -> None:
        """Ask for what no server does: whether it knows the call shows before anything is read."""
        request = cri_pb2.CopyToContainerRequest(container_id=self._container_id)
        with suppress(Invalid):
            self._client.call("CopyToContainer", request, what=self._what("to"))

    def _what(self, direction: str) -> str:
        return f"copying {direction} container {quote(self._container_id)}"

    @staticmethod
    def _require_plain(rules: Rules) -> None:
        asked = (
            (rules.archive, "keep modes, times and owners (-a)"),
            (rules.no_clobber, "leave existing files alone (--no-clobber)"),
            (rules.in_place, "write in place (--in-place)"),
        )
        for is_asked, what in asked:
            if is_asked:
                raise _unable(f"CopyToContainer cannot {what}")

    @contextmanager
    def _opened(self, url: str) -> Iterator[CopyConnection]:
        connection = open_stream(
            beside(parse_url(url), self._client.path),
            timeout_s=max(self._client.timeout_s, 1.0),
            idle_s=self._idle_s,
            tls=self._tls,
        )
        try:
            yield connection
        except BaseException:
            connection.abort()
            raise
        connection.close()


def _text(path: bytes) -> str:
    try:
        return path.decode()
    except UnicodeDecodeError:
        shown = quote(os.fsdecode(path))
        raise Unimplemented(
            f"the CRI can only name files in UTF-8, which {shown} is not",
            code="Unimplemented",
            hint="--method node can do it",
        ) from None


def _summary(found: Outcome, sent: Summary, on_skip: OnSkip) -> Summary:
    """Return what the server reports to have done, or what it was sent if it does not say."""
    for skipped in found.skipped:
        on_skip(skipped)
    if found.copied is not None:
        return found.copied
    sent.skipped = len(found.skipped)
    return sent


def _report_skipped(verdict: Verdict, on_skip: OnSkip) -> int:
    """Report what a server left out; return how much that is."""
    skipped = verdict.outcome.skipped if verdict.outcome is not None else ()
    for entry in skipped:
        on_skip(entry)
    return len(skipped)


def _unable(message: str) -> Unimplemented:
    return Unimplemented(
        message, code="Unimplemented", hint="--method node and --method exec can do it"
    )
