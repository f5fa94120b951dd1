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
   from the last acknowledgement (``OverApi``; at the node ``copy.transfer.serving``).
4. Into a container, the agent stages the archive while it arrives, and the commit verifies it and
   makes it visible at once. Out of one, the pieces are unpacked beside the destination.

A session is in the agent's memory and ends with the agent; the client then starts over with a note.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any, Final, NoReturn

from pycrictl.copy.archive.archives import BeginAnew, Incoming, Outgoing, from_server
from pycrictl.copy.rules import outcome
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import ContainerPath, address
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
from pycrictl.kubectl import api_errors
from pycrictl.kubectl.copies.api import CopyApi, Forgotten, Lost, RetryPolicy, error_of
from pycrictl.kubectl.copies.saved import CopyRecord, Saved
from pycrictl.kubectl.kubectl_proxy import KubectlProxy
from pycrictl.kubectl.pod_selection import check_name, namespace_of
from pycrictl.kubectl.program import Kubectl

_REFUSALS: Final = (CopyError, Denied, Exhausted, NotFound, Unimplemented)
"""Errors that mean that no session was created; without an answer, there may be one."""

POLL_S: Final = 0.2
FINISH_RETRIES: Final = 5
"""Retries to end a complete copy at an agent that does not answer: for some 6 s."""

MAX_SESSIONS: Final = 10
"""Maximum number of sessions for one copy: agents may end or lose them."""

_ANEW: Final = "the agent no longer knows the copy, as after a restart: starting over"

ABANDON_S: Final = 5.0
"""Time limit for abandoning the session at the end of the program."""


@dataclass(eq=False)
class OverApi:
    """A ``Method`` for one copy of one pod, with its session at the agent, or successive ones.

    Attributes:
        record: the copy as far as it is known; its spec contains the container.
    """

    api: CopyApi
    record: CopyRecord
    saved: Saved
    retry_policy: RetryPolicy
    resume: bool = False
    name = "cluster"
    _watch: Watch = field(init=False)
    _left: int = MAX_SESSIONS
    _shown: int = 0
    _reached: int = 0
    _has_bytes: int = 0
    _sign_s: float = 0.0

    @contextmanager
    def read(
        self, path: bytes, rules: Rules, watch: Watch, *, follow: bool = False
    ) -> Iterator[Outgoing]:
        options = {"archive": rules.archive, "followLinks": follow, "early": True}

        def pieces() -> Generator[memoryview, None, None]:
            try:
                yield from self._received()
            except Forgotten as exc:
                self._begin_anew(exc)
                raise BeginAnew(_ANEW) from None
            except StreamError as exc:
                raise ConnectError(exc.message, hint=exc.hint) from exc
            self._finish()

        with self._session(path, {"direction": "From", "options": options}, watch):
            try:
                yield from_server(path, pieces, is_whole=False)
            except StreamError as exc:  # the archive is invalid
                raise CopyError(exc.message, hint=exc.hint) from exc

    def write(self, archive: Incoming, path: bytes, rules: Rules, watch: Watch) -> Summary:
        found, sent = None, archive.measured(rules, watch)
        options = {"archive": rules.archive, "overwrite": not rules.no_clobber}
        asked = {"direction": "To", "size": sent.size_bytes, "checksum": sent.crc32}
        path = address(path, archive.kind)
        with self._session(path, {**asked, "options": options}, watch):
            if watch.on_total is not None:
                watch.on_total(sent.size_bytes)
            while found is None:
                try:
                    self.retry_policy.call(partial(self._send, archive, sent.size_bytes))
                    found = self._committed()
                except Forgotten as exc:
                    self._begin_anew(exc)
                    watch.note(_ANEW)
        return _report(found, watch) or sent.summary

    # The session

    @contextmanager
    def _session(self, path: bytes, asked: dict[str, Any], watch: Watch) -> Iterator[None]:
        """Begin or resume a session; end it unless a failed connection lets it be resumed."""
        spec = {**self.record.spec, **asked, "path": os.fsdecode(path)}
        self.record, self._watch = replace(self.record, spec=spec), watch
        if not (self.resume and self._take_up()):
            self._begin()
        try:
            yield
        except BaseException as exc:
            if isinstance(exc, PycrictlError) and not isinstance(exc, CopyError | NotFound):
                self.saved.touch()  # retries are used up, but the copy can be resumed
                self.saved.release()
                exc.hint = exc.hint or "rerun with --resume within 15 minutes to continue"
                raise
            self._abandon()
            raise
        self.saved.remove()

    def _begin(self) -> None:
        session = os.urandom(16).hex()
        self.saved.keep(replace(self.record, session=session))
        try:
            self.saved.expected_bytes = _expected(self.api.begin(self.record.spec, session))
        except _REFUSALS:
            self.saved.remove()
            raise
        except BaseException:
            self._abandon()
            raise

    def _begin_anew(self, why: Forgotten) -> None:
        self._left -= 1
        if not self._left:
            raise why
        self.saved.remove()
        self._reached = 0
        self.retry_policy.call(self._begin)  # a restarted agent may not be reachable yet

    def _take_up(self) -> bool:
        """Resume the session of a program that was killed or gave up, if possible."""
        saved = self.saved
        if not saved.take_up(self.record):
            self._watch.note("there is no interrupted copy to resume: starting over")
            return False
        is_same = saved.record.spec == self.record.spec
        failure, why = None, "the interrupted copy is gone"
        with suppress(Lost):
            found = self.retry_policy.call(lambda: self.api.get(saved.record.session))
            if is_same and _status(found).get("phase") in ("Measuring", "Transferring"):
                saved.expected_bytes = _expected(found)
                return True
            failure = _failure(found)
            if not is_same:
                why = "the source has changed since the copy was interrupted"
        self._abandon()
        if failure is not None:
            raise failure
        self._watch.note(f"{why}: starting over")
        return False

    def _abandon(self) -> None:
        with suppress(PycrictlError):
            self.api.abandon(self.saved.record.session, timeout_s=ABANDON_S)
        self.saved.remove()

    # The transfer

    def _send(self, archive: Incoming, size_bytes: int) -> None:
        """Send the rest of an archive over one connection."""
        protocol = ResumableProtocol(is_client=True, is_sender=True)
        with self.api.open(self.saved.record.session, 0) as link:
            self._take(next_event(link, protocol))
            offset = self._has_bytes
            if offset > size_bytes:
                raise RemoteProtocolError("the agent claims more bytes than the copy has")
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
        if time.monotonic() - self._sign_s > self.api.idle_s:
            raise StreamError(f"the agent was silent for {self.api.idle_s:g} s")

    def _received(self) -> Iterator[memoryview]:
        """Yield the saved bytes, then receive, save and yield the rest; report the size once known.

        Archives for standard output are not saved: it is unknown how much of one was consumed.
        """
        on_total = self._watch.on_total or ignore
        saved, arriving = self.saved, Arriving()
        if saved.record.local != "-":
            for piece in saved.arrived():
                arriving.take(Content(piece))
                yield piece
        if saved.expected_bytes:
            on_total(saved.expected_bytes)
        self._progressed(arriving.offset)
        protocol = ResumableProtocol(is_client=True, is_sender=False)
        while not arriving.is_whole:
            try:
                with self.api.open(saved.record.session, arriving.offset) as link:
                    for content in receive(
                        link, protocol, arriving, on_status=_refuse, on_taken=self._progressed
                    ):
                        saved.append(content, arriving.offset - len(content))
                        yield content
            except PycrictlError as exc:
                self.retry_policy.back_off(exc)
        on_total(arriving.offset)

    def _progressed(self, offset: int) -> None:
        if offset > self._reached:
            self._reached = offset
            self.saved.touch()
            self.retry_policy.renew()
        if offset > self._shown:
            self._watch.on_bytes(offset - self._shown)
            self._shown = offset

    # The end of the copy

    def _committed(self) -> dict[str, Any]:
        """Make the node move the copy into place, and wait until it has.

        ``Forgotten``: the agent no longer has the session, and has changed nothing.
        """
        is_asked = False
        while True:
            try:
                found = self.api.commit(self.saved.record.session)
            except Forgotten:
                if not is_asked:
                    raise
                raise CopyError(
                    "the agent was restarted while it was moving the copy into place:"
                    " see whether it is there before you copy again"
                ) from None
            except PycrictlError as exc:
                is_asked = True
                self.retry_policy.back_off(exc)
                continue
            if (failure := _failure(found)) is not None:
                raise failure
            if _status(found).get("phase") != "Committing":
                return found
            is_asked = True
            self.retry_policy.renew()
            time.sleep(POLL_S)

    def _finish(self) -> None:
        """Report what the node left out, and end the session."""
        found: dict[str, Any] = {}
        with suppress(PycrictlError):  # all data has already arrived
            retry_policy = RetryPolicy(ignore, retries=FINISH_RETRIES)
            found = retry_policy.call(lambda: self.api.commit(self.saved.record.session))
        _report(found, self._watch)


@contextmanager
def in_cluster(
    path: ContainerPath,
    watch: Watch,
    *,
    options: Sequence[str],
    environ: Mapping[str, str],
    namespace: str,
    container: str,
    local: Sequence[str],
    retries: int | None,
    resume: bool,
) -> Iterator[tuple[OverApi]]:
    """Yield the method for a container in a cluster. Only the main thread may call it.

    Args:
        options: of kubectl.
        namespace: empty for that of kubectl's context, unless the pod names one.
        container: empty for the pod's default.
        local: the side outside the container, as typed; several sources, or one path.

    Raises:
        UsageError: the name of the namespace, pod or container is invalid.
        Unimplemented: there is no agent, or none that offers copies.
        PycrictlError: kubectl refused.
    """
    note, namespace = watch.note, path.pod or namespace
    check_name("a namespace", namespace)
    check_name("a pod", path.container)
    check_name("a container", container)
    kubectl = Kubectl(options, note)
    record = CopyRecord(
        tuple(sha256(os.fsencode(one)).hexdigest() for one in options),  # there may be a token
        namespace or namespace_of(kubectl),
        path.container,
        "\n".join(one if one == "-" else os.path.abspath(one) for one in local),  # noqa: PTH100 (of a final slash, too)
        {"container": container},
    )
    try:
        with KubectlProxy(kubectl, environ) as proxy, closing(Saved(environ, note)) as saved:
            api = CopyApi(proxy.target, record.namespace, record.pod)
            yield (OverApi(api, record, saved, RetryPolicy(note, retries=retries), resume),)
    except Unimplemented as exc:
        raise kubectl.why_not_served(api_errors.INSTALL_COPIES) from exc


def _failure(found: dict[str, Any]) -> CopyError | None:
    status = _status(found)
    if status.get("phase") != "Failed":
        return None
    message = text(status.get("message")) or "the agent does not say why"
    return Lost(message) if status.get("code") == 410 else CopyError(message)


def _status(found: dict[str, Any]) -> dict[str, Any]:
    if not (status := mapping(found.get("status"))):
        raise RemoteProtocolError("the agent did not return a copy")
    return status


def _expected(found: dict[str, Any]) -> int:
    status = _status(found)
    return count(status.get("size", status.get("expectedSize")))


def _report(found: dict[str, Any], watch: Watch) -> Summary | None:
    """Report what the node left out; return the summary of the copy, if there is one."""
    result = mapping(found, "status", "outcome")
    done = outcome.of_status(result) if result else outcome.Outcome()
    done.report(watch.on_skip, watch.note)
    return done.copied


def _refuse(status: StatusText) -> NoReturn:
    """Raise the agent's reason for ending the transfer; see ``error_of``."""
    body = bytes(status.data)
    raise error_of(count(parsed(body).get("code")) or 500, body)
