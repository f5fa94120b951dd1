"""Copies as users of the API see them: requests, documents, refusals, and lines of the log."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from aiohttp import web

from pycrictl.base.errors import ConnectError, PycrictlError, UsageError
from pycrictl.base.foreign import cleaned, count, flag, mapping, parse, strict, text
from pycrictl.base.servicelog import Whole
from pycrictl.cluster.agent.api.names import COPIES, COPY_KIND, GROUP_VERSION, Refusal
from pycrictl.cluster.agent.asyncapi import read_body
from pycrictl.copy.rules.outcome import refusal_codes
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import check_container_path
from pycrictl.copy.service.copies import Copy, GivenUp
from pycrictl.copy.service.life import Event, State
from pycrictl.kube.pods import Pod

RETRY_S: Final = 10
"""How long a client should wait after a quota was reached."""

NAME: Final = re.compile(r"[0-9a-f]{32}")
"""The names of copies: 128 random bits, which cannot be guessed."""

MAX_BODY_BYTES: Final = 64 * 1024

_PHASES: Final = {
    State.MEASURING: "Measuring",
    State.WAITING: "Transferring",
    State.COPYING: "Transferring",
    State.DONE: "Succeeded",
}
"""The phases of copies in the API. Other states are Failed if the copy is over, else Committing."""

T = TypeVar("T")


class CopyOwner(NamedTuple):
    """The owner of a copy, as authenticated by the API server."""

    name: str
    uid: str = ""


class CopyRequest(NamedTuple):
    """A request about the copies of a pod."""

    http: web.BaseRequest
    namespace: str
    pod: str
    words: list[str]  # The segments of its path after the resource
    given: dict[str, str]  # Its query parameters

    async def body(self) -> bytes:
        return bytes(await read_body(self.http, MAX_BODY_BYTES))


class CopySpec(NamedTuple):
    """The copy that is requested; size and checksum are set only for a copy into a container."""

    direction: str = "Unknown"  # "To" or "From" the container, once the request was read
    path: bytes = b""
    container: str = ""  # Empty for the pod's default
    size_bytes: int = 0
    crc32: int = 0
    rules: Rules = Rules()

    @property
    def is_to(self) -> bool:
        return self.direction == "To"


def parse_request(body: bytes) -> tuple[str, CopySpec]:
    """Return the name in a request that begins a copy, empty if absent, and its spec.

    Raises:
        Refused: the request is not valid.
    """
    if len(body) > MAX_BODY_BYTES:
        raise Refused(413, f"the request is larger than {MAX_BODY_BYTES // 1024} KiB")
    try:
        document = parse(body)
    except ValueError:
        raise Refused(400, "the object is not JSON") from None
    try:
        name = _value(mapping(document).get("metadata", {}), "name", text, "")
        if name and not NAME.fullmatch(name):
            raise UsageError("metadata.name must be 32 hexadecimal digits, made at random")
        return name, _spec(_value(document, "spec", mapping))
    except UsageError as exc:
        raise Refused(422, exc.message) from None


def _spec(spec: dict[str, Any]) -> CopySpec:
    direction = text(spec.get("direction"))
    if direction not in ("To", "From"):
        raise UsageError('spec.direction must be "To" or "From"')
    is_to = direction == "To"
    try:
        path = os.fsencode(_value(spec, "path", text))
    except UnicodeEncodeError:
        raise UsageError("spec.path has a character that is not valid in a path") from None
    check_container_path(path)
    options: dict[str, Any] = _value(spec, "options", mapping, {})
    return CopySpec(
        direction,
        path,
        _value(spec, "container", text, ""),
        _value(spec, "size", count) if is_to else 0,
        _value(spec, "checksum", lambda value: count(value, (1 << 32) - 1)) if is_to else 0,
        Rules(
            archive=_value(options, "archive", flag, default=False),
            follow=_value(options, "followLinks", flag, default=False),
        ),
    )


def _value(
    document: object, key: str, read: Callable[[object], T | None], default: T | None = None
) -> T:
    """Return a value of an object, or the default; without a default, the value is required."""
    try:
        value = strict(mapping(document).get(key), read)
    except ValueError:
        raise UsageError(f"{key} has a value of the wrong type") from None
    if value is None:
        value = default
    if value is None:
        raise UsageError(f"{key} is missing")
    return value


@dataclass(eq=False, kw_only=True)
class NodeCopy(Copy):
    """A copy, and its request."""

    user: CopyOwner
    pod: Pod  # As it was at the request; its UID differs from that of a later pod of that name
    spec: CopySpec
    created: str  # When it was requested (RFC 3339)

    @property
    def phase(self) -> str:
        other = "Failed" if self.state.is_over else "Committing"
        return _PHASES.get(self.state, other)

    @property
    def ended(self) -> CopyEnded:
        message = "" if self.error is None else self.error.message
        sizes = self.size_bytes, self.offset
        return CopyEnded(self.user, name_of(self.pod), self.spec, self.state, *sizes, message)

    @property
    def document(self) -> dict[str, Any]:
        """The object of the API."""
        spec, phase = self.spec, self.phase
        status: dict[str, Any] = {"phase": phase, "offset": self.offset}
        if self.state is not State.MEASURING:
            status |= {"size": self.size_bytes, "checksum": self.transfer.crc32}
        elif self.expected_bytes:
            status["expectedSize"] = self.expected_bytes
        if self.error is not None:
            refusal = refused(self.error)
            status |= {"message": refusal.message, "code": refusal.code}
        if phase == "Succeeded" or (phase == "Transferring" and not self.is_to):
            status["outcome"] = cleaned(json.loads(self.success()))
        return {
            "apiVersion": GROUP_VERSION,
            "kind": COPY_KIND,
            "metadata": {
                "name": self.name,
                "namespace": self.pod.namespace,
                "creationTimestamp": self.created,
            },
            "spec": {
                "direction": spec.direction,
                "container": spec.container,
                "path": os.fsdecode(spec.path),
                **({"size": spec.size_bytes, "checksum": spec.crc32} if self.is_to else {}),
                "options": {"archive": self.rules.archive, "followLinks": self.rules.follow},
            },
            "status": status,
        }


class CopyEnded(NamedTuple):
    """A copy that is over or was refused, for the log and the metrics."""

    owner: CopyOwner
    pod: str  # NAMESPACE/NAME
    spec: CopySpec
    end: State  # A final one (``copy.service.life``)
    size_bytes: int = 0  # Of the archive, as announced or made
    moved_bytes: int = 0  # How much of that was delivered
    error: str = ""  # Why it failed or was refused

    @property
    def fields(self) -> dict[str, object]:
        """The fields of its log line; the path is not cut, so its end cannot be hidden."""
        return {
            "user": self.owner.name,
            "uid": self.owner.uid,
            "pod": self.pod,
            "container": self.spec.container,
            "direction": self.spec.direction.lower(),
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


def refused(exc: PycrictlError) -> Refused:
    """Return the response to a request that has failed, or whose copy has failed."""
    if isinstance(exc, GivenUp):
        return Refused(503 if exc.event is Event.STOPPED else 410, exc.message)
    _, code = refusal_codes(exc)
    # Hints for a user on the node are of no use to a client in the cluster.
    hint = "" if isinstance(exc, ConnectError) else exc.hint
    return Refused(code, f"{exc.message} ({hint})" if hint else exc.message)


def encode(exc: PycrictlError) -> bytes:
    """Return the status that ends a connection of a copy that has failed."""
    return json.dumps(refused(exc).document).encode()


def name_of(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"
