"""The files of the history of pulls, which survive restarts and crashes of the proxy.

The proxy writes them, commands read them. Each finished PullImage call is one line of JSON,
appended by one write; a line that a crash cut short is skipped. A full file becomes the older one
of two, so at least ``KEPT`` pulls are kept.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pycrictl.base.foreign import mapping, parse
from pycrictl.base.units import format_moment

if TYPE_CHECKING:
    from pycrictl.proxy.pulls.pull_calls import PullCall
    from pycrictl.pulls.state import PullState

STATE_FOLDER: Final = "/var/lib/pycrictl"
KEPT: Final = 10_000  # pulls, whatever their age

NAME: Final = "pulls.jsonl"
_OLDER: Final = "pulls.1.jsonl"
FILE_BYTES: Final = KEPT * 1024
"""The size at which a file is full: a record takes 300 to 500 bytes, and rarely more than 1 KiB."""

_KEYS: Final = frozenset(
    "ended image pod outcome cause waitedSeconds pulledSeconds gotBytes reusedBytes attempts joined"
    " bytesPerSecond".split()
)
"""The keys that a line must have to be shown."""


def record_of(call: PullCall, layers: PullState | None, *, ended_s: float) -> dict[str, Any]:
    """Return the record of a call: times in RFC 3339, null if unknown, without secrets.

    ``cause`` is the last error, maybe of an earlier attempt. ``digest`` is that of the manifest or
    index, or else the image's ID. ``gotBytes`` are compressed, ``extractedBytes`` on disk.
    """
    got = None if layers is None else layers.got_bytes
    return {
        "ended": format_moment(ended_s, "milliseconds"),
        "image": call.reference[:512],
        "digest": (layers.digest if layers else call.image_id) or None,
        "pod": None if call.pod is None else str(call.pod)[:512],
        "outcome": call.outcome.value,
        "code": call.code or None,
        "cause": (call.reason or call.cause)[:300] or None,
        "waitedSeconds": call.waited_s,
        "pulledSeconds": call.pulled_s,
        "gotBytes": got,
        "reusedBytes": None if layers is None else layers.reused_bytes,
        "extractedBytes": None if layers is None else layers.extracted_bytes,
        "attempts": call.attempt,
        "joined": call.is_joined,
        "bytesPerSecond": round(got / call.pulled_s) if got and call.pulled_s else None,
    }


def append(folder: Path, document: dict[str, Any], *, file_bytes: int = FILE_BYTES) -> None:
    """Append a record to the history in a folder, which is created if need be."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / NAME
    with suppress(FileNotFoundError):
        if path.lstat().st_size >= file_bytes:
            path.rename(folder / _OLDER)
    # A line begins with its separator, so a line that was cut short does not damage the next.
    line = b"\n" + json.dumps(document, separators=(",", ":")).encode()
    with open(path, "ab", opener=_open) as file:
        file.write(line)


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
