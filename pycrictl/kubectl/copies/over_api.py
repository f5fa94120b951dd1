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
   from the last acknowledgement (``_Session``; at the node ``copy.transfer.serving``).
4. Into a container, the agent stages the archive while it arrives, and the commit verifies it and
   makes it visible at once. Out of one, the pieces are unpacked beside the destination.

A session is in the agent's memory and ends with the agent; the client then begins anew and says so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NoReturn

from pycrictl.copy.archive.archives import BeginAnew, Incoming, Outgoing
from pycrictl.copy.rules import outcome
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import address, take_apart
from pycrictl.copy.transfer.flow import ignore, next_event, receive, send
from pycrictl.copy.transfer.messages import (
    Acknowledgement,
    Arriving,
    Content,
    Event,
    ResumableProtocol,
    StatusText,
)
from pycrictl.copy.tree.walk import Watch
from pycrictl.errors import (
    ConnectError,
    CopyError,
    Denied,
    Exhausted,
    NotFound,
    PycrictlError,
    RemoteProtocolError,
    StreamError,
    Unimplemented,
)
from pycrictl.foreign import count, mapping, parsed, text
from pycrictl.kubectl.copies.api import CopyApi, Forgotten, Lost, error_of
from pycrictl.kubectl.copies.patience import Patience
from pycrictl.kubectl.copies.saved import CopyRecord, Kept, Saved

_REFUSALS: Final = (CopyError, Denied, Exhausted, NotFound, Unimplemented)
"""What says that nothing has begun. An agent that does not answer may have."""

POLL_S: Final = 0.2
FINISH_RETRIES: Final = 5
"""How often a copy that is here is ended at an agent that does not answer: for some 6 s."""

MAX_SESSIONS: Final = 10
"""How many sessions are begun for one copy, as agents end or a node forgets them."""

_ANEW: Final = "the agent does not know the copy any more, as after a restart: it begins anew"

ABANDON_S: Final = 5.0
"""How long the end of the program may wait to say that the session is not wanted any more."""


@dataclass(eq=False)
class OverApi:
    """A ``Method`` for one pod. The record is the copy as asked for, but for its paths."""

    api: CopyApi
    record: CopyRecord
    saved: Saved
    patience: Patience
    resume: bool = False
    name = "cluster"

    @contextmanager
    def read(
        self, path: bytes, rules: Rules, watch: Watch, *, follow: bool = False
    ) -> Iterator[Outgoing]:
        text = take_apart(path)
        record = replace(self.record, path=os.fsdecode(path), direction="From")
        with self._session(record, _spec(record, path, rules, follow), watch) as session:

            def pieces() -> Generator[memoryview, None, None]:
                try:
                    yield from session.received()
                except Forgotten as exc:
                    session.begin_anew(exc)
                    raise BeginAnew(_ANEW) from None
                except StreamError as exc:
                    raise ConnectError(exc.message, hint=exc.hint) from exc
                session.finish()

            name = b"." if text.wants_contents else text.name
            try:
                yield Outgoing(pieces, name, is_whole=False)
            except StreamError as exc:  # the archive is wrong
                raise CopyError(exc.message, hint=exc.hint) from exc

    def write(self, archive: Incoming, path: bytes, rules: Rules, watch: Watch) -> Summary:
        found, sent = None, archive.measured(rules, watch)
        record = replace(
            self.record, path=os.fsdecode(path), direction="To",
            size_bytes=sent.size_bytes, crc32=sent.crc32,
        )  # fmt: skip
        spec = _spec(record, address(path, archive.kind), rules, False)
        with self._session(record, spec, watch) as session:
            if watch.on_total is not None:
                watch.on_total(sent.size_bytes)
            while found is None:
                try:
                    session.patience.insist(partial(session.send, archive, sent.size_bytes))
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
        if not (self.resume and session.take_up()):
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


@dataclass(eq=False)
class _Session:
    """A session at the agent; its successors, if the agent forgets it."""

    method: OverApi
    record: CopyRecord
    spec: dict[str, Any]
    watch: Watch
    kept: Kept = field(init=False)
    _left: int = MAX_SESSIONS
    _shown: int = 0
    _has_bytes: int = 0
    _sign_s: float = 0.0

    def __post_init__(self) -> None:
        method = self.method
        self._api, self._saved, self.patience = method.api, method.saved, method.patience

    def begin(self) -> None:
        session = os.urandom(16).hex()
        self.kept = self._saved.keep(replace(self.record, session=session))
        try:
            self.kept.expected_bytes = _expected(self._api.begin(self.spec, session))
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
        self.patience.insist(self.begin)  # an agent that has just started may not be reached yet

    def take_up(self) -> bool:
        """Take up the session of a program that was killed or gave up, if that can go on."""
        record, note = self.record, self.watch.note
        kept = self._saved.find(record)
        if kept is None:
            note("there is no interrupted copy to resume: it begins anew")
            return False
        self.kept = kept
        is_same = kept.record == replace(record, session=kept.record.session)
        failure, why = None, "the interrupted copy is gone"
        with suppress(Lost):
            found = self.patience.insist(lambda: self._api.get(self.kept.record.session))
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

    def send(self, archive: Incoming, size_bytes: int) -> None:
        """Send the rest of an archive over one connection."""
        protocol = ResumableProtocol(is_client=True, is_sender=True)
        with self._api.open(self.kept.record.session, 0) as link:
            self._take(next_event(link, protocol))
            offset = self._has_bytes
            if offset > size_bytes:
                raise RemoteProtocolError("the agent has more than there is")
            with closing(archive.pieces(offset)) as found:
                send(
                    link, protocol, found, self._take,
                    offset=offset, size_bytes=size_bytes, on_sent=self._check_silence,
                )  # fmt: skip
            while self._has_bytes < size_bytes:
                self._take(next_event(link, protocol))

    def _take(self, event: Event) -> None:
        if isinstance(event, StatusText):
            _refuse(event)
        elif isinstance(event, Acknowledgement):
            self._has_bytes, self._sign_s = event.offset, time.monotonic()
            self._progressed(event.offset)

    def _check_silence(self, _: int) -> None:
        if time.monotonic() - self._sign_s > self._api.idle_s:
            raise StreamError(f"the agent was silent for {self._api.idle_s:g} s")

    def received(self) -> Iterator[memoryview]:
        """Yield what has arrived and what arrives, and keep it; report its size once it is known.

        Archives for standard output are not kept, as nobody knows how much of one was used.
        """
        on_total = self.watch.on_total or ignore
        kept, arriving = self.kept, Arriving()
        if kept.record.local != "-":
            for piece in kept.arrived():
                arriving.take(Content(piece))
                yield piece
        if kept.expected_bytes:
            on_total(kept.expected_bytes)
        self._progressed(arriving.offset)
        protocol = ResumableProtocol(is_client=True, is_sender=False)
        while not arriving.is_whole:
            try:
                with self._api.open(kept.record.session, arriving.offset) as link:
                    for content in receive(
                        link, protocol, arriving, on_status=_refuse, on_taken=self._progressed
                    ):
                        kept.append(content, arriving.offset - len(content))
                        yield content
            except PycrictlError as exc:
                self.patience.bear(exc)
        on_total(arriving.offset)

    def committed(self) -> dict[str, Any]:
        """Let the node put what it has into its place, and wait for that.

        ``Forgotten``: the agent does not know the session, and has changed nothing.
        """
        attempts = 0

        def commit() -> dict[str, Any]:
            nonlocal attempts
            attempts += 1
            return self._api.commit(self.kept.record.session)

        try:
            while _status(found := self.patience.insist(commit)).get("phase") == "Committing":
                self.patience.renew()
                time.sleep(POLL_S)
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
            found = patience.insist(lambda: self._api.commit(self.kept.record.session))
        _report(found, self.watch)

    def abandon(self) -> None:
        with suppress(PycrictlError):
            self._api.abandon(self.kept.record.session, timeout_s=ABANDON_S)

    def _progressed(self, offset: int) -> None:
        if offset > self._shown:
            self.kept.touch()
            self.watch.on_bytes(offset - self._shown)
            self._shown = offset
            self.patience.renew()


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


def _refuse(status: StatusText) -> NoReturn:
    """Raise why the agent refuses to go on; see ``error_of``."""
    body = bytes(status.data)
    raise error_of(count(parsed(body).get("code")) or 500, body)
