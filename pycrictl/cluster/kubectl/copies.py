"""``kubectl container-cp``: copies by the agents' API, in sessions that are resumed.

1. This module measures the archive (into a container), and creates a session with a name that it
   chooses, so that even an interrupted creation can be cancelled.
2. The API server authorizes ``pods/containercopies`` and forwards to any agent.
   ``agent.copies.routes`` checks ``create pods/exec`` as well and forwards to the agent of the
   pod's node, which finds the container and checks quotas and disk space. Out of a
   container, the archive is made in the spool meanwhile.
3. The bytes go over a WebSocket in pieces with offset and checksum (``copy.transfer.messages``):
   neither the API server nor ``kubectl proxy`` limits a WebSocket to 60 seconds. The receiver
   acknowledges what it has. After an interruption the client reconnects and continues from the last
   acknowledgement.
4. Into a container, the agent stages the archive while it arrives, and the commit verifies it and
   makes it visible at once. Out of one, the pieces are unpacked beside the destination.

A session is in the agent's memory. It does not survive a restart of the agent: the copy then fails,
and leaves nothing on either side.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import quote

from pycrictl.base.errors import (
    ConfigError,
    ConnectError,
    CopyError,
    Denied,
    Exhausted,
    Interrupted,
    NotFound,
    PycrictlError,
    RemoteProtocolError,
    StreamError,
    Unavailable,
    Unimplemented,
    UpgradeRefused,
    UsageError,
)
from pycrictl.base.foreign import count, mapping, parsed, text
from pycrictl.base.units import escape
from pycrictl.cluster.agent.api.names import COPIES, COPY_KIND, GROUP, VERSION
from pycrictl.cluster.kubectl import api_errors
from pycrictl.cluster.kubectl.pod_selection import check_name, namespace_of
from pycrictl.cluster.kubectl.program import Kubectl, KubectlProxy, fetch
from pycrictl.copy.archive.archives import Archive, Outgoing, from_server
from pycrictl.copy.rules import outcome
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import ContainerPath, address
from pycrictl.copy.transfer.link import SocketLink, open_link
from pycrictl.copy.transfer.messages import (
    PIECES_PROTOCOL,
    Acknowledgement,
    Arriving,
    Event,
    ResumableProtocol,
    StatusText,
    ignore,
    next_event,
    receive,
    send,
)
from pycrictl.copy.tree.walk import Watch
from pycrictl.streams.target import Target

TIMEOUT_S: Final = 60.0
"""The time limit of a request, which is also the API server's."""

SILENT_S: Final = 30.0
"""How long a connection may be silent during a transfer before it counts as broken."""

GIVE_UP_S: Final = 15 * 60.0
"""How long failures are retried: an agent removes a session after this time without a request."""

DENIED_S: Final = 30.0
"""How long refusals are retried: an API server that has just started may refuse valid requests."""

_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0
_LASTING: Final = (UsageError, ConfigError, CopyError, NotFound, Interrupted)

T = TypeVar("T")


class Lost(CopyError):
    """The session of a copy or its container no longer exists."""


@dataclass(frozen=True)
class CopyApi:
    target: Callable[[str], Target]
    namespace: str
    pod: str
    idle_s: float = SILENT_S

    @property
    def _path(self) -> str:
        namespace, pod = quote(self.namespace, safe=""), quote(self.pod, safe="")
        return f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/pods/{pod}/{COPIES}"

    def begin(self, spec: dict[str, Any], session: str = "") -> dict[str, Any]:
        """Begin a copy; return its session.

        ``session`` may be its name, 32 unguessable hexadecimal digits: then the copy can be
        abandoned even if the answer is lost.
        """
        kind = {"apiVersion": f"{GROUP}/{VERSION}", "kind": COPY_KIND}
        metadata = {"metadata": {"name": session}} if session else {}
        return self._call("POST", "", {**kind, **metadata, "spec": spec})

    def get(self, session: str) -> dict[str, Any]:
        return self._call("GET", f"/{session}")

    def commit(self, session: str) -> dict[str, Any]:
        return self._call("POST", f"/{session}/commit", {})

    def abandon(self, session: str, *, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        return self._call("POST", f"/{session}/abandon", {}, timeout_s=timeout_s)

    def open(self, session: str, offset: int) -> SocketLink:
        target = self.target(f"{self._path}/{session}/data?offset={offset}")
        try:
            return open_link(
                target, PIECES_PROTOCOL,
                label="the agent", timeout_s=self.idle_s, idle_s=self.idle_s,
            )  # fmt: skip
        except UpgradeRefused as exc:
            raise error_of(exc.status, exc.body) from exc

    def _call(
        self,
        method: str,
        suffix: str,
        document: dict[str, Any] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Any]:
        target = self.target(self._path + suffix)
        body = json.dumps(document).encode() if document is not None else b""
        try:
            content = asyncio.run(fetch(target, method, body, timeout_s=timeout_s))
        except UpgradeRefused as exc:
            raise error_of(exc.status, exc.body) from exc
        except StreamError as exc:
            raise ConnectError(exc.message, hint=exc.hint) from exc
        if answer := parsed(content):
            return answer
        raise RemoteProtocolError("the agent's answer is not an object")


def error_of(status: int, body: bytes) -> PycrictlError:
    """Return the error for an unsuccessful response.

    * Lost: the session or its container no longer exists;
    * CopyError: the copy is not possible; Exhausted: not possible now;
    * Denied; NotFound for the pod; and others as in ``api_errors.of_answer``.
    """
    document = parsed(body)
    is_ours = mapping(document.get("details")).get("kind") == COPIES
    message = escape(text(document.get("message")))
    if status == 403 and message:
        return api_errors.forbidden(message)
    if status == 429:
        return Exhausted(message or "try again later", code="ResourceExhausted", details=message)
    if is_ours and message:
        if status in (404, 410):
            return Lost(message)
        if status == 501:
            return CopyError(message, hint=api_errors.INSTALL)
        if status < 500:
            return CopyError(message)
        if status == 503:
            return Unavailable(message, code="Unavailable", details=message)
    return api_errors.of_answer(UpgradeRefused(message, status=status, body=body))


@dataclass
class RetryPolicy:
    """Retries after failures, with growing pauses, until there is progress.

    Attributes:
        note: called with the first failure since there was progress.
        retries: limit of retries without progress; None: only their time is limited.
    """

    note: Callable[[str], None]
    retries: int | None = None
    sleep: Callable[[float], None] = time.sleep
    _failures: int = 0
    _since_s: float = 0.0

    def renew(self) -> None:
        self._failures = 0

    def call(self, act: Callable[[], T]) -> T:
        while True:
            try:
                return act()
            except PycrictlError as exc:
                self.back_off(exc)

    def back_off(self, exc: PycrictlError) -> None:
        """Pause after a failure; raise it if it should not be retried."""
        now = time.monotonic()
        if not self._failures:
            self._since_s = now
        self._failures += 1
        limit_s = DENIED_S if isinstance(exc, Denied) else GIVE_UP_S
        is_too_often = self.retries is not None and self._failures > self.retries
        if isinstance(exc, _LASTING) or is_too_often or now - self._since_s > limit_s:
            raise exc
        if self._failures == 1:
            reason = "not now" if isinstance(exc, Exhausted) else "the copy was interrupted"
            self.note(f"{reason}: {exc.message}; retrying")
        self.sleep(min(_FIRST_PAUSE_S * 2 ** (self._failures - 1), _LONGEST_PAUSE_S))


POLL_S: Final = 0.2
FINISH_RETRIES: Final = 5
"""Retries to end a complete copy at an agent that does not answer: for some 6 s."""

ABANDON_S: Final = 5.0
"""Time limit for abandoning the session at the end of the program."""


@dataclass(eq=False)
class OverApi:
    """A ``Method`` for one copy of one pod, with its session at the agent.

    Attributes:
        container: empty for the pod's default.
    """

    api: CopyApi
    container: str
    retry_policy: RetryPolicy
    name = "cluster"
    _session: str = ""
    _watch: Watch = field(init=False)
    _expected_bytes: int = 0
    _reached: int = 0

    @contextmanager
    def read(self, path: bytes, rules: Rules, watch: Watch) -> Iterator[Outgoing]:
        options = {"archive": rules.archive, "followLinks": rules.follow}

        def pieces() -> Generator[memoryview, None, None]:
            try:
                yield from self._received()
            except StreamError as exc:
                raise ConnectError(exc.message, hint=exc.hint) from exc
            self._finish()

        with self._begun(path, {"direction": "From", "options": options}, watch):
            try:
                yield from_server(path, pieces)
            except StreamError as exc:  # the archive is invalid
                raise CopyError(exc.message, hint=exc.hint) from exc

    def write(self, archive: Archive, path: bytes, rules: Rules, watch: Watch) -> Summary:
        sent = archive.measured(rules, watch)
        options = {"archive": rules.archive}
        asked = {"direction": "To", "size": sent.size_bytes, "checksum": sent.crc32}
        path = address(path, archive.kind)
        with self._begun(path, {**asked, "options": options}, watch):
            if watch.on_total is not None:
                watch.on_total(sent.size_bytes)
            self.retry_policy.call(partial(self._send, archive, sent.size_bytes))
            done = self._committed()
        return _report(done, watch) or sent.summary

    @contextmanager
    def _begun(self, path: bytes, asked: dict[str, Any], watch: Watch) -> Iterator[None]:
        """Begin a session, and abandon it if the copy fails."""
        self._watch = watch
        self._session = os.urandom(16).hex()
        spec = {"container": self.container, **asked, "path": os.fsdecode(path)}
        try:
            status = _status(self.api.begin(spec, self._session))
            self._expected_bytes = count(status.get("size", status.get("expectedSize")))
            yield
        except BaseException:
            with suppress(PycrictlError):
                self.api.abandon(self._session, timeout_s=ABANDON_S)
            raise

    def _send(self, archive: Archive, size_bytes: int) -> None:
        """Send the rest of an archive over one connection."""
        protocol = ResumableProtocol(is_client=True, is_sender=True)
        with self.api.open(self._session, 0) as link:
            offset = self._acknowledged(next_event(link, protocol))
            if offset > size_bytes:
                raise RemoteProtocolError("the agent claims more bytes than the copy has")
            with closing(archive.pieces(offset)) as pieces:
                send(
                    link, protocol, pieces, self._acknowledged, offset=offset, size_bytes=size_bytes
                )
            while self._reached < size_bytes:
                self._acknowledged(next_event(link, protocol))

    def _acknowledged(self, event: Event) -> int:
        """Return how many bytes the agent has."""
        if isinstance(event, StatusText):
            _refuse(event)
        if isinstance(event, Acknowledgement):
            self._progressed(event.offset)
            return event.offset
        return self._reached

    def _received(self) -> Iterator[memoryview]:
        """Yield the pieces as they arrive; report the size once it is known."""
        on_total = self._watch.on_total or ignore
        if self._expected_bytes:
            on_total(self._expected_bytes)
        arriving = Arriving()
        protocol = ResumableProtocol(is_client=True, is_sender=False)
        while not arriving.is_whole:
            try:
                with self.api.open(self._session, arriving.offset) as link:
                    yield from receive(
                        link, protocol, arriving, on_status=_refuse, on_taken=self._progressed
                    )
            except PycrictlError as exc:
                self.retry_policy.back_off(exc)
        on_total(arriving.offset)

    def _progressed(self, offset: int) -> None:
        if offset > self._reached:
            self.retry_policy.renew()
            self._watch.on_bytes(offset - self._reached)
            self._reached = offset

    # The end of the copy

    def _committed(self) -> dict[str, Any]:
        """Make the node move the copy into place, and wait until it has."""
        while True:
            answer = self.retry_policy.call(lambda: self.api.commit(self._session))
            status = _status(answer)
            if status.get("phase") == "Failed":
                message = text(status.get("message")) or "the agent does not say why"
                raise Lost(message) if status.get("code") == 410 else CopyError(message)
            if status.get("phase") != "Committing":
                return answer
            self.retry_policy.renew()
            time.sleep(POLL_S)

    def _finish(self) -> None:
        """Report what the node left out, and end the session."""
        answer: dict[str, Any] = {}
        with suppress(PycrictlError):  # all data has already arrived
            retry_policy = RetryPolicy(ignore, retries=FINISH_RETRIES)
            answer = retry_policy.call(lambda: self.api.commit(self._session))
        _report(answer, self._watch)


@contextmanager
def in_cluster(
    path: ContainerPath,
    watch: Watch,
    *,
    options: Sequence[str],
    namespace: str,
    container: str,
) -> Iterator[tuple[OverApi]]:
    """Yield the method for a container in a cluster. Only the main thread may call it.

    Args:
        options: kubectl's own options.
        namespace: empty for that of kubectl's context; a namespace in ``path`` replaces it.
        container: empty for the pod's default.

    Raises:
        UsageError: the name of the namespace, pod or container is invalid.
        Unimplemented: there is no agent, or none that offers copies.
        PycrictlError: kubectl refused.
    """
    note, namespace = watch.note, path.pod or namespace
    check_name("namespace", namespace)
    check_name("pod", path.container)
    check_name("container", container)
    kubectl = Kubectl(options, note)
    try:
        with KubectlProxy(kubectl) as proxy:
            api = CopyApi(proxy.target, namespace or namespace_of(kubectl), path.container)
            yield (OverApi(api, container, RetryPolicy(note)),)
    except Unimplemented as exc:
        raise kubectl.why_not_served() from exc


def _status(answer: dict[str, Any]) -> dict[str, Any]:
    if not (status := mapping(answer.get("status"))):
        raise RemoteProtocolError("the agent did not return a copy")
    return status


def _report(answer: dict[str, Any], watch: Watch) -> Summary | None:
    """Report what the node left out; return the summary of the copy, if there is one."""
    result = mapping(answer, "status", "outcome")
    done = outcome.of_status(result) if result else outcome.Outcome()
    done.report(watch.on_skip, watch.note)
    return done.copied


def _refuse(status: StatusText) -> NoReturn:
    """Raise the agent's reason for ending the transfer; see ``error_of``."""
    body = bytes(status.data)
    raise error_of(count(parsed(body).get("code")) or 500, body)
