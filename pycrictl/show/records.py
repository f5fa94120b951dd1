"""A hidden form of output: tables, documents and progress as JSON, for a client that merges hosts.

``Records`` is a standard output that also takes text. A record is a line of JSON behind a secret
word, which nothing else that is printed can contain. By ``records_of``, writers in ``show`` know
whether to write records.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, TextIO

from pycrictl.base import foreign
from pycrictl.base.errors import RemoteProtocolError
from pycrictl.base.units import escape

_LINE_BYTES: Final = 64 * 1024
"""Longer lines are split."""

_RECORDS_BYTES: Final = 32 * 1024 * 1024
"""How much data of one host is kept until all have answered."""


class ToldStream(io.TextIOWrapper):
    """A standard stream that stands for one of the client, which may be a terminal."""

    def __init__(self, descriptor: int, *, is_terminal: bool) -> None:
        stream = open(descriptor, "wb", closefd=False)
        super().__init__(stream, "utf-8", "surrogateescape", write_through=True)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


class Records(ToldStream):
    """A standard output with records.

    Args:
        word: the secret word, which is put in front of each record.
        is_terminal: whether the client's output, for which tables are made, is a terminal.
    """

    def __init__(self, word: str, *, is_terminal: bool) -> None:
        super().__init__(1, is_terminal=is_terminal)
        self._word = word

    def put(self, kind: str, content: Any, **more: Any) -> None:
        self.write(f"{self._word}{json.dumps({'kind': kind, 'content': content, **more})}\n")
        self.flush()

    def objects(self, form: str, target: str) -> TextIO:
        """Return a stream for the JSON lines of a display.

        Args:
            form: the client's form of progress.
            target: ``stdout`` or ``stderr``, where the client writes JSON lines.
        """
        return _Objects(self, form, target)


class _Objects(io.StringIO):
    def __init__(self, records: Records, form: str, target: str) -> None:
        super().__init__()
        self._records, self._form, self._target = records, form, target

    def write(self, text: str, /) -> int:
        for line in text.splitlines():
            content = json.loads(line)
            self._records.put("progress", content, form=self._form, target=self._target)
        return len(text)


class Record(NamedTuple):
    """What a host has sent, checked.

    Attributes:
        kind: ``table``, ``ids``, ``document``, ``pods`` or ``node`` (diagnoses), ``board``
            (of ``top``), ``progress``.
        content: what the client shows; for tables, the fields of a ``render.Table``.
        has_header, is_fitted: for tables, whether headings are shown and the width is limited.
        form: ``json`` or ``yaml`` for documents, the client's form for progress.
        target: ``stdout`` or ``stderr``, where the client writes progress as JSON lines.
    """

    kind: str
    content: Any
    has_header: bool = True
    is_fitted: bool = False
    form: str = ""
    target: str = ""

    @property
    def passes(self) -> bool:
        """Whether it is shown at once, and not kept until the command has ended."""
        return self.kind in ("progress", "board")


class Lines(NamedTuple):
    """Lines that a host has printed; very long ones are split."""

    lines: Sequence[bytes]
    is_error: bool = False


class End(NamedTuple):
    """The end of a host's command; ``error`` says why there is no exit status."""

    status: int
    error: str


Event = Record | Lines | End
"""What comes from a host."""

Events = Iterator[tuple[str, Event] | None]
"""What hosts send, with their labels; None if it is time to draw."""


def received(pieces: Iterable[tuple[bool, bytes]], word: bytes) -> Iterator[Lines | Record]:
    """Yield the lines and records of a host's outputs; a record follows the secret word.

    Args:
        pieces: the data of both outputs, each with whether it is standard error.

    Raises:
        RemoteProtocolError: a record is not valid, or the records are too large in total.
    """
    rest, kept_bytes = {False: b"", True: b""}, 0
    line_ends = ((is_error, b"\n") for is_error, text in rest.items() if text)
    for is_error, data in chain(pieces, line_ends):
        *lines, last = (rest[is_error] + data).split(b"\n")
        if len(last) > _LINE_BYTES and word not in last:
            lines, last = [*lines, last], b""
        rest[is_error] = last
        texts: list[bytes] = []
        for line in lines:
            text, is_record, content = line.partition(word)
            texts += [text] if text or not is_record else []
            if is_record:
                if texts:
                    yield Lines(texts, is_error)
                texts = []
                try:
                    record = _parsed(content)
                except (ValueError, TypeError, KeyError, RecursionError):
                    raise RemoteProtocolError("its answer is not valid") from None
                kept_bytes += 0 if record.passes else len(content)
                yield record
        if texts:
            yield Lines(texts, is_error)
        if kept_bytes + len(last) > _RECORDS_BYTES:
            raise RemoteProtocolError(f"it sends more than {_RECORDS_BYTES >> 20} MiB of data")


def _parsed(line: bytes) -> Record:
    """Read a record from a host; ValueError or TypeError if it is none."""
    record = Record(**foreign.mapping(json.loads(line)))
    content = record.content
    if record.kind == "table":
        header = tuple(escape(str(name)) for name in content["header"])
        rows = [tuple(map(str, row)) for row in content["rows"]]
        order = [*content["order"]] or [""] * len(rows)
        if len(order) != len(rows) or any(len(row) != len(header) for row in rows):
            raise ValueError("the table is not rectangular")
        content |= {"header": header, "rows": rows, "order": order}
    elif record.kind in ("ids", "pods", "node", "board", "progress"):
        if not isinstance(content, list if record.kind == "ids" else dict):
            raise ValueError("the record is incomplete")
    elif record.kind != "document":
        raise ValueError("the record is of no known kind")
    return record


def records_of(out: TextIO) -> Records | None:
    """Return the stream if it takes records."""
    return out if isinstance(out, Records) else None
