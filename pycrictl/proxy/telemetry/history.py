"""The last pulls, in files that survive restarts and crashes of the proxy, and their summary.

Each record is one line of JSON, appended by one write. A line that a crash cut short is skipped,
and the next record begins on a new line. A full file becomes the older one of two, so at least
``KEPT`` pulls are kept, in never more than two files. Several processes may write at once, as the
old and the new one do during a hand-over.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pycrictl.base.foreign import count, flag, mapping, moment, number, parse, strict, text
from pycrictl.base.units import format_moment
from pycrictl.proxy.pulls.book import CallState, PullCall

STATE_FOLDER: Final = "/var/lib/pycrictl"
KEPT: Final = 10_000

NAME: Final = "pulls.jsonl"
_OLDER: Final = "pulls.1.jsonl"
FILE_BYTES: Final = KEPT * 1024
"""The size at which a file is full: a record takes 300 to 500 bytes, and rarely more than 1 KiB."""

_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_MAX_NAME_CHARS: Final = 512
_MAX_CAUSE_CHARS: Final = 300


class CallOutcome(StrEnum):
    """How a call ended. ``GONE``: its client disconnected. ``REFUSED``: by the proxy.

    ``PRESENT``: the runtime already had the image.
    """

    PULLED = "pulled"
    PRESENT = "present"
    FAILED = "failed"
    REFUSED = "refused"
    GONE = "gone"

    @property
    def is_good(self) -> bool:
        return self in (CallOutcome.PULLED, CallOutcome.PRESENT)


@dataclass(frozen=True, slots=True)
class PullRecord:
    """The record of a call, in wall time and without secrets; bytes are None if unknown.

    ``waited_s`` is the time from the first attempt to the start, ``cause`` the last error, maybe of
    an earlier attempt. ``digest`` is what the tag named, or else the image's ID. ``got_bytes`` are
    compressed, ``extracted_bytes`` on disk; ``size_bytes`` are compressed, or the runtime's figure.
    """

    ended_s: float
    image: str
    pod: str
    outcome: CallOutcome
    code: str
    cause: str
    waited_s: float
    pulled_s: float
    attempts: int
    is_joined: bool
    digest: str = ""
    got_bytes: int | None = None
    reused_bytes: int | None = None
    extracted_bytes: int | None = None
    size_bytes: int | None = None

    @classmethod
    def of(cls, call: PullCall, *, wall_s: float) -> PullRecord:
        began = call.started
        waited_until = call.ended if began is None else max(began, call.asked)
        if call.end is CallState.LEFT:
            outcome = CallOutcome.GONE
        elif call.refusal is not None:
            outcome = CallOutcome.REFUSED
        elif call.end is CallState.FAILED:
            outcome = CallOutcome.FAILED
        else:
            outcome = CallOutcome.PULLED if call.pull.takes_slot else CallOutcome.PRESENT
        return cls(
            ended_s=wall_s,
            image=call.reference[:_MAX_NAME_CHARS],
            pod="" if call.pod is None else str(call.pod)[:_MAX_NAME_CHARS],
            outcome=outcome,
            code=call.code,
            cause=(call.reason or call.cause)[:_MAX_CAUSE_CHARS],
            waited_s=round(waited_until - call.asked, 3),
            pulled_s=round(max(call.ended - waited_until, 0.0), 3),
            attempts=call.attempt,
            is_joined=call.is_joined,
            digest=call.image_id,
        )

    @property
    def rate(self) -> float | None:
        return self.got_bytes / self.pulled_s if self.got_bytes and self.pulled_s else None

    def document(self) -> dict[str, Any]:
        """Return the record as JSON: times in RFC 3339, durations in seconds, null if unknown."""
        values = {key: getattr(self, name) for key, (name, *_) in _FIELDS.items()}
        return {
            **{key: None if value == "" else value for key, value in values.items()},
            "ended": format_moment(self.ended_s, "milliseconds"),
            "outcome": self.outcome.value,
            "bytesPerSecond": None if self.rate is None else round(self.rate),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> PullRecord:
        """Return the record from the JSON of ``document``; raise ValueError for anything else."""
        fields_read: dict[str, Any] = {}
        for key, (name, read, empty) in _FIELDS.items():
            value = strict(document.get(key), read)
            fields_read[name] = empty if value is None else value
        fields_read["ended_s"] = moment(fields_read["ended_s"])
        fields_read["outcome"] = CallOutcome(fields_read["outcome"])
        if not fields_read["ended_s"] or None in (fields_read["waited_s"], fields_read["pulled_s"]):
            raise ValueError("not the record of a pull")
        return cls(**fields_read)


def append(folder: Path, record: PullRecord, *, file_bytes: int = FILE_BYTES) -> None:
    """Append a record to the history in a folder, which is created if need be."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = json.dumps(record.document(), separators=(",", ":")).encode() + b"\n"
    descriptor = _opened(folder, file_bytes)
    try:
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes and os.pread(descriptor, 1, size_bytes - 1) != b"\n":
            line = b"\n" + line
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def newest(folder: Path, *, kept: int = KEPT) -> list[PullRecord]:
    """Return the last records, the oldest first; none if there is no history."""
    return list(deque(_read(folder), maxlen=kept))


def _opened(folder: Path, file_bytes: int) -> int:
    """Open the file to append to and lock it; rotate it first if it is full."""
    path = folder / NAME
    while True:
        descriptor = os.open(path, _FLAGS, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            status = os.fstat(descriptor)
            # Another process may have replaced the file before it was locked.
            with suppress(FileNotFoundError):
                if os.path.samestat(status, path.stat()):
                    if status.st_size < file_bytes:
                        return descriptor
                    path.rename(folder / _OLDER)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _read(folder: Path) -> Iterator[PullRecord]:
    for name in (_OLDER, NAME):
        for line in _lines(folder / name):
            with suppress(ValueError):
                yield PullRecord.from_document(mapping(parse(line)))


def _lines(path: Path) -> Iterator[bytes]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with os.fdopen(descriptor, "rb") as file:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            rest = file.read(2 * FILE_BYTES)
            yield from rest.splitlines()


_FIELDS: Final[Mapping[str, tuple[str, Callable[[object], Any], Any]]] = {
    "ended": ("ended_s", text, ""),
    "image": ("image", text, ""),
    "digest": ("digest", text, ""),
    "pod": ("pod", text, ""),
    "outcome": ("outcome", text, ""),
    "code": ("code", text, ""),
    "cause": ("cause", text, ""),
    "waitedSeconds": ("waited_s", number, None),
    "pulledSeconds": ("pulled_s", number, None),
    "gotBytes": ("got_bytes", count, None),
    "reusedBytes": ("reused_bytes", count, None),
    "extractedBytes": ("extracted_bytes", count, None),
    "sizeBytes": ("size_bytes", count, None),
    "attempts": ("attempts", count, 0),
    "joined": ("is_joined", flag, False),
}
"""For each JSON key: the field of a record, the function that reads it, the value for null."""
