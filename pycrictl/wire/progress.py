"""The messages of the image pull progress stream (KEP-5334), as text and as data. Pure.

One message is one JSON object. The KEP's keys are ``image``, ``layer``, ``progress``, ``total``
and ``error``; our server adds ``phase``, ``queue_position``, ``extracted``, ``extracted_total``,
``resumed``, ``started``, ``behind``, ``pod``, ``digest``, ``idle_s`` and ``sums``, which clients
that implement only the KEP ignore. Over a WebSocket every message has its own frame, over plain
HTTP its own line.

This module only encodes and decodes; ``pycrictl.pulls.tracker`` interprets phases, sums and rates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pycrictl import foreign
from pycrictl.units import quote

WHOLE_NODE: Final = "*"
"""As a pod sandbox ID: all pods of the node, and pulls without a pod. KEP-5334 requires an ID."""

MAX_MESSAGE_BYTES: Final = 1 << 20
"""Longest message that is accepted by default."""

MAX_TEXT: Final = 4096
"""Longest image reference, layer digest or error text, in characters.

A message with a longer name is rejected, since a truncated name would name something else; a longer
error text is truncated.
"""

_LONGEST_S: Final = 1e11
_EXCERPT: Final = 60
_NAME: Final = f"a string of at most {MAX_TEXT} characters"
_JSON_SPACE: Final = " \t\r\n"
_NUMBER_KEYS: Final = frozenset({"progress", "total"})


class Report(NamedTuple):
    """The content of one message; missing fields are empty strings or zeros.

    ``progress`` and ``total`` count compressed bytes and may be any int64. ``image`` and ``layer``
    both empty: the whole pod; ``layer`` empty: the whole image. ``resumed``: bytes present before
    this pull began. ``started``: when it began (Unix time in seconds). ``behind``: the pod or image
    ahead of it in the queue. ``pod``: the pod it is for (NAMESPACE/NAME). ``digest``: of a layer
    first reported under another name, such as ``layer 3 of 7``. ``idle_s``: time without progress.
    ``sums``: the source's own sums for the whole image (``pycrictl.pulls.model.Totals``).
    """

    image: str = ""
    layer: str = ""
    progress: int = 0
    total: int = 0
    error: str = ""
    phase: str = ""
    queue_position: int = 0
    extracted: int = 0
    extracted_total: int = 0
    resumed: int = 0
    started: float = 0.0
    behind: str = ""
    pod: str = ""
    digest: str = ""
    idle_s: float = 0.0
    sums: Mapping[str, Any] | None = None

    @property
    def news(self) -> Report:
        """The report without fields that change merely because time passes."""
        sums = None if self.sums is None else {**self.sums, "idle_s": 0.0}
        return self._replace(idle_s=0.0, sums=sums)


class _NotAReport(ValueError):
    """The message is not a valid report; the exception's text says why."""


class ProgressDecoder:
    """Turns messages into reports; counts and skips bad ones.

    Use ``receive_message`` for messages with boundaries of their own (WebSocket), or
    ``receive_data`` and ``receive_eof`` for a stream of lines. No input makes it raise. It buffers
    at most ``max_message_bytes`` of a line; the rest of a longer line is read as another one.
    ``first_bad`` describes the first message skipped in one printable line.
    """

    def __init__(self, *, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.bad_count = 0
        self.first_bad: str | None = None
        self._max_message_bytes = max_message_bytes
        self._too_long = f"longer than {max_message_bytes} bytes"
        self._line = b""

    def receive_message(self, message: str | bytes | bytearray) -> Report | None:
        """Decode one message; None if it is blank or bad.

        Missing keys and nulls become empty strings or zeros, ``5.0`` and ``5e0`` are accepted as
        integers, unknown keys are ignored. One of our additional keys counts as missing if its
        value has another type: another runtime may use that key for something else.
        """
        try:
            if len(message) > self._max_message_bytes:
                raise _NotAReport(self._too_long)
            text = message if isinstance(message, str) else message.decode()
            return _report(foreign.parse(text)) if text.strip(_JSON_SPACE) else None
        except _NotAReport as exc:
            self._reject(str(exc), message)
        except UnicodeDecodeError:
            self._reject("not valid UTF-8", message)
        except ValueError:
            self._reject("not valid JSON", message)
        return None

    def receive_data(self, data: bytes | bytearray) -> list[Report]:
        """Read the next bytes of a stream of lines; return the reports that they complete.

        A line ends with LF or CRLF.
        """
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > self._max_message_bytes:
            lines.append(self._line)
            self._line = b""
        return [report for report in map(self.receive_message, lines) if report is not None]

    def receive_eof(self) -> list[Report]:
        """Handle the end of a stream of lines; return the report of a last line without LF."""
        line, self._line = self._line, b""
        report = self.receive_message(line)
        return [] if report is None else [report]

    def _reject(self, reason: str, message: str | bytes | bytearray) -> None:
        self.bad_count += 1
        if self.first_bad is None:
            excerpt = message[:_EXCERPT]
            text = excerpt if isinstance(excerpt, str) else excerpt.decode(errors="replace")
            self.first_bad = f"{reason}: {quote(text, _EXCERPT)}"


def encode_report(report: Report) -> str:
    """Encode a report as one line of JSON, without the line feed.

    ``progress`` and ``total`` are always written, other fields only if set. The text is pure ASCII,
    so neither an encoding nor a control character in a name can break it.
    """
    fields: dict[str, object] = {}
    for name, value in zip(Report._fields, report, strict=True):
        if value or name in _NUMBER_KEYS:
            fields[name] = value
    return json.dumps(fields, separators=(",", ":"))


def _report(fields: object) -> Report:
    if not isinstance(fields, dict):
        raise _NotAReport("not one JSON object")
    values: dict[str, Any] = {}
    for key, (read, kind) in _OF_THE_KEP.items():
        try:
            found = foreign.strict(fields.get(key), read)
        except ValueError:
            raise _NotAReport(f'"{key}" is not {kind}') from None
        if found is not None:
            values[key] = found
    if len(error := values.get("error", "")) > MAX_TEXT:
        values["error"] = error[: MAX_TEXT - 1] + "…"
    if not (error or not fields.keys().isdisjoint(_NUMBER_KEYS)):
        raise _NotAReport("no progress in it")
    values.update((key, read(fields.get(key))) for key, read in _OURS.items())
    # JSON escapes can produce lone surrogates.
    return Report(**{key: _encodable(value) for key, value in values.items()})


def _seconds(value: object) -> float:
    seconds = foreign.number(value) or 0.0
    return seconds if seconds < _LONGEST_S else 0.0


def _encodable(value: Any) -> Any:
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


_OF_THE_KEP: Final[Mapping[str, tuple[Callable[[object], Any], str]]] = {
    "image": (foreign.text, _NAME),
    "layer": (foreign.text, _NAME),
    "progress": (foreign.whole, "an integer"),
    "total": (foreign.whole, "an integer"),
    "error": (lambda value: foreign.text(value, MAX_MESSAGE_BYTES), "a string"),
}

_OURS: Final[Mapping[str, Callable[[object], Any]]] = {
    **dict.fromkeys(("phase", "behind", "pod", "digest"), foreign.text),
    **dict.fromkeys(("queue_position", "extracted", "extracted_total", "resumed"), foreign.count),
    **dict.fromkeys(("started", "idle_s"), _seconds),
    "sums": lambda value: foreign.mapping(value) or None,
}
