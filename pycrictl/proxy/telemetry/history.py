"""The last pulls, in files that survive restarts and crashes of the proxy.

Each record is one line of JSON, appended by one write. A line that a crash cut short is skipped. A
full file becomes the older one of two, so at least ``KEPT`` pulls are kept, in never more than two
files. Several processes may write at once, as the old and the new one do during a hand-over.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pycrictl.base.foreign import mapping, parse
from pycrictl.base.units import format_moment
from pycrictl.proxy.pulls.pull_calls import CallState, PullCall

STATE_FOLDER: Final = "/var/lib/pycrictl"
KEPT: Final = 10_000

NAME: Final = "pulls.jsonl"
_OLDER: Final = "pulls.1.jsonl"
FILE_BYTES: Final = KEPT * 1024
"""The size at which a file is full: a record takes 300 to 500 bytes, and rarely more than 1 KiB."""

_KEYS: Final = frozenset(
    "ended image pod outcome cause waitedSeconds pulledSeconds gotBytes reusedBytes attempts joined"
    " bytesPerSecond".split()
)
"""What a line must have to be shown."""

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
    def of(cls, call: PullCall) -> PullRecord:
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
            ended_s=time.time(),
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

    def document(self) -> dict[str, Any]:
        """Return the record as JSON: times in RFC 3339, durations in seconds, null if unknown."""
        return {
            "ended": format_moment(self.ended_s, "milliseconds"),
            "image": self.image,
            "digest": self.digest or None,
            "pod": self.pod or None,
            "outcome": self.outcome.value,
            "code": self.code or None,
            "cause": self.cause or None,
            "waitedSeconds": self.waited_s,
            "pulledSeconds": self.pulled_s,
            "gotBytes": self.got_bytes,
            "reusedBytes": self.reused_bytes,
            "extractedBytes": self.extracted_bytes,
            "sizeBytes": self.size_bytes,
            "attempts": self.attempts,
            "joined": self.is_joined,
            "bytesPerSecond": (
                round(self.got_bytes / self.pulled_s) if self.got_bytes and self.pulled_s else None
            ),
        }


def append(folder: Path, record: PullRecord, *, file_bytes: int = FILE_BYTES) -> None:
    """Append a record to the history in a folder, which is created if need be."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A line begins with its separator, so that one that was cut short costs nothing else.
    line = b"\n" + json.dumps(record.document(), separators=(",", ":")).encode()
    path = folder / NAME
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if path.lstat().st_size >= file_bytes:
                path.rename(folder / _OLDER)
        with open(path, "ab", opener=_open) as file:
            file.write(line)
    finally:
        os.close(lock)


def newest(folder: Path, *, kept: int = KEPT) -> list[dict[str, Any]]:
    """Return the documents of the last records, the oldest first; none if there is no history."""
    return list(deque(_read(folder), maxlen=kept))


def _read(folder: Path) -> Iterator[dict[str, Any]]:
    for name in (_OLDER, NAME):
        with suppress(FileNotFoundError), open(folder / name, "rb", opener=_open) as file:
            for line in file.read(2 * FILE_BYTES).splitlines():
                with suppress(ValueError):
                    if _KEYS <= (document := mapping(parse(line))).keys():
                        yield document


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
