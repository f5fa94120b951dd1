"""The messages of the image pull progress stream (KEP-5334), as text and as data. Pure.

One message is one JSON object. The KEP's keys are ``image``, ``layer``, ``progress``, ``total``
and ``error``; our server adds ``phase``, ``queue_position``, ``extracted``, ``extracted_total``,
``resumed``, ``started``, ``behind``, ``pod``, ``digest``, ``idle_s`` and ``sums``, which a reader
of the KEP alone ignores. Over a WebSocket every message has its own frame, over plain HTTP every
message has its own line.

This module reads what a message says and not what it means: phases, sums and rates are up to
``pycrictl.pulls.tracker``.

Messages are outside data, and many: a watcher of a busy node decodes thousands a second. So what
an ordinary message needs stands in one function without a call more than necessary, and every
odd case leaves it by an exception or by one of the functions below it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.scanner import make_scanner
from typing import Any, Final, NamedTuple

from pycrictl import foreign
from pycrictl.units import quote

__all__ = [
    "MAX_MESSAGE_BYTES",
    "MAX_TEXT",
    "WHOLE_NODE",
    "ProgressDecoder",
    "Report",
    "encode_report",
]

WHOLE_NODE: Final = "*"
"""As a pod sandbox ID: all pods of the node, and pulls for none. KEP-5334 requires an ID."""

MAX_MESSAGE_BYTES: Final = 1 << 20
"""Longest message that is looked at by default."""

MAX_TEXT: Final = 4096
"""Longest image reference, layer digest or error text, in characters.

A message with a longer name is bad, since a shortened name would be the name of something else;
a longer error text is cut.
"""

_INT64_MAX: Final = 2**63 - 1
_INT64_MIN: Final = -(2**63)
_EXCERPT: Final = 60
_JSON_SPACE: Final = " \t\r\n"
_RARE_KEYS: Final = frozenset({"resumed", "started", "behind", "pod", "digest", "idle_s", "sums"})
_NUMBER_KEYS: Final = frozenset({"progress", "total"})

# What json.loads calls in the end. Calling it directly takes half the time for a short message.
_scan: Final = make_scanner(json.JSONDecoder())  # type: ignore[arg-type]  # takes any decoder


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

    image: str
    layer: str
    progress: int
    total: int
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
    ``receive_data`` and ``receive_eof`` for a stream of lines. No input makes it raise, and it
    never holds more than ``max_message_bytes`` of a line.

    Args:
        max_message_bytes: a message longer than this is bad and is not parsed.

    Attributes:
        bad_count: how many messages were skipped. Blank ones do not count.
        first_bad: what was wrong with the first of them, in one printable line, or None.
    """

    def __init__(self, *, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.bad_count = 0
        self.first_bad: str | None = None
        self._max_message_bytes = max_message_bytes
        self._too_long = f"longer than {max_message_bytes} bytes"
        self._line = bytearray()
        self._in_long_line = False

    def receive_message(self, message: str | bytes | bytearray) -> Report | None:
        """Decode one message; None if it is blank or bad.

        Missing keys and nulls are empty texts and zeros, an integer written as ``5.0`` or ``5e0``
        is one, unknown keys are ignored. An additional key of ours with a value of another type
        counts as missing: somebody else may use its name for something else.
        """
        try:
            if len(message) > self._max_message_bytes:
                raise _NotAReport(self._too_long)
            text = message if isinstance(message, str) else message.decode()
            text = text.strip(_JSON_SPACE)
            fields, end = _scan(text, 0)
            if type(fields) is not dict or end != len(text):
                raise _NotAReport("not one JSON object")
            get = fields.get

            image = get("image", "")
            if type(image) is not str or len(image) > MAX_TEXT:
                image = _name("image", image)
            layer = get("layer", "")
            if type(layer) is not str or len(layer) > MAX_TEXT:
                layer = _name("layer", layer)
            progress = get("progress", 0)
            if type(progress) is not int or not _INT64_MIN <= progress <= _INT64_MAX:
                progress = _int64("progress", progress)
            total = get("total", 0)
            if type(total) is not int or not _INT64_MIN <= total <= _INT64_MAX:
                total = _int64("total", total)
            error = get("error", "")
            if type(error) is not str or len(error) > MAX_TEXT:
                error = _error_text(error)

            if not (progress or total or error) and fields.keys().isdisjoint(_NUMBER_KEYS):
                raise _NotAReport("no progress in it")

            phase = get("phase", "")
            if type(phase) is not str:
                phase = ""
            queue_position = get("queue_position", 0)
            if type(queue_position) is not int or not 0 <= queue_position <= _INT64_MAX:
                queue_position = 0
            extracted = get("extracted", 0)
            if type(extracted) is not int or not 0 <= extracted <= _INT64_MAX:
                extracted = 0
            extracted_total = get("extracted_total", 0)
            if type(extracted_total) is not int or not 0 <= extracted_total <= _INT64_MAX:
                extracted_total = 0

            resumed, started, behind, pod, digest, idle_s, sums = 0, 0.0, "", "", "", 0.0, None
            if not _RARE_KEYS.isdisjoint(fields):
                resumed, started, behind, pod, digest, idle_s, sums = _rare(fields)

            if "\\" in text:  # only an escape can bring in half a surrogate pair
                image, layer, error, phase = map(_encodable, (image, layer, error, phase))
                behind, pod, digest = map(_encodable, (behind, pod, digest))
            return Report._make(
                (
                    image,
                    layer,
                    progress,
                    total,
                    error,
                    phase,
                    queue_position,
                    extracted,
                    extracted_total,
                    resumed,
                    started,
                    behind,
                    pod,
                    digest,
                    idle_s,
                    sums,
                )
            )
        except StopIteration:  # the scanner's word for "no JSON value starts here"
            if text:
                self._reject("not valid JSON", message)
        except RecursionError:
            self._reject("nested too deeply", message)
        except _NotAReport as exc:
            self._reject(str(exc), message)
        except UnicodeDecodeError:
            self._reject("not valid UTF-8", message)
        except ValueError:
            self._reject("not valid JSON", message)
        return None

    def receive_data(self, data: bytes | bytearray) -> list[Report]:
        """Take the next bytes of a stream of lines; return the reports that became complete.

        A line ends with LF or CRLF. A line over the limit counts once as bad, however long it is.
        """
        head, *lines = data.split(b"\n")
        self._extend_line(head)
        if not lines:
            return []
        tail = lines.pop()
        reports = [self._end_line(), *map(self.receive_message, lines)]
        self._extend_line(tail)
        return [report for report in reports if report is not None]

    def receive_eof(self) -> list[Report]:
        """Take the end of a stream of lines; return the last line's report if it had no LF."""
        report = self._end_line()
        return [] if report is None else [report]

    def _extend_line(self, piece: bytes | bytearray) -> None:
        if self._in_long_line:
            return
        if len(self._line) + len(piece) > self._max_message_bytes:
            self._in_long_line = True
            self._reject(self._too_long, self._line + piece[:_EXCERPT])
            self._line = bytearray()
        else:
            self._line += piece

    def _end_line(self) -> Report | None:
        line, self._line = self._line, bytearray()
        was_long, self._in_long_line = self._in_long_line, False
        return None if was_long else self.receive_message(line)

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


def _name(key: str, value: object) -> str:
    if value is None:
        return ""
    if type(value) is not str:
        raise _NotAReport(f'"{key}" is not a string')
    raise _NotAReport(f'"{key}" is longer than {MAX_TEXT} characters')


def _error_text(value: object) -> str:
    if value is None:
        return ""
    if type(value) is not str:
        raise _NotAReport('"error" is not a string')
    return value[: MAX_TEXT - 1] + "…"


def _rare(
    fields: dict[str, object],
) -> tuple[int, float, str, str, str, float, dict[str, Any] | None]:
    """Return what few messages have, in the order of ``Report``: ``resumed`` and what follows."""
    idle_s = fields.get("idle_s")
    resumed, started = fields.get("resumed"), fields.get("started")
    texts = (fields.get(key, "") for key in ("behind", "pod", "digest"))
    behind, pod, digest = (one[:MAX_TEXT] if isinstance(one, str) else "" for one in texts)
    return (
        resumed if type(resumed) is int and 0 <= resumed <= _INT64_MAX else 0,
        float(started) if isinstance(started, int | float) and 0 < started < 1e11 else 0.0,
        behind,
        pod,
        digest,
        float(idle_s) if isinstance(idle_s, int | float) and 0 < idle_s < 1e11 else 0.0,
        foreign.mapping(fields.get("sums")) or None,
    )


def _int64(key: str, value: object) -> int:
    if value is None:
        return 0
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise _NotAReport(f'"{key}" is not an integer')
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise _NotAReport(f'"{key}" does not fit into 64 bits')
    return value


def _encodable(text: str) -> str:
    return text.encode(errors="replace").decode()
