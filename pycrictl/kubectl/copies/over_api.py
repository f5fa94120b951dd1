"""Copying by the API of the agents: a session at the node, and its bytes in pieces.

1. This module measures the archive (into a container), records the copy (``saved``), and creates
   a session under a name of its own, so that even an interrupted creation can be cancelled.
2. The API server authorizes ``pods/containercopies`` and forwards to any agent.
   ``agent.copies.handlers`` checks ``create pods/exec`` as well and forwards to the agent of the
   pod's node (``forwarding``), which finds the container and checks quotas and disk space
   (``service``). Out of a container, the archive is made in the spool meanwhile.
3. The bytes go over a WebSocket in pieces with offset and checksum (``copy.transfer.messages``),
   since neither the API server nor ``kubectl proxy`` cuts it after 60 seconds. The receiver
   acknowledges what it has. After an interruption either end reconnects and continues
   from the last acknowledgement (``transfer``; at the node ``copy.transfer.serving``).
4. Into a container, the agent stages the archive while it arrives, and the commit verifies it and
   makes it visible at once. Out of one, the pieces are unpacked beside the destination.

A session is in the agent's memory and ends with the agent; the client then begins anew and says so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from pycrictl.copy.archive.archives import BeginAnew, Incoming, Outgoing
from pycrictl.copy.rules import outcome
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import address, take_apart
from pycrictl.copy.transfer.flow import ignore
from pycrictl.copy.transfer.messages import Arriving, Content
from pycrictl.copy.tree.walk import Watch
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
from pycrictl.kubectl.copies.api import CopyApi, Forgotten, Lost
from pycrictl.kubectl.copies.patience import Patience
from pycrictl.kubectl.copies.saved import CopyRecord, Kept, Saved
from pycrictl.kubectl.copies.transfer import Reconnecting

_REFUSALS: Final = (CopyError, Denied, Exhausted, NotFound, Unimplemented)
"""What says that nothing has begun. An agent that does not answer may have."""

POLL_S: Final = 0.2
LONGEST_POLL_S: Final = 2.0
FINISH_RETRIES: Final = 5
"""How often a copy that is here is ended at an agent that does not answer: for some 6 s."""

MAX_SESSIONS: Final = 10
"""How many sessions are begun for one copy, as agents end or a node forgets them."""

_ANEW: Final = "the agent does not know the copy any more, as after a restart: it begins anew"

ABANDON_S: Final = 5.0
"""How long the end of the program may wait to say that the session is not wanted any more."""


class OverApi:
    """A ``Method`` for one pod. The record is the copy as asked for, but for its paths."""

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
        self.api = api
        self.saved = saved
        self.patience = patience
        self.idle_s = idle_s
        self._record = record
        self._resume = resume

    @contextmanager
    def read(
        self, path: bytes, rules: Rules, watch: Watch, *, follow: bool = False
    ) -> Iterator[Outgoing]:
        text = take_apart(path)
        record = replace(self._record, path=os.fsdecode(path), direction="From")
        broken: list[StreamError] = []
        with self._session(record, _spec(record, path, rules, follow), watch) as session:

            def pieces() -> Generator[memoryview, None, None]:
                try:
                    yield from session.received()
                except Forgotten as exc:
                    session.begin_anew(exc)
                    raise BeginAnew(_ANEW) from None
                except StreamError as exc:
                    broken.append(exc)
                    raise
                session.finish()

            archive = Outgoing(
                pieces,
                b"." if text.wants_contents else text.name,
                is_whole=False,
            )
            try:
                yield archive
            except StreamError as exc:
                if exc in broken:
                    raise
                # What is wrong with the archive is no connection that broke.
                raise CopyError(exc.message, hint=exc.hint) from exc

    def write(self, archive: Incoming, path: bytes, rules: Rules, watch: Watch) -> Summary:
        found, sent = None, archive.measured(rules, watch)
        record = replace(
            self._record,
            path=os.fsdecode(path),
            direction="To",
            size_bytes=sent.size_bytes,
            crc32=sent.crc32,
        )
        spec = _spec(record, address(path, archive.kind), rules, False)
        with self._session(record, spec, watch) as session:
            if watch.on_total is not None:
                watch.on_total(sent.size_bytes)
            while found is None:
                try:
                    session.send(archive.pieces, sent.size_bytes)
                    found = session.committed()
                except Forgotten as exc:
                    session.begin_anew(exc)
                    watch.note(_ANEW)
        return _report(found, watch) or sent.summary

    @contextmanager
    def _session(
        self, record: CopyRecord, spec: dict[str, Any], watch: Watch
    ) -> Iterator[_Session]:
        """Begin a session, or take one up; whatever ends this but a kill ends the session."""
        session = _Session(self, record, spec, watch)
        if not (self._resume and session.take_up()):
            session.begin()
        try:
            yield session
        except BaseException as exc:
            kept = session.kept
            if isinstance(exc, PycrictlError) and not isinstance(exc, CopyError | NotFound):
                kept.touch()  # it broke for longer than there was patience for: it can go on
                kept.release()
                exc.hint = exc.hint or "rerun with --resume within 15 minutes to continue"
                raise
            session.abandon()
            kept.remove()
            raise
        session.kept.remove()


class _Session(Reconnecting):
    """A session at the agent; its successors, if the agent forgets it."""

    kept: Kept

    def __init__(
        self, method: OverApi, record: CopyRecord, spec: dict[str, Any], watch: Watch
    ) -> None:
        super().__init__(method.api, "", method.patience, self._count, idle_s=method.idle_s)
        self._saved = method.saved
        self._record = record
        self._spec = spec
        self._watch = watch
        self._left = MAX_SESSIONS

    def begin(self) -> None:
        self.session = os.urandom(16).hex()
        self.kept = self._saved.keep(replace(self._record, session=self.session))
        try:
            self.kept.expected_bytes = _expected(self._api.begin(self._spec, self.session))
        except BaseException as exc:
            if not isinstance(exc, _REFUSALS):
                self.abandon()
            self.kept.remove()
            raise

    def begin_anew(self, why: Forgotten) -> None:
        self._left -= 1
        if not self._left:
            raise why
        self.kept.remove()
        self._patience.insist(self.begin)  # an agent that has just started may not be reached yet

    def take_up(self) -> bool:
        """Take up the session of a program that was killed or gave up, if that can go on."""
        record, note = self._record, self._watch.note
        kept = self._saved.find(record)
        if kept is None:
            note("there is no interrupted copy to resume: it begins anew")
            return False
        self.kept, self.session = kept, kept.record.session
        is_same = record.direction == "From" or (
            (record.size_bytes, record.crc32) == (kept.record.size_bytes, kept.record.crc32)
        )
        failure, why = None, "the interrupted copy is gone"
        with suppress(Lost):
            found = self._patience.insist(lambda: self._api.get(self.session))
            if is_same and _status(found).get("phase") in ("Measuring", "Transferring"):
                kept.expected_bytes = _expected(found)
                return True
            failure = _failure(found)
            if not is_same:
                why = "the source has changed since the copy was interrupted"
        self.abandon()
        kept.remove()
        if failure is not None:
            raise failure
        note(f"{why}: it begins anew")
        return False

    def received(self) -> Iterator[memoryview]:
        """Yield what has arrived and what arrives, and keep it; report its size once it is known.

        Archives for standard output are not kept, as nobody knows how much of one was used.
        """
        on_total = self._watch.on_total or ignore
        kept, arriving = self.kept, Arriving()
        if kept.record.local != "-":
            for piece in kept.arrived():
                arriving.take(Content(piece))
                yield piece
        if kept.expected_bytes:
            on_total(kept.expected_bytes)
        for content in self.receive(arriving):
            kept.append(content, arriving.offset - len(content))
            yield content
        on_total(arriving.offset)

    def committed(self) -> dict[str, Any]:
        """Let the node put what it has into its place, and wait for that.

        ``Forgotten``: the agent does not know the session, and has changed nothing.
        """
        attempts, pause_s = 0, POLL_S

        def commit() -> dict[str, Any]:
            nonlocal attempts
            attempts += 1
            return self._api.commit(self.session)

        try:
            found = self._patience.insist(commit)
            attempts += 1
            while _status(found).get("phase") == "Committing":
                time.sleep(pause_s)
                pause_s = min(pause_s * 1.5, LONGEST_POLL_S)
                found = self._patience.insist(lambda: self._api.get(self.session))
                self._patience.renew()
        except Forgotten:
            if attempts == 1:
                raise
            raise CopyError(
                "the agent was restarted while the copy was put into its place:"
                " see whether it is there before you copy again"
            ) from None
        if (failure := _failure(found)) is not None:
            raise failure
        return found

    def finish(self) -> None:
        """Report what the node left out, and end the session."""
        found: dict[str, Any] = {}
        with suppress(PycrictlError):  # everything is here already
            patience = Patience(ignore, retries=FINISH_RETRIES)
            found = patience.insist(lambda: self._api.commit(self.session))
        _report(found, self._watch)

    def abandon(self) -> None:
        with suppress(PycrictlError):
            self._api.abandon(self.session, timeout_s=ABANDON_S)

    def _count(self, count: int) -> None:
        self.kept.touch()
        self._watch.on_bytes(count)


def _spec(record: CopyRecord, path: bytes, rules: Rules, follow: bool) -> dict[str, Any]:
    is_to = record.direction == "To"
    return {
        "direction": record.direction,
        "container": record.container,
        "path": os.fsdecode(path),
        **({"size": record.size_bytes, "checksum": record.crc32} if is_to else {}),
        "options": {
            "archive": rules.archive,
            "followLinks": follow,
            "overwrite": not (rules.no_clobber and is_to),
            "early": not is_to,
        },
    }


def _failure(found: dict[str, Any]) -> CopyError | None:
    status = _status(found)
    if status.get("phase") != "Failed":
        return None
    message = text(status.get("message")) or "the agent does not say why"
    return Lost(message) if status.get("code") == 410 else CopyError(message)


def _status(found: dict[str, Any]) -> dict[str, Any]:
    if not (status := mapping(found.get("status"))):
        raise RemoteProtocolError("the agent's answer is not a copy")
    return status


def _expected(found: dict[str, Any]) -> int:
    status = _status(found)
    return count(status.get("size", status.get("expectedSize")))


def _report(found: dict[str, Any], watch: Watch) -> Summary | None:
    """Report what the node has left out; return what was copied, if that is said."""
    result = mapping(found, "status", "outcome")
    done = outcome.of_status(result) if result else outcome.Outcome()
    done.report(watch.on_skip)
    return done.copied
