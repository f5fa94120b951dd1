"""Messages, metadata, deadlines and statuses of gRPC as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.errors import RemoteProtocolError
from pycrictl.wire import grpc_http2


def test_message_has_a_prefix() -> None:
    assert grpc_http2.prefixed(b"abc") == b"\0\0\0\0\3abc"
    assert grpc_http2.only_message(b"\0\0\0\0\3abc") == b"abc"
    assert grpc_http2.only_message(bytearray(b"\0\0\0\0\0")) == b""


@pytest.mark.parametrize("body", [b"", b"\0\0\0\0", b"\0\0\0\0\1", b"\0\0\0\0\0x", bytes(10)])
def test_body_that_is_not_one_message(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        grpc_http2.only_message(body)


def test_compressed_message() -> None:
    assert grpc_http2.is_compressed(b"\1\0\0\0\0")
    assert not grpc_http2.is_compressed(b"\0\0\0\0\0")
    assert not grpc_http2.is_compressed(b"")


@pytest.mark.parametrize(
    ("value", "timeout_s"),
    [
        (b"1H", 3600.0),
        (b"2M", 120.0),
        (b"3S", 3.0),
        (b"250m", 0.25),
        (b"1500000u", 1.5),
        (b"99999999n", 0.099999999),
    ],
)
def test_deadline(value: bytes, timeout_s: float) -> None:
    headers = [(b"te", b"trailers"), (b"grpc-timeout", value)]
    assert grpc_http2.timeout_s(headers) == pytest.approx(timeout_s)


def test_no_deadline() -> None:
    assert grpc_http2.timeout_s([(b"te", b"trailers")]) is None


@pytest.mark.parametrize("value", [b"", b"1", b"S", b"123456789S", b"-1S", b"1.5S", b"1S ", b"1s"])
def test_malformed_deadline(value: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        grpc_http2.timeout_s([(b"grpc-timeout", value)])


@pytest.mark.parametrize(
    ("timeout_s", "value"),
    [
        (0.0, b"0u"),
        (-1.0, b"0u"),
        (0.0000001, b"1u"),
        (1.5, b"1500000u"),
        (120.0, b"120000m"),
        (1e6, b"1000000S"),
        (1e9, b"16666667M"),
        (1e12, b"99999999H"),
    ],
)
def test_deadline_as_a_header(timeout_s: float, value: bytes) -> None:
    assert grpc_http2.timeout_header(timeout_s) == (b"grpc-timeout", value)


@given(st.floats(min_value=0, max_value=1e9))
def test_deadline_is_never_shortened(timeout_s: float) -> None:
    told = grpc_http2.timeout_s([grpc_http2.timeout_header(timeout_s)])
    assert told is not None
    assert told >= timeout_s * (1 - 1e-9)
    assert told <= timeout_s * 1.01 + 1e-6


def test_metadata_is_what_the_transport_does_not_need() -> None:
    headers = [
        (b":method", b"POST"),
        (b":path", b"/a/b"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        (b"user-agent", b"grpc-go"),
        (b"grpc-timeout", b"1S"),
        (b"grpc-accept-encoding", b"gzip"),
        (b"traceparent", b"00-1"),
        (b"twice", b"1"),
        (b"twice", b"2"),
        (b"latin", b"\xe9"),
        (b"grpc-trace-bin", b"AAE"),
        (b"many-bin", b"AAE=, /w,"),
        (b"raw-bin", b"\0\xfe"),
        (b"broken-bin", b"?"),
    ]
    assert grpc_http2.metadata_of(headers) == (
        ("traceparent", "00-1"),
        ("twice", "1"),
        ("twice", "2"),
        ("latin", "é"),
        ("grpc-trace-bin", b"\0\1"),
        ("many-bin", b"\0\1"),
        ("many-bin", b"\xff"),
        ("many-bin", b""),
        ("raw-bin", b"\xfe"),
    )


def test_metadata_that_is_not_allowed_is_left_out() -> None:
    metadata: grpc_http2.Metadata = (
        ("fine", "value"),
        ("fine-bin", b"\xff"),
        ("grpc-status-details-bin", b"\0"),
        ("grpc-status", "0"),
        (":path", "/"),
        ("content-type", "text"),
        ("Upper", "case"),
        ("a b", "space"),
        ("line", "a\r\nb: c"),
        ("umlaut", "ä"),
        ("bytes", b"but not binary"),
    )
    assert grpc_http2.headers_of(metadata) == [
        (b"fine", b"value"),
        (b"fine-bin", b"/w"),
        (b"grpc-status-details-bin", b"AA"),
    ]


KEYS = st.text("abcdefghijklmnopqrstuvwxyz0123456789_.-", min_size=1, max_size=20).filter(
    lambda key: not grpc_http2.is_reserved(key) and not key.endswith("-bin")
)
TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=50)
METADATA = st.lists(
    st.tuples(KEYS, TEXTS) | st.tuples(KEYS.map(lambda key: key + "-bin"), st.binary(max_size=50)),
    max_size=8,
).map(tuple)


@given(METADATA)
def test_metadata_survives(metadata: grpc_http2.Metadata) -> None:
    assert grpc_http2.metadata_of(grpc_http2.headers_of(metadata)) == metadata


@pytest.mark.parametrize(
    ("message", "value"),
    [
        ("not found", b"not found"),
        ("100%", b"100%25"),
        ("a\nb\tc\x7f", b"a%0Ab%09c%7F"),
        ("größer ☃", b"gr%C3%B6%C3%9Fer %E2%98%83"),
        (" ~", b" ~"),
    ],
)
def test_status_message(message: str, value: bytes) -> None:
    headers = grpc_http2.status_headers(5, message)
    assert headers == [(b"grpc-status", b"5"), (b"grpc-message", value)]
    assert grpc_http2.message_of(headers) == message
    assert grpc_http2.status_of(headers) == 5


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=100))
def test_any_status_message_survives(message: str) -> None:
    headers = grpc_http2.status_headers(2, message)
    assert grpc_http2.message_of(headers) == message
    assert all(0x20 <= octet <= 0x7E for _, value in headers for octet in value)


def test_status_message_that_others_made() -> None:
    assert grpc_http2.message_of([(b"grpc-message", b"100% %zz %41 \xff")]) == "100% %zz A ÿ"
    assert grpc_http2.message_of([(b"grpc-status", b"5")]) == ""


@pytest.mark.parametrize(
    ("value", "code"),
    [(b"0", 0), (b"16", 16), (b"4242", 4242), (b"", None), (b"-1", None), (b"x", None)],
)
def test_status_code(value: bytes, code: int | None) -> None:
    assert grpc_http2.status_of([(b":status", b"200"), (b"grpc-status", value)]) == code
    assert grpc_http2.status_of([(b":status", b"200")]) is None


def test_beginning_of_an_answer() -> None:
    assert grpc_http2.response_headers((("x", "y"),)) == [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"x", b"y"),
    ]
