"""As much of HTTP/1.1 as a client needs to reach a stream (RFC 9110 and 9112). Pure.

A stream of a container runtime begins with one request. The answer is 101 and another protocol
from there on, or any other status with a body, which is an error text or a stream in itself. So
there is one request and one response to a connection: no reuse, no pipelining, no HEAD, and no
content coding.

Input is outside data. Lines, header fields and the head as a whole are limited, and what two
readers could understand differently is refused. A bare LF ends a line as well as CRLF does
(RFC 9112, 2.2).
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from typing import Final, NamedTuple

from pycrictl.errors import LocalProtocolError, RemoteProtocolError, StreamError

__all__ = [
    "BodyReceived",
    "Event",
    "Headers",
    "ResponseEnded",
    "ResponseParser",
    "ResponseReceived",
    "serialize_request",
]

MAX_LINE_BYTES: Final = 8192
MAX_HEAD_BYTES: Final = 65536
MAX_FIELDS: Final = 128
MAX_INTERIM_RESPONSES: Final = 8

SWITCHING_PROTOCOLS: Final = 101

# RFC 9110, 5.6.2 (token) and 5.5 (field-value); RFC 3986 leaves only visible ASCII in a target.
_TOKEN: Final = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_TARGET: Final = re.compile(r"[\x21-\x7e]+")
_STATUS_LINE: Final = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
# Both are limited far above any real size and far below what int() refuses.
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_CHUNK_SIZE: Final = re.compile(r"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")

_Steps = Generator[None, None, None]


class Headers:
    """Header fields in the order they came, found by names without regard to case."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Iterable[tuple[str, str]] = ()) -> None:
        self._fields = tuple((name.lower(), value) for name, value in fields)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._fields)

    def get_all(self, name: str) -> list[str]:
        """Return the values of all fields of that name, maybe none."""
        name = name.lower()
        return [value for field, value in self._fields if field == name]

    def get(self, name: str) -> str | None:
        """Return the value, several joined by commas (RFC 9110, 5.3), or None."""
        values = self.get_all(name)
        return ", ".join(values) if values else None

    def tokens(self, name: str) -> list[str]:
        """Return the elements of a comma-separated list, in lower case, without empty ones."""
        elements = (self.get(name) or "").lower().split(",")
        return [element.strip(" \t") for element in elements if element.strip(" \t")]


class ResponseReceived(NamedTuple):
    """The head of the final response is there. Texts are decoded as ISO 8859-1."""

    status: int
    reason: str
    headers: Headers


class BodyReceived(NamedTuple):
    """The next bytes of the body, without its framing."""

    data: bytes


class ResponseEnded(NamedTuple):
    """The body is complete; after a 101, the HTTP part of the connection."""


Event = ResponseReceived | BodyReceived | ResponseEnded


def serialize_request(method: str, target: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """Write a request without a body.

    Raises:
        LocalProtocolError: something in it cannot be sent. The message does not repeat it, as it
            may be a secret.
    """
    if not _TOKEN.fullmatch(method):
        raise LocalProtocolError("invalid method in an HTTP request")
    if not _TARGET.fullmatch(target):
        raise LocalProtocolError("invalid target in an HTTP request")
    lines = [f"{method} {target} HTTP/1.1"]
    for name, value in headers:
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise LocalProtocolError("invalid header field in an HTTP request")
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, "", ""]).encode("iso-8859-1")


class ResponseParser:
    """Reads one response, interim ones (1xx) left out.

    Feed it with ``receive_data`` and ``receive_eof``, then take ``events_received``. Neither
    raises for anything that the peer does: the parser stops, and ``error`` says why. Events from
    before that are valid. A body is passed on as it comes and never gathered.

    Attributes:
        error: RemoteProtocolError if the peer broke the protocol, StreamError if the connection
            ended too early, else None.
        is_finished: True after ``ResponseEnded`` or an error. Nothing can be fed any more.
    """

    def __init__(self) -> None:
        self.error: StreamError | None = None
        self.is_finished = False
        self._buffer = bytearray()
        self._is_eof = False
        self._events: list[Event] = []
        self._body = bytearray()
        self._steps = self._parse()

    @property
    def leftover(self) -> bytes:
        """What came after the end of the response: after a 101, the other protocol's bytes."""
        return bytes(self._buffer) if self.is_finished else b""

    def receive_data(self, data: bytes) -> None:
        """Take in bytes from the peer.

        Raises:
            LocalProtocolError: the response is finished, or the end was fed before.
        """
        if self.is_finished or self._is_eof:
            raise LocalProtocolError("data fed to a finished HTTP response")
        self._buffer += data
        self._advance()

    def receive_eof(self) -> None:
        """Take in that the peer sends no more. Has no effect after the end."""
        self._is_eof = True
        if not self.is_finished:
            self._advance()

    def events_received(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def _advance(self) -> None:
        ended = False
        try:
            next(self._steps)
        except StopIteration:
            self.is_finished = ended = True
        except StreamError as exc:
            self.is_finished = True
            self.error = exc
        if self._body:
            self._events.append(BodyReceived(bytes(self._body)))
            self._body.clear()
        if ended:
            self._events.append(ResponseEnded())

    # What follows are the steps of one generator: each ``yield`` waits for more input.

    def _parse(self) -> _Steps:
        for _ in range(MAX_INTERIM_RESPONSES + 1):
            minor_version, response = yield from self._read_head()
            if response.status >= 200 or response.status == SWITCHING_PROTOCOLS:
                break
        else:
            raise RemoteProtocolError("too many interim HTTP responses")
        body = self._choose_body(minor_version, response)
        self._events.append(response)
        yield from body

    def _choose_body(self, minor_version: int, response: ResponseReceived) -> _Steps:
        """Return the steps that read the body as it is framed (RFC 9112, 6.3)."""
        if response.status in (SWITCHING_PROTOCOLS, 204, 304):
            return self._read_bytes(0)
        headers = response.headers
        lengths = set(headers.tokens("Content-Length"))
        if headers.get("Transfer-Encoding") is not None:
            # A length beside a coding, or a coding in 1.0, is how responses are smuggled.
            codings = headers.tokens("Transfer-Encoding")
            if codings != ["chunked"] or lengths or minor_version == 0:
                raise RemoteProtocolError("unsupported transfer coding in an HTTP response")
            return self._read_chunks()
        if headers.get("Content-Length") is None:
            return self._read_to_eof()
        length = lengths.pop() if len(lengths) == 1 else ""
        if not _LENGTH.fullmatch(length):
            raise RemoteProtocolError("invalid content length in an HTTP response")
        return self._read_bytes(int(length))

    def _read_head(self) -> Generator[None, None, tuple[int, ResponseReceived]]:
        line = yield from self._read_line()
        match = _STATUS_LINE.fullmatch(line)
        if match is None:
            raise RemoteProtocolError("the peer does not speak HTTP/1.1")
        fields = yield from self._read_fields()
        minor, status, reason = match.groups()
        return int(minor), ResponseReceived(int(status), reason or "", Headers(fields))

    def _read_fields(self) -> Generator[None, None, list[tuple[str, str]]]:
        fields: list[tuple[str, str]] = []
        size = 0
        while line := (yield from self._read_line()):
            size += len(line)
            if len(fields) == MAX_FIELDS or size > MAX_HEAD_BYTES:
                raise RemoteProtocolError("too many header fields in an HTTP response")
            name, colon, value = line.partition(":")
            value = value.strip(" \t")
            # A folded line begins with a space and so has no valid name (RFC 9112, 5.2).
            if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
                raise RemoteProtocolError("invalid header field in an HTTP response")
            fields.append((name, value))
        return fields

    def _read_chunks(self) -> _Steps:
        while True:
            line = yield from self._read_line()
            match = _CHUNK_SIZE.fullmatch(line)
            if match is None:
                raise RemoteProtocolError("invalid chunk size in an HTTP response")
            size = int(match[1], 16)
            if size == 0:
                break
            yield from self._read_bytes(size)
            if (yield from self._read_line()):
                raise RemoteProtocolError("a chunk of an HTTP response is longer than announced")
        yield from self._read_fields()  # trailers say nothing that matters here

    def _read_bytes(self, size: int) -> _Steps:
        while size:
            yield from self._wait()
            piece = self._buffer[:size]
            del self._buffer[:size]
            self._body += piece
            size -= len(piece)

    def _read_to_eof(self) -> _Steps:
        while True:
            self._body += self._buffer
            self._buffer.clear()
            if self._is_eof:
                return
            yield

    def _read_line(self) -> Generator[None, None, str]:
        """Read up to LF; leave out the line end."""
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > MAX_LINE_BYTES:
                break
            yield from self._wait(searched)
        if not 0 <= end <= MAX_LINE_BYTES:
            raise RemoteProtocolError("a line of an HTTP response is too long")
        line = self._buffer[:end].decode("iso-8859-1").removesuffix("\r")
        del self._buffer[: end + 1]
        return line

    def _wait(self, size: int = 0) -> _Steps:
        """Wait until the buffer holds more than ``size`` bytes."""
        while len(self._buffer) <= size:
            if self._is_eof:
                raise StreamError("the connection ended before the HTTP response did")
            yield
