"""The messages of the image pull progress stream (KEP-5334), as text and as data. Pure.

One message is one JSON object. The KEP's keys are ``image``, ``layer``, ``progress``, ``total``
and ``error``; our server adds ``phase``, ``queue_position``, ``extracted``, ``extracted_total``,
``resumed``, ``started``, ``behind``, ``pod``, ``digest``, ``idle_s`` and ``sums``, which a reader
of the KEP alone ignores. Over a WebSocket every message has its own frame, over plain HTTP every
message has its own line.

This module reads what a message says and not what it means: phases, sums and rates are up to
``pycrictl.pulls.tracker``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pycrictl import foreign
from pycrictl.units import quote

WHOLE_NODE: Final = "*"
"""As a pod sandbox ID: all pods of the node, and pulls for none. KEP-5334 requires an ID."""

MAX_MESSAGE_BYTES: Final = 1 << 20
"""Longest message that is looked at by default."""

MAX_TEXT: Final = 4096
"""Longest image reference, layer digest or error text, in characters.

A message with a longer name is bad, since a shortened name would be the name of something else;
a longer error text is cut.
"""

_LONGEST_S: Final = 1e11
_EXCERPT: Final = 60
_NAME: Final = f"a string of at most {MAX_TEXT} characters"
_JSON_SPACE: Final = " \t\r\n"
_NUMBER_KEYS: Final = frozenset({"progress", "total"})


class Report(NamedTuple):
    """What one message says. Empty texts and zeros stand for what it leaves out.

    ``progress`` and ``total`` count compressed bytes and may be anything an int64 can hold.
    ``image`` and ``layer`` both empty: the whole pod; ``layer`` empty: the whole image. ``resumed``
    are bytes that were there before this pull began, ``started`` is when it began (Unix time in
    seconds), ``behind`` who is ahead of it in the queue, ``pod`` whose it is (NAMESPACE/NAME),
    ``digest`` that of a layer that began under another name, such as ``layer 3 of 7``, ``idle_s``
    for how long nothing had moved, ``sums`` an object with those of the whole image, as its source
    has them (``pycrictl.pulls.model.Totals``).
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
        """The report without what only says that time has passed."""
        sums = None if self.sums is None else {**self.sums, "idle_s": 0.0}
        return self._replace(idle_s=0.0, sums=sums)


class _NotAReport(ValueError):
    """The message is well-formed JSON at best; its text says what is wrong."""


class ProgressDecoder:
    """Turns messages into reports; counts and skips everything else.

    Use ``receive_message`` for messages that have boundaries of their own (WebSocket), or
    ``receive_data`` and ``receive_eof`` for a stream of lines. No input makes it raise. Of a line
    it holds at most ``max_message_bytes``; what follows in a longer one is read as another.
    ``first_bad`` says what was wrong with the first message skipped, in one printable line.
    """

    def __init__(self, *, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.bad_count = 0
        self.first_bad: str | None = None
        self._max_message_bytes = max_message_bytes
        self._too_long = f"longer than {max_message_bytes} bytes"
        self._line = b""

    def receive_message(self, message: str | bytes | bytearray) -> Report | None:
        """Decode one message; None if it is blank or bad.

        Missing keys and nulls are empty texts and zeros, an integer written as ``5.0`` or ``5e0``
        is one, unknown keys are ignored. An additional key of ours with a value of another type
        counts as missing: another runtime may use that key for something else.
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
        """Take the next bytes of a stream of lines; return the reports that became complete.

        A line ends with LF or CRLF.
        """
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > self._max_message_bytes:
            lines.append(self._line)
            self._line = b""
        return [report for report in map(self.receive_message, lines) if report is not None]

    def receive_eof(self) -> list[Report]:
        """Take the end of a stream of lines; return the last line's report if it had no LF."""
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
    """Write a report as one line of JSON, without the line feed.

    ``progress`` and ``total`` are always there, everything else only when it is set. The text is
    pure ASCII, so neither an encoding nor a control character in a name can break it.
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
    # Escapes can bring in halves of surrogate pairs.
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
