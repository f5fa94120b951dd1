"""The outcome of a copy on the wire: a ``metav1.Status``, or the codes of a refusal. Pure.

Skipped entries are listed as causes in the details, and the summary of the copy under a key of our
own, ``copied``. Clients may ignore both.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, NamedTuple

from pycrictl.base.errors import (
    AlreadyExists,
    Cancelled,
    ConnectError,
    CopyError,
    Denied,
    Exhausted,
    FailedPrecondition,
    NoSpace,
    NotFound,
    PycrictlError,
    RemoteProtocolError,
    StreamError,
    Unimplemented,
    UsageError,
)
from pycrictl.base.foreign import count, mapping, mappings, parsed, text
from pycrictl.base.units import escape
from pycrictl.copy.rules.policy import AcceptedEntry, Skipped
from pycrictl.streams.wire import codes
from pycrictl.streams.wire.tar.header import Entry, EntryType

MAX_BYTES: Final = 64 * 1024
"""The longest outcome that is accepted."""

MAX_SKIPPED: Final = 100
"""The most skipped entries that are listed by name."""

_MAX_TEXT: Final = 500

_REFUSALS: Final[tuple[tuple[type[Exception], int, int], ...]] = (
    (UsageError, codes.INVALID_ARGUMENT, 422),
    (NotFound, codes.NOT_FOUND, 404),
    (AlreadyExists, codes.ALREADY_EXISTS, 409),
    (FailedPrecondition, codes.FAILED_PRECONDITION, 410),
    (Exhausted, codes.RESOURCE_EXHAUSTED, 429),
    (NoSpace, codes.RESOURCE_EXHAUSTED, 429),
    (Unimplemented, codes.UNIMPLEMENTED, 501),
    (Cancelled, codes.CANCELLED, 500),
    (Denied, codes.INTERNAL, 403),
    (CopyError, codes.FAILED_PRECONDITION, 422),
    (StreamError, codes.INTERNAL, 422),
    (ConnectError, codes.INTERNAL, 503),
)


@dataclass(slots=True)
class Summary:
    """What a copy did.

    Attributes:
        files: including hard links.
        directories: created or merged.
        links: symbolic links.
        skipped: entries left out; counted by the receiver of ``on_skip``.
    """

    files: int = 0
    directories: int = 0
    links: int = 0
    size_bytes: int = 0
    skipped: int = 0

    def count(self, entry: Entry | AcceptedEntry) -> None:
        """Count an entry, unless it is a device or pipe."""
        if entry.kind is EntryType.DIRECTORY:
            self.directories += 1
        elif entry.kind is EntryType.SYMLINK:
            self.links += 1
        elif entry.kind in (EntryType.FILE, EntryType.HARDLINK):
            self.files += 1
            self.size_bytes += entry.size_bytes


_NUMBERS: Final = tuple(field.name for field in fields(Summary))


class Outcome(NamedTuple):
    """The outcome of a copy as reported by the server.

    Attributes:
        failure: why it failed; empty after a success.
        copied: what was copied; None if the server does not report it.
        skipped: entries left out, at most ``MAX_SKIPPED``.
        note: what else the user should know; empty for nothing.
    """

    failure: str = ""
    copied: Summary | None = None
    skipped: tuple[Skipped, ...] = ()
    note: str = ""

    def report(self, on_skip: Callable[[Skipped], None], note: Callable[[str], None]) -> None:
        """Report the skipped entries and the note."""
        for skipped in self.skipped:
            on_skip(skipped)
        if self.note:
            note(self.note)


def refusal_codes(exc: Exception) -> tuple[int, int]:
    """Return the gRPC code and the HTTP status with which an error refuses a copy."""
    pairs = (pair for kind, *pair in _REFUSALS if isinstance(exc, kind))
    grpc_code, http_status = next(pairs, (codes.INTERNAL, 500))
    return grpc_code, http_status


def encode_success(copied: Summary, skipped: Sequence[Skipped], note: str = "") -> bytes:
    """Encode the outcome of a successful copy."""
    status: dict[str, Any] = {"metadata": {}, "status": "Success", "copied": asdict(copied)}
    if note:
        status["message"] = note
    causes = [
        {
            "reason": entry.rule,
            "field": os.fsdecode(entry.path)[:_MAX_TEXT],
            "message": entry.reason[:_MAX_TEXT],
        }
        for entry in skipped[:MAX_SKIPPED]
    ]
    if causes:
        status["details"] = {"causes": causes}
    # Names may hold any bytes: invalid UTF-8 becomes lone surrogates, escaped in ASCII.
    while len(encoded := json.dumps(status).encode()) > MAX_BYTES:
        del causes[len(causes) // 2 :]
    return encoded


def encode_failure(error: PycrictlError) -> bytes:
    """Encode the outcome of a failed copy."""
    hint = f" ({error.hint})" if error.hint else ""
    status = {
        "metadata": {},
        "status": "Failure",
        "message": error.message + hint,
        "reason": type(error).__name__,
        "code": 500,
    }
    return json.dumps(status).encode()


def decode(content: bytes) -> Outcome:
    """Decode an outcome.

    Raises:
        RemoteProtocolError: it is malformed.
    """
    return of_status(parsed(content))


def of_status(status: Mapping[str, Any]) -> Outcome:
    """Return the outcome in a parsed ``Status``; raises as ``decode``."""
    if not (end := text(status.get("status"))):
        raise _malformed()
    if end != "Success":
        failure = escape(text(status.get("message")))[: 4 * _MAX_TEXT]
        return Outcome(failure or "the server reports a failure without a reason")
    causes = mappings(mapping(status.get("details")).get("causes"))[:MAX_SKIPPED]
    try:
        skipped = tuple(
            Skipped(
                os.fsencode(text(cause.get("field"))),
                text(cause.get("reason")),
                escape(text(cause.get("message")))[:_MAX_TEXT],
            )
            for cause in causes
        )
    except UnicodeEncodeError:
        raise _malformed() from None
    copied = mapping(status.get("copied"))
    numbers = {name: copied[name] for name in _NUMBERS if name in copied}
    is_valid = bool(copied) and all(
        type(number) is int and count(number) == number for number in numbers.values()
    )
    note = escape(text(status.get("message")))[:_MAX_TEXT]
    return Outcome("", Summary(**numbers) if is_valid else None, skipped, note)


def _malformed() -> RemoteProtocolError:
    return RemoteProtocolError("the server's report on the copy is not a Status object")
