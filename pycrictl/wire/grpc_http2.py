"""How gRPC uses HTTP/2: messages, metadata, deadlines and statuses as bytes. Pure.

It follows the protocol's own description, "gRPC over HTTP2". Our own calls need it, and those that
the proxy answers; calls that pass through the proxy keep their bytes.
"""

from __future__ import annotations

import binascii
import math
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from pycrictl.errors import RemoteProtocolError
from pycrictl.wire import codes
from pycrictl.wire.hpack import Header
from pycrictl.wire.http2 import StreamFault

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]

PREFIX_BYTES: Final = 5

_TIMEOUT: Final = rb"([0-9]{1,8})([HMSmun])"
_UNIT_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_CONTENT_TYPE: Final = b"application/grpc"
_RESERVED: Final = frozenset({"content-type", "te", "user-agent", "connection", "host"})
_ESCAPED: Final = rb"[^ -$&-~]"
_ESCAPE: Final = rb"%([0-9A-Fa-f]{2})"
# The octets of a header's name and value (RFC 9113, 8.2.1), and what a request begins with: all of
# it, or without an authority (8.3.1).
_NAME_OCTETS: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
_VALUE_OCTETS: Final = bytes([9, *range(0x20, 0x7F), *range(0x80, 0x100)])
_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_NEEDED: Final = frozenset({b":method", b":scheme", b":path"})
_FORBIDDEN: Final = frozenset({b"", b"connection"})
# What the characters of an ASCII value and of a key may be.
_VALUE: Final = r"[ -~]*"
_KEY: Final = r"[0-9a-z_.-]+"


class Answer(NamedTuple):
    """How a call with one response ended.

    Attributes:
        code: of the gRPC status, 0 for OK.
        message: of the gRPC status.
        response: the serialised response; None when there is none, as with an error.
    """

    code: int = codes.OK
    message: str = ""
    response: bytes | None = None
    initial_metadata: Metadata = ()
    trailing_metadata: Metadata = ()


def request_path(headers: Sequence[Header]) -> bytes:
    """Return the method that a request is for, as its path has it.

    Raises:
        StreamFault: the headers are malformed (RFC 9113, 8.2 and 8.3), so that another reader may
            understand another path.
    """
    begun = dict(headers[: len(_PSEUDO)])
    if begun.keys() != _PSEUDO:
        begun = dict(headers[: len(_NEEDED)])
        if begun.keys() != _NEEDED:
            raise StreamFault("a request does not begin as it must")
    names = [name for name, _ in headers[len(begun) :]]
    if b"".join(names).translate(None, _NAME_OCTETS) or not _FORBIDDEN.isdisjoint(names):
        raise StreamFault("a request has a header with a wrong name")
    return begun[b":path"]


def check_values(headers: Iterable[Header]) -> None:
    """Check the values of headers.

    Raises:
        StreamFault: an octet must not be in one (RFC 9113, 8.2.1).
    """
    # gRPC's own libraries may agree to leave out the Base64 of binary values.
    values = [value for name, value in headers if name[-4:] != b"-bin"]
    if b"".join(values).translate(None, _VALUE_OCTETS):
        raise StreamFault("a request has a header with a wrong value")


def refusal(headers: Collection[Header]) -> Answer | None:
    """Return the answer to a request that is right as HTTP but not as gRPC, None if it is."""
    found = dict(headers)
    if found.get(b":method") != b"POST":
        return Answer(codes.INTERNAL, "the HTTP method of a call must be POST")
    kind = found.get(b"content-type", b"")
    if kind != _CONTENT_TYPE and not kind.startswith((_CONTENT_TYPE + b"+", _CONTENT_TYPE + b";")):
        return Answer(codes.INTERNAL, "the content type of a call must be application/grpc")
    try:
        timeout_s(headers)
    except RemoteProtocolError as exc:
        return Answer(codes.INTERNAL, exc.message)
    return None


def prefixed(message: bytes) -> bytes:
    """Return one message as it stands in DATA frames, not compressed."""
    return b"\0%b%b" % (len(message).to_bytes(4, "big"), message)


def only_message(body: bytes | bytearray) -> bytes:
    """Return the message of a body that has exactly one, not compressed.

    Raises:
        RemoteProtocolError: it has none, or more than one.
    """
    if len(body) < PREFIX_BYTES or len(body) != PREFIX_BYTES + int.from_bytes(body[1:5], "big"):
        raise RemoteProtocolError("there is not exactly one message")
    return bytes(body[PREFIX_BYTES:])


def is_compressed(body: bytes | bytearray) -> bool:
    """Return whether the first message is compressed, with what ``grpc-encoding`` names."""
    return body[:1] == b"\1"


def timeout_s(headers: Iterable[Header]) -> float | None:
    """Return a call's deadline by its headers, in seconds from their arrival; None without one.

    Raises:
        RemoteProtocolError: it is malformed.
    """
    found: float | None = None
    for name, value in headers:
        if name == b"grpc-timeout":
            match = re.fullmatch(_TIMEOUT, value)
            if match is None:
                raise RemoteProtocolError("grpc-timeout is malformed")
            found = int(match[1]) * _UNIT_S[match[2]]
    return found


def timeout_header(timeout_s: float) -> Header:
    """Return a deadline as a header, rounded up, in the finest unit that has room for it."""
    for unit in (b"u", b"m", b"S", b"M"):
        value = math.ceil(max(timeout_s, 0.0) / _UNIT_S[unit])
        if value < 10**8:
            return (b"grpc-timeout", b"%d%b" % (value, unit))
    return (b"grpc-timeout", b"99999999H")


def metadata_of(headers: Iterable[Header]) -> Metadata:
    """Return the metadata among a call's headers: all but what the transport itself needs.

    Names that begin with ``grpc-`` are the transport's, except binary ones: they carry contexts
    (``grpc-trace-bin``) and details (``grpc-status-details-bin``) from end to end. What does not
    decode is left out.
    """
    metadata: list[tuple[str, str | bytes]] = []
    for raw_name, value in headers:
        name = raw_name.decode("latin-1")
        if is_reserved(name):
            continue
        if not name.endswith("-bin"):
            metadata.append((name, value.decode("latin-1")))
        elif value[:1] == b"\0":  # peers of the same library may agree to leave out the Base64
            metadata.append((name, value[1:]))
        else:
            parts = map(_unbase64, value.split(b","))
            metadata.extend((name, part) for part in parts if part is not None)
    return tuple(metadata)


def headers_of(metadata: Iterable[tuple[str, str | bytes]]) -> list[Header]:
    """Return metadata as headers. Fields that gRPC does not allow are left out."""
    headers: list[Header] = []
    for name, value in metadata:
        if is_reserved(name) or not re.fullmatch(_KEY, name):
            continue
        if isinstance(value, bytes):
            if name.endswith("-bin"):
                text = binascii.b2a_base64(value, newline=False).rstrip(b"=")
                headers.append((name.encode(), text))
        elif re.fullmatch(_VALUE, value):
            headers.append((name.encode(), value.encode()))
    return headers


def is_reserved(name: str) -> bool:
    """Return whether a header belongs to the transport and is not metadata."""
    if name.startswith("grpc-"):
        return not name.endswith("-bin")
    return name in _RESERVED or name.startswith(":")


def response_headers(metadata: Metadata = ()) -> list[Header]:
    """Return what an answer begins with."""
    return [(b":status", b"200"), (b"content-type", _CONTENT_TYPE), *headers_of(metadata)]


def status_headers(code: int, message: str = "", metadata: Metadata = ()) -> list[Header]:
    """Return what an answer ends with."""
    headers = [(b"grpc-status", b"%d" % code)]
    if message:
        headers.append((b"grpc-message", _percent_encoded(message)))
    return headers + headers_of(metadata)


def status_of(headers: Iterable[Header]) -> int | None:
    """Return the status code in an answer's trailers; None if there is none that is a number."""
    for name, value in headers:
        if name == b"grpc-status":
            return int(value) if value.isdigit() and len(value) < 10 else None
    return None


def message_of(headers: Iterable[Header]) -> str:
    """Return the status message in an answer's trailers; read as Latin-1 if not UTF-8."""
    for name, value in headers:
        if name == b"grpc-message":
            raw = value
            if b"%" in raw:
                raw = re.sub(_ESCAPE, lambda match: bytes([int(match[1], 16)]), raw)
            try:
                return raw.decode()
            except UnicodeDecodeError:
                return raw.decode("latin-1")
    return ""


def _percent_encoded(message: str) -> bytes:
    raw = message.encode("utf-8", "replace")
    return re.sub(_ESCAPED, lambda match: b"%%%02X" % match[0][0], raw)


def _unbase64(value: bytes) -> bytes | None:
    value = value.strip()
    try:
        return binascii.a2b_base64(value + b"=" * (-len(value) % 4), strict_mode=True)
    except binascii.Error:
        return None
