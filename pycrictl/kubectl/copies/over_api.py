"""Copying by the API of the agents: a session at the node, and its bytes in pieces.

Both ends show nothing of what arrives before it has arrived whole. What breaks on the way is opened
again, and goes on where it was (``transfer``).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pycrictl.copy.archive.census import Census
from pycrictl.copy.archive.measure import measure
from pycrictl.copy.archive.pieces import PIECE_BYTES, Arriving
from pycrictl.copy.archive.spool import Spool
from pycrictl.copy.archive.unpack import Unpacker
from pycrictl.copy.method import Watch
from pycrictl.copy.rules import outcome
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import as_archive, not_as_archive, take_apart
from pycrictl.copy.rules.summary import Summary
from pycrictl.copy.tree.places import LocalRoot, open_destination, open_source
from pycrictl.errors import (
    CopyError,
    Denied,
    Exhausted,
    NotFound,
    PycrictlError,
    RemoteProtocolError,
    StreamError,
    Unimplemented,
)
from pycrictl.foreign import count, mapping, text
from pycrictl.kubectl.copies.api import CopyApi, Lost
from pycrictl.kubectl.copies.parts import file_pieces, tree_pieces
from pycrictl.kubectl.copies.patience import Patience
from pycrictl.kubectl.copies.saved import CopyRecord, Kept, Saved
from pycrictl.kubectl.copies.transfer import Transfer

_REFUSALS: Final = (CopyError, Denied, Exhausted, NotFound, Unimplemented)
"""What says that nothing has begun. An agent that does not answer may have."""

POLL_S: Final = 0.2
LONGEST_POLL_S: Final = 2.0
FINISH_RETRIES: Final = 5
"""How often a copy that is here is ended at an agent that does not answer: for some 6 s."""

ABANDON_S: Final = 5.0
"""How long the end of the program may wait to say that the session is not wanted any more."""


class OverApi:
    """A ``Method`` for one pod; see there.

    Args:
        api: of the pod.
        record: the copy as asked for; its paths are filled in.
        saved: keeps it while it runs.
        patience: says what is tried again.
        resume: take up a copy that a killed program has left.
        idle_s: how long the agent may be silent.
    """

    name = "cluster"

    def __init__(
        self,
        api: CopyApi,
        record: CopyRecord,
        saved: Saved,
        patience: Patience,
        *,
        resume: bool = False,
        idle_s: float = 30.0,
    ) -> None:
        self._api = api
        self._record = record
        self._saved = saved
        self._patience = patience
        self._resume = resume
        self._idle_s = idle_s

    def copy_from(
        self, path: bytes, local: bytes, rules: Rules, watch: Watch, *, follow: bool = False
    ) -> Summary:
        """Copy out of the container."""
        text = take_apart(path)
        name = b"." if text.wants_contents else text.name
        record = self._asked(path, local, "From")
        with (
            open_destination(LocalRoot(), local) as destination,
            self._session(record, self._spec("From", path, rules, follow), watch) as kept,
            Unpacker(destination, rules, on_skip=watch.on_skip, name=name) as unpacker,
        ):
            arriving = Arriving()
            has_bytes = kept.open_arrived()
            for piece in file_pieces(kept.fd, 0, has_bytes):
                arriving.add(piece)
                with _of_archive():
                    unpacker.receive_data(piece)

            def take(content: memoryview) -> None:
                kept.append(content, arriving.offset - len(content))
                with _of_archive():
                    unpacker.receive_data(content)

            self._receive(kept, arriving, take, watch)
            with _of_archive():
                summary = unpacker.finish(size_bytes=arriving.size_bytes)
            summary.skipped += self._finish_from(kept, watch)
            return summary

    def copy_to(
        self, local: bytes, path: bytes, rules: Rules, watch: Watch, *, follow: bool = False
    ) -> Summary:
        """Copy into the container."""
        record = self._asked(path, local, "To")
        with open_source(LocalRoot(), local, follow=follow) as source:
            measured = measure(source, on_skip=watch.on_skip, rules=rules)
            record = replace(record, size_bytes=measured.size_bytes, crc32=measured.crc32)
            spec = self._spec("To", not_as_archive(path), rules, follow, record)
            return self._send(record, spec, partial(tree_pieces, source), measured.summary, watch)

    def pack_from(
        self, path: bytes, rules: Rules, watch: Watch, *, follow: bool = False
    ) -> Generator[memoryview, None, Summary]:
        """Yield what is at ``path`` as an archive."""
        record = self._asked(path, b"-", "From")
        with (
            self._session(record, self._spec("From", path, Rules(), follow), watch) as kept,
            Spool() as spool,
        ):
            # The archive is spooled: what is written to a pipe cannot be taken back if the rest of
            # it is damaged, and who reads the pipe may be slower than the agent is patient.
            arriving = Arriving()
            census = Census(rules)

            def take(content: memoryview) -> None:
                with _of_archive():
                    census.receive_data(content)
                spool.write(content)

            self._receive(kept, arriving, take, watch)
            with _of_archive():
                census.finish()
            spool.finish()
            self._finish_from(kept, watch)
            yield from spool.pieces(memoryview(bytearray(PIECE_BYTES)))
        return census.summary

    def unpack_to(self, stream: int, path: bytes, rules: Rules, watch: Watch) -> Summary:
        """Unpack an archive, which comes from a descriptor, into a directory of the container."""
        census = Census(rules)
        with Spool() as spool:
            buffer = memoryview(bytearray(PIECE_BYTES))
            while count := os.readv(stream, [buffer]):
                spool.write(buffer[:count])
                census.receive_data(buffer[:count])
            census.finish()
            spool.finish()
            record = replace(
                self._asked(path, b"-", "To"), size_bytes=spool.size_bytes, crc32=spool.crc32
            )
            spec = self._spec("To", as_archive(path), rules, False, record)
            size_bytes = spool.size_bytes
            watch.note_names(has_absolute=census.has_absolute)
            return self._send(
                record,
                spec,
                lambda offset: file_pieces(spool.fd, offset, size_bytes),
                census.summary,
                watch,
            )

    # Sessions

    def _asked(self, path: bytes, local: bytes, direction: str) -> CopyRecord:
        shown = os.fsdecode(local)
        return replace(
            self._record,
            path=os.fsdecode(path),
            local=shown if shown == "-" else os.path.abspath(shown),  # noqa: PTH100 (of a final slash, too)
            direction=direction,
        )

    def _spec(
        self,
        direction: str,
        path: bytes,
        rules: Rules,
        follow: bool,
        record: CopyRecord | None = None,
    ) -> dict[str, Any]:
        """Return the ``spec`` of the object that begins a session."""
        return {
            "direction": direction,
            "container": self._record.container,
            "path": os.fsdecode(path),
            **({"size": record.size_bytes, "checksum": record.crc32} if record else {}),
            "options": {
                "archive": rules.archive,
                "followLinks": follow and direction == "From",
                "overwrite": not (rules.no_clobber and direction == "To"),
                "early": direction == "From",
            },
        }

    @contextmanager
    def _session(self, record: CopyRecord, spec: dict[str, Any], watch: Watch) -> Iterator[Kept]:
        """Begin a session, or take one up; whatever ends this but a kill ends the session."""
        kept = self._found(record, watch) if self._resume else None
        if kept is None:
            kept = self._begun(record, spec)
        try:
            yield kept
        except BaseException as exc:
            if isinstance(exc, PycrictlError) and not isinstance(exc, CopyError | NotFound):
                kept.touch()  # it broke for longer than there was patience for: it can go on
                kept.release()
                exc.hint = exc.hint or "with --resume it goes on, for 15 minutes from now"
                raise
            self._abandon(kept.record.session)
            kept.remove()
            raise
        kept.remove()

    def _begun(self, record: CopyRecord, spec: dict[str, Any]) -> Kept:
        kept = self._saved.keep(replace(record, session=os.urandom(16).hex()))
        session = kept.record.session
        try:
            kept.expected_bytes = _expected(self._api.begin(spec, session))
        except BaseException as exc:
            if not isinstance(exc, _REFUSALS):
                self._abandon(session)
            kept.remove()
            raise
        return kept

    def _found(self, record: CopyRecord, watch: Watch) -> Kept | None:
        """Return what a killed program has left of the same copy, if it can go on."""
        kept = self._saved.find(record)
        note = watch.on_note or _ignore_note
        if kept is None:
            note("no copy of these that was interrupted is known: it begins anew")
            return None
        is_same = record.direction == "From" or (
            (record.size_bytes, record.crc32) == (kept.record.size_bytes, kept.record.crc32)
        )
        try:
            found = self._patience.insist(lambda: self._api.get(kept.record.session))
            if is_same and _status(found).get("phase") in ("Measuring", "Transferring"):
                kept.expected_bytes = _expected(found)
                return kept
        except Lost:
            is_same = True
        note(
            "the interrupted copy is gone: it begins anew"
            if is_same
            else "the source has changed since the copy was interrupted: it begins anew"
        )
        self._abandon(kept.record.session)
        kept.remove()
        return None

    def _send(
        self,
        record: CopyRecord,
        spec: dict[str, Any],
        pieces: Callable[[int], Generator[memoryview, None, None]],
        sent: Summary,
        watch: Watch,
    ) -> Summary:
        with self._session(record, spec, watch) as kept:
            if watch.on_total is not None:
                watch.on_total(record.size_bytes)
            self._transfer(kept, watch).send(pieces, record.size_bytes)
            found = self._committed(kept.record.session)
            result = _outcome(found)
        for skipped in result.skipped:
            watch.on_skip(skipped)
        if result.copied is not None:
            return result.copied
        sent.skipped = len(result.skipped)
        return sent

    def _committed(self, session: str) -> dict[str, Any]:
        """Let the node put what it has into its place, and wait for that."""
        while True:
            found = self._patience.insist(lambda: self._api.commit(session))
            found = self._settled(session, found)
            if _status(found).get("phase") == "Succeeded":
                return found
            # The agent was restarted before it changed anything: once more.
            time.sleep(POLL_S)

    def _settled(self, session: str, found: dict[str, Any]) -> dict[str, Any]:
        """Wait until the node has put a copy into its place.

        Raises:
            CopyError: it has failed.
        """
        pause_s = POLL_S
        while _status(found).get("phase") == "Committing":
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LONGEST_POLL_S)
            found = self._patience.insist(lambda: self._api.get(session))
            self._patience.renew()
        status = _status(found)
        if status.get("phase") == "Failed":
            message = text(status.get("message")) or "the agent does not say why"
            raise Lost(message) if status.get("code") == 410 else CopyError(message)
        return found

    def _finish_from(self, kept: Kept, watch: Watch) -> int:
        """Report what the node left out, and end the session; return how much that was."""
        session = kept.record.session
        found: dict[str, Any] = {}
        with suppress(PycrictlError):  # everything is here already
            patience = Patience(_ignore_note, retries=FINISH_RETRIES)
            found = patience.insist(lambda: self._api.commit(session))
        result = _outcome(found)
        for skipped in result.skipped:
            watch.on_skip(skipped)
        return len(result.skipped)

    def _receive(
        self, kept: Kept, arriving: Arriving, take: Callable[[memoryview], None], watch: Watch
    ) -> None:
        """Receive the rest of an archive; report its size as soon as it is known."""
        on_total = watch.on_total or _ignore
        if kept.expected_bytes:
            on_total(kept.expected_bytes)
        self._transfer(kept, watch).receive(arriving, take)
        on_total(arriving.offset)

    def _transfer(self, kept: Kept, watch: Watch) -> Transfer:
        def on_bytes(count: int) -> None:
            kept.touch()
            watch.on_bytes(count)

        return Transfer(
            self._api, kept.record.session, self._patience, on_bytes, idle_s=self._idle_s
        )

    def _abandon(self, session: str) -> None:
        with suppress(PycrictlError):
            self._api.abandon(session, timeout_s=ABANDON_S)


@contextmanager
def _of_archive() -> Iterator[None]:
    """Let what is wrong with an archive be told from a connection that broke."""
    try:
        yield
    except StreamError as exc:
        raise CopyError(exc.message, hint=exc.hint) from exc


def _status(found: dict[str, Any]) -> dict[str, Any]:
    status = found.get("status")
    if not isinstance(status, dict):
        raise RemoteProtocolError("the agent's answer is not a copy")
    return status


def _expected(found: dict[str, Any]) -> int:
    """Return how long the archive of a copy is, or will be; 0 if that is not known."""
    status = _status(found)
    return count(status.get("size", status.get("expectedSize")))


def _outcome(found: dict[str, Any]) -> outcome.Outcome:
    """Return what the node says that it did."""
    result = mapping(found.get("status")).get("outcome")
    if result is None:
        return outcome.Outcome()
    return outcome.decode(json.dumps(result).encode())


def _ignore(_: int) -> None:
    """Count nothing."""


def _ignore_note(_: str) -> None:
    """Report nothing."""
