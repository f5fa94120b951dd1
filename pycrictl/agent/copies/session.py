"""A copy as the API has it: what is asked for, and how far it is. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from pycrictl.agent.api.names import COPY_KIND
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import check_container_path
from pycrictl.errors import UsageError
from pycrictl.foreign import cleaned, count, flag, mapping, strict, text
from pycrictl.servicelog import Whole
from pycrictl.units import escape

LIFETIME_S: Final = 15 * 60
"""A session that nobody has given a sign for so long is removed."""

NAME: Final = re.compile(r"[0-9a-f]{32}")
"""The names of sessions: nobody can guess 128 random bits."""

T = TypeVar("T")


class Direction(StrEnum):
    TO = "To"
    FROM = "From"
    UNKNOWN = "Unknown"
    """Of a copy that was refused before it said so."""


class CopyPhase(StrEnum):
    MEASURING = "Measuring"
    """The archive is being made; its size and checksum are not known yet."""

    TRANSFERRING = "Transferring"
    COMMITTING = "Committing"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class CopyOwner:
    """Whose copy it is, as the API server has authenticated them."""

    name: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """The container, as it was when the copy began.

    Attributes:
        pod_uid: tells it from another pod of that name.
        container_id: tells it from what replaces it; empty until it is known.
        sandbox_id: of the pod, at the runtime; empty until it is known.
    """

    namespace: str
    pod: str
    pod_uid: str
    container: str
    container_id: str = ""
    sandbox_id: str = ""


@dataclass(frozen=True, slots=True)
class CopySpec:
    """What is asked for.

    Attributes:
        container: empty for the pod's default.
        size_bytes, crc32: of the archive; only known beforehand on the way to a container.
        archive: keep owners, times and special bits.
        follow_links: copy what the path points to, if it is a link.
        overwrite: replace what is there.
        early: begin to send what is copied from the container before its archive is whole.
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
            "options": {
                "archive": self.archive,
                "followLinks": self.follow_links,
                "overwrite": self.overwrite,
                "early": self.early,
            },
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
        raise UsageError("spec.path has a character that no path can have") from None
    check_container_path(path)
    options = _optional(spec, "options", mapping) or {}
    return CopySpec(
        Direction(direction),
        path,
        _optional(spec, "container", text) or "",
        _required(spec, "size", count) if is_to else 0,
        _required(spec, "checksum", _crc32) if is_to else 0,
        archive=bool(_optional(options, "archive", flag)),
        follow_links=bool(_optional(options, "followLinks", flag)),
        overwrite=_optional(options, "overwrite", flag) is not False,
        early=bool(_optional(options, "early", flag)),
    )


def parse_name(document: object) -> str:
    name = _optional(mapping(document, "metadata"), "name", text) or ""
    if name and not NAME.fullmatch(name):
        raise UsageError("metadata.name must be 32 hexadecimal digits, made at random")
    return name


@dataclass(slots=True)
class Session:
    """A copy from its beginning to its end.

    Attributes:
        name: 128 random bits that stand for it.
        size_bytes, crc32: of the archive; 0 while it is being made.
        offset: how much of it is on this node's disk (to), or on the client's (from).
        code: the HTTP status that says so, such as 410 for a container that was replaced.
        outcome: how it ended: a ``Status``, as ``copy.rules.outcome`` has it.
        created: when it began (RFC 3339).
        heard_s: when there was a sign of it, on a monotonic clock.
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
    expected_bytes: int = 0

    @property
    def is_over(self) -> bool:
        return self.phase in (CopyPhase.SUCCEEDED, CopyPhase.FAILED)

    def fail(self, message: str, code: int) -> None:
        self.phase = CopyPhase.FAILED
        self.message = message
        self.code = code

    def document(self, group_version: str, expires: str) -> dict[str, Any]:
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
            "apiVersion": group_version,
            "kind": COPY_KIND,
            "metadata": {
                "name": self.name,
                "namespace": self.place.namespace,
                "creationTimestamp": self.created or None,
            },
            "spec": {**self.spec.document, "container": self.place.container},
            "status": {**status, "expiresAt": expires},
        }


class End(StrEnum):
    DONE = "done"
    FAILED = "failed"
    ABANDONED = "abandoned"
    """Its client gave it up."""

    EXPIRED = "expired"
    """Nothing was heard of its client for too long."""

    STOPPED = "stopped"
    """The agent was stopped; its client begins it anew with the next one."""

    REFUSED = "refused"
    """It never began: a right, a quota, no such container, or a request that is wrong."""


Audit = Callable[[Session, End], None]
"""Called once with each copy that is over or was refused, and how it ended."""


def fields_of(session: Session, end: End) -> dict[str, object]:
    """Return the fields of a copy's log line; a path's end cannot hide behind its length."""
    place, spec = session.place, session.spec
    return {
        "user": session.owner.name,
        "uid": session.owner.uid,
        "pod": f"{place.namespace}/{place.pod}",
        "container": place.container,
        "direction": spec.direction.value.lower(),
        "path": Whole(os.fsdecode(spec.path)),
        "size_bytes": session.size_bytes,
        "moved_bytes": session.offset,
        "end": end.value,
        "error": session.message if end in (End.FAILED, End.REFUSED) else "",
    }


def _optional(found: object, key: str, read: Callable[[object], T]) -> T | None:
    try:
        return strict(mapping(found).get(key), read)
    except ValueError:
        raise UsageError(f"{key} has a value of another kind") from None


def _required(found: object, key: str, read: Callable[[object], T]) -> T:
    value = _optional(found, key, read)
    if value is None:
        raise UsageError(f"{key} is missing")
    return value


def _crc32(value: object) -> int:
    return count(value, (1 << 32) - 1)
