"""Requests about copies in the API: their specs, documents, refusals and log lines."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

from pycrictl.base.errors import ConnectError, PycrictlError, UsageError
from pycrictl.base.foreign import cleaned, count, flag, mapping, strict, text
from pycrictl.base.servicelog import Whole
from pycrictl.cluster.agent.api.names import COPIES, COPY_KIND, GROUP_VERSION, Refusal
from pycrictl.copy.rules.outcome import refusal_codes
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import check_container_path
from pycrictl.copy.service.copies import Copy, GivenUp
from pycrictl.copy.service.life import Event, State

log = logging.getLogger("pycrictl.cluster.agent")

RETRY_S: Final = 10
"""How long a client should wait after a quota was reached."""

NAME: Final = re.compile(r"[0-9a-f]{32}")
"""The names of copies: 128 random bits, which cannot be guessed."""

_PHASES: Final = {
    State.MEASURING: "Measuring",
    State.WAITING: "Transferring",
    State.COPYING: "Transferring",
    State.DONE: "Succeeded",
}
"""The phases of copies in the API; that of other states is Failed at the end, else Committing."""

T = TypeVar("T")


class Direction(StrEnum):
    TO = "To"
    FROM = "From"
    UNKNOWN = "Unknown"
    """For a copy that was refused before its direction was known."""


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
    if direction not in (Direction.TO, Direction.FROM):
        raise UsageError('spec.direction must be "To" or "From"')
    is_to = direction == Direction.TO
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


@dataclass(eq=False)
class NodeCopy:
    """What the agent knows about a copy.

    Attributes:
        created: when it was requested (RFC 3339).
        expected_bytes: the size of its archive as far as that can be told in advance; else 0.
    """

    owner: CopyOwner
    place: Place
    spec: CopySpec
    created: str = ""
    expected_bytes: int = field(default=0)


def phase_of(copy: Copy[NodeCopy]) -> str:
    other = "Failed" if copy.state.is_over else "Committing"
    return _PHASES.get(copy.state, other)


def document_of(copy: Copy[NodeCopy], expires: str) -> dict[str, Any]:
    about, phase = copy.about, phase_of(copy)
    status: dict[str, Any] = {"phase": phase, "offset": copy.offset}
    if copy.state is not State.MEASURING:
        status |= {"size": copy.size_bytes, "checksum": copy.crc32}
    elif about.expected_bytes:
        status["expectedSize"] = about.expected_bytes
    if isinstance(copy.error, Refused):
        status |= {"message": copy.error.message, "code": copy.error.code}
    if phase == "Succeeded" or (phase == "Transferring" and not copy.is_to):
        status["outcome"] = cleaned(json.loads(copy.skips.success(copy.summary)))
    return {
        "apiVersion": GROUP_VERSION,
        "kind": COPY_KIND,
        "metadata": {
            "name": copy.name,
            "namespace": about.place.namespace,
            "creationTimestamp": about.created or None,
        },
        "spec": {**about.spec.document, "container": about.place.container},
        "status": {**status, "expiresAt": expires},
    }


class CopyEnded(NamedTuple):
    """What log and metrics get of a copy that is over or was refused.

    Attributes:
        end: a state in which a copy is over (``copy.service.life``).
        size_bytes: of its archive, as announced or made.
        moved_bytes: how much of that was delivered.
        error: why it failed or was refused.
    """

    owner: CopyOwner
    place: Place
    spec: CopySpec
    end: State
    size_bytes: int = 0
    moved_bytes: int = 0
    error: str = ""

    @property
    def fields(self) -> dict[str, object]:
        """The fields of its log line; the path is not cut, so its end cannot be hidden."""
        return {
            "user": self.owner.name,
            "uid": self.owner.uid,
            "pod": self.place.whole_pod,
            "container": self.place.container,
            "direction": self.spec.direction.value.lower(),
            "path": Whole(os.fsdecode(self.spec.path)),
            "size_bytes": self.size_bytes,
            "moved_bytes": self.moved_bytes,
            "end": self.end.value,
            "error": self.error if self.end in (State.FAILED, State.REFUSED) else "",
        }


Audit = Callable[[CopyEnded], None]
"""Called once for each copy that is over or was refused."""


class Refused(Refusal):
    """The refusal of a request about a copy; the handler adds the pod's name."""

    def __init__(self, code: int, message: str) -> None:
        retry_after_s = RETRY_S if code == 429 else 0
        super().__init__(code, message, kind=COPIES, retry_after_s=retry_after_s)


def refused(exc: Exception) -> Refused:
    """Turn any exception into an HTTP error: even a bug ends only its own request."""
    if isinstance(exc, Refused):
        return exc
    if isinstance(exc, GivenUp):
        return Refused(503 if exc.event is Event.STOPPED else 410, exc.message)
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
