"""A copy in the API: its spec, its progress, its thread and task, and its refusals."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

from pycrictl.agent.api.names import COPIES, COPY_KIND, GROUP_VERSION, Refusal
from pycrictl.copy.rules.outcome import refusal_codes
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import check_container_path
from pycrictl.copy.transfer.serving import Download, Skips, Upload
from pycrictl.errors import ConnectError, PycrictlError, UsageError
from pycrictl.foreign import cleaned, count, flag, mapping, strict, text
from pycrictl.servicelog import Whole
from pycrictl.units import escape

log = logging.getLogger("pycrictl.agent")

RETRY_S: Final = 10
"""How long a client should wait after a quota was reached."""

LIFETIME_S: Final = 15 * 60
"""A session without any activity of its client for this long is removed."""

NAME: Final = re.compile(r"[0-9a-f]{32}")
"""The names of sessions: 128 random bits, which cannot be guessed."""

T = TypeVar("T")


class Direction(StrEnum):
    TO = "To"
    FROM = "From"
    UNKNOWN = "Unknown"
    """For a copy that was refused before its direction was known."""


class CopyPhase(StrEnum):
    MEASURING = "Measuring"
    """The archive is being made; its size and checksum are not known yet."""

    TRANSFERRING = "Transferring"
    COMMITTING = "Committing"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class CopyOwner:
    """The owner of a copy, as authenticated by the API server."""

    name: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """The container of a copy, as it was when the copy began.

    Attributes:
        pod_uid: distinguishes the pod from another one of that name.
        container_id: distinguishes the container from its replacement; empty until it is known.
        sandbox_id: of the pod, at the runtime; empty until it is known.
    """

    namespace: str
    pod: str
    pod_uid: str
    container: str
    container_id: str = ""
    sandbox_id: str = ""

    @property
    def whole_pod(self) -> str:
        return f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True)
class CopySpec:
    """The copy that is requested.

    Attributes:
        container: empty for the pod's default.
        size_bytes, crc32: of the archive; known beforehand only for a copy into a container.
        archive: keep owners, times and special bits.
        early: start sending a copy out of the container before its archive is complete.
    """

    direction: Direction
    path: bytes
    container: str = ""
    size_bytes: int = 0
    crc32: int = 0
    archive: bool = False
    follow_links: bool = False
    overwrite: bool = True
    early: bool = False

    @property
    def rules(self) -> Rules:
        return Rules(archive=self.archive, no_clobber=not self.overwrite)

    @property
    def document(self) -> dict[str, Any]:
        sizes = {"size": self.size_bytes, "checksum": self.crc32}
        return {
            "direction": self.direction.value,
            "container": self.container,
            "path": os.fsdecode(self.path),
            **(sizes if self.direction is Direction.TO else {}),
            "options": {key: getattr(self, name) for key, name in _OPTIONS.items()},
        }


_OPTIONS: Final = {
    "archive": "archive",
    "followLinks": "follow_links",
    "overwrite": "overwrite",
    "early": "early",
}


def parse_spec(document: object) -> CopySpec:
    spec = _required(document, "spec", mapping)
    direction = text(spec.get("direction"))
    if direction not in ("To", "From"):
        raise UsageError('spec.direction must be "To" or "From"')
    is_to = direction == "To"
    try:
        path = os.fsencode(_required(spec, "path", text))
    except UnicodeEncodeError:
        raise UsageError("spec.path has a character that is not valid in a path") from None
    check_container_path(path)
    options = _optional(spec, "options", mapping)
    found = {name: _optional(options, key, flag) for key, name in _OPTIONS.items()}
    return CopySpec(
        Direction(direction),
        path,
        _optional(spec, "container", text) or "",
        _required(spec, "size", count) if is_to else 0,
        _required(spec, "checksum", _crc32) if is_to else 0,
        **{name: value for name, value in found.items() if value is not None},
    )


def parse_name(document: object) -> str:
    name = _optional(mapping(document, "metadata"), "name", text) or ""
    if name and not NAME.fullmatch(name):
        raise UsageError("metadata.name must be 32 hexadecimal digits, made at random")
    return name


class End(StrEnum):
    DONE = "done"
    FAILED = "failed"
    ABANDONED = "abandoned"
    """Its client gave it up."""

    EXPIRED = "expired"
    """Its client sent no request for too long, or another copy needed its slot or space."""

    STOPPED = "stopped"
    """The agent was stopped; the client starts the copy again with the next one."""

    REFUSED = "refused"
    """It never began: a missing right, a quota, no such container, or an invalid request."""


@dataclass(slots=True, eq=False)
class Session:
    """A copy from its beginning to its end.

    Attributes:
        size_bytes, crc32: of the archive; 0 while it is being made.
        offset: how much of it is on this node's disk (to), or on the client's (from).
        outcome: its result, a ``Status`` of ``copy.rules.outcome``.
        heard_s, moved_s: when its client was last active, and when a byte of it last moved.
        task: follows it to its end.
        sending: the thread that sends the archive, if there is or was a connection for it.
        begun: set when the request that begins a copy out of a container can be answered.
        settled: set when the thread that makes or receives the archive has ended.
        over: set when the copy has ended, or was refused.
        is_unwanted: its threads were told to stop; ``Copies`` then ends the session.
    """

    name: str
    owner: CopyOwner
    place: Place
    spec: CopySpec
    phase: CopyPhase
    size_bytes: int = 0
    crc32: int = 0
    offset: int = 0
    message: str = ""
    code: int = 0
    outcome: dict[str, Any] | None = None
    created: str = ""
    heard_s: float = 0.0
    moved_s: float = 0.0
    expected_bytes: int = 0
    transfer: Upload | Download = field(init=False)
    task: asyncio.Task[None] = field(init=False)
    sending: asyncio.Future[None] | None = None
    skips: Skips = field(default_factory=Skips)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    is_unwanted: bool = False

    @property
    def is_over(self) -> bool:
        return self.phase in (CopyPhase.SUCCEEDED, CopyPhase.FAILED)

    def end(self, end: End, message: str = "", code: int = 0) -> None:
        self.phase = CopyPhase.SUCCEEDED if end is End.DONE else CopyPhase.FAILED
        self.message, self.code = message, code
        self.over.set()

    async def wait(self, limit_s: float | None = None) -> None:
        """Wait until its threads have ended, or for a time limit in seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self.settled.wait()
                if self.sending is not None:
                    await asyncio.wait([self.sending])

    def document(self, expires: str) -> dict[str, Any]:
        status: dict[str, Any] = {"phase": self.phase.value, "offset": self.offset}
        if self.phase is not CopyPhase.MEASURING:
            status |= {"size": self.size_bytes, "checksum": self.crc32}
        elif self.expected_bytes:
            status["expectedSize"] = self.expected_bytes
        if self.message:
            status |= {"message": escape(self.message), "code": self.code}
        if self.outcome is not None:
            status["outcome"] = cleaned(self.outcome)
        return {
            "apiVersion": GROUP_VERSION,
            "kind": COPY_KIND,
            "metadata": {
                "name": self.name,
                "namespace": self.place.namespace,
                "creationTimestamp": self.created or None,
            },
            "spec": {**self.spec.document, "container": self.place.container},
            "status": {**status, "expiresAt": expires},
        }


Audit = Callable[[Session, End], None]
"""Called once for each copy that is over or was refused, with its end."""


def audit_refusal(
    audit: Audit, owner: CopyOwner, place: Place, spec: CopySpec, why: Refusal
) -> None:
    """Write an audit line about a copy that was refused before it began."""
    session = Session("", owner, place, spec, CopyPhase.FAILED, spec.size_bytes)
    session.end(End.REFUSED, why.message, why.code)
    audit(session, End.REFUSED)


def fields_of(session: Session, end: End) -> dict[str, object]:
    """Return the fields of a copy's log line; the path is not cut, so its end cannot be hidden."""
    place, spec = session.place, session.spec
    return {
        "user": session.owner.name,
        "uid": session.owner.uid,
        "pod": place.whole_pod,
        "container": place.container,
        "direction": spec.direction.value.lower(),
        "path": Whole(os.fsdecode(spec.path)),
        "size_bytes": session.size_bytes,
        "moved_bytes": session.offset,
        "end": end.value,
        "error": session.message if end in (End.FAILED, End.REFUSED) else "",
    }


class Refused(Refusal):
    """The refusal of a request about a copy; the handler adds the pod's name."""

    def __init__(self, code: int, message: str) -> None:
        retry_after_s = RETRY_S if code == 429 else 0
        super().__init__(code, message, kind=COPIES, retry_after_s=retry_after_s)


def refused(exc: Exception) -> Refused:
    """Turn any exception into an HTTP error: even a bug ends only its own request."""
    if isinstance(exc, Refused):
        return exc
    _, code = refusal_codes(exc)
    if isinstance(exc, PycrictlError):
        # Hints for a user on the node are of no use to a client in the cluster.
        hint = "" if isinstance(exc, ConnectError) else exc.hint
        return Refused(code, f"{exc.message} ({hint})" if hint else exc.message)
    log.error("a copy failed", exc_info=exc)
    return Refused(code, f"the agent failed: {type(exc).__name__}: {exc}")


def lasting(why: Refused) -> Refused:
    """Return why a copy has failed, with 422 in place of 429: a retry cannot help."""
    return Refused(422, why.message) if why.code == 429 else why


def encode_refusal(exc: Exception) -> bytes:
    return json.dumps(refused(exc).document).encode()


def _optional(found: object, key: str, read: Callable[[object], T]) -> T | None:
    try:
        return strict(mapping(found).get(key), read)
    except ValueError:
        raise UsageError(f"{key} has a value of the wrong type") from None


def _required(found: object, key: str, read: Callable[[object], T]) -> T:
    value = _optional(found, key, read)
    if value is None:
        raise UsageError(f"{key} is missing")
    return value


def _crc32(value: object) -> int:
    return count(value, (1 << 32) - 1)
