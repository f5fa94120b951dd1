from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.node.logs.logline import Chunk, Grouping, LogDecoder, LogStream, time_ns_of

T = b"2024-01-02T03:04:05.123456789Z"
NOON_NS = 1704196800 * 10**9


def cri(text: bytes, *, stream: str = "stdout", tag: str = "F", time: bytes = T) -> bytes:
    return b"%b %b %b %b\n" % (time, stream.encode(), tag.encode(), text)


def docker(text: str, *, stream: str = "stdout", time: bytes = T) -> bytes:
    return json.dumps({"log": text, "stream": stream, "time": time.decode()}).encode() + b"\n"


def decoded(decoder: LogDecoder, *pieces: bytes) -> list[Chunk]:
    chunks = [chunk for piece in pieces for chunk in decoder.receive_data(piece)]
    return chunks + decoder.receive_eof()


def texts(*pieces: bytes, decoder: LogDecoder | None = None) -> dict[LogStream, bytes]:
    """Return the data of each output; no chunk may be empty."""
    decoder = decoder or LogDecoder()
    result: dict[LogStream, bytes] = {"stdout": b"", "stderr": b""}
    for chunk in decoded(decoder, *pieces):
        assert chunk.data
        result[chunk.stream] += chunk.data
    return result


# Formats


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (cri(b"text"), True),
        (cri(b"", stream="stderr", tag="P:x").rstrip(b"\n"), True),
        (cri(b"x", time=b"2024-01-02T03:04:05+02:00"), True),
        (docker("text\n"), True),
        (b"garbage first\n", False),
        (b"", False),
        (cri(b"x", stream="bogus"), False),
        (cri(b"x", time=b"2024-01-02"), False),
        (b"{nonsense}\n", False),
        (b'{"a":' * 100_000, False),
        (docker("x", stream="bogus"), False),
        (docker("x", time=b"yesterday"), False),
        (b'{"log":"x","stream":["stdout"],"time":"2024-01-02T03:04:05Z"}', False),
    ],
)
def test_formats(line: bytes, expected: bool) -> None:
    assert (time_ns_of(line.rstrip(b"\n")) is not None) is expected


# Lines of the CRI


@pytest.mark.parametrize(
    "text",
    [bytes(octet for octet in range(256) if octet != 10), b"x " + cri(b"inner").strip()],
    ids=["every byte", "looks like a line"],
)
def test_texts(text: bytes) -> None:
    expected = text + b"\n"
    assert texts(cri(text) + cri(text, stream="stderr")) == {"stdout": expected, "stderr": expected}


def test_outputs_stay_in_order() -> None:
    lines = cri(b"1") + cri(b"2") + cri(b"3", stream="stderr") + cri(b"4")
    expected = [Chunk("stdout", b"1\n2\n"), Chunk("stderr", b"3\n"), Chunk("stdout", b"4\n")]
    assert decoded(LogDecoder(), lines) == expected
    decoder = LogDecoder(since_ns=0)
    assert decoded(decoder, lines) == expected


def test_partial_lines_are_joined() -> None:
    lines = (
        cri(b"part a ", tag="P")
        + cri(b"", tag="P")
        + cri(b"err ", tag="P", stream="stderr")
        + cri(b"part b ", tag="P:more")
        + cri(b"line", stream="stderr")
        + cri(b"end", tag="F:more")
        + cri(b"full", tag="X")
    )
    expected = {"stdout": b"part a part b end\nfull\n", "stderr": b"err line\n"}
    assert texts(lines) == expected
    assert texts(*(line + b"\n" for line in lines.splitlines())) == expected
    assert texts(cri(b"", tag="P")) == {"stdout": b"", "stderr": b""}


def test_only_one_output() -> None:
    lines = cri(b"out") + cri(b"err", stream="stderr") + docker("json\n", stream="stderr")
    for has_timestamps, prefix in ((False, b""), (True, T + b" ")):
        out, err = (
            texts(lines, decoder=LogDecoder(only=only, has_timestamps=has_timestamps))
            for only in ("stdout", "stderr")
        )
        assert out == {"stdout": prefix + b"out\n", "stderr": b""}
        assert err == {"stdout": b"", "stderr": prefix + b"err\n" + prefix + b"json\n"}


some_lines = st.builds(
    cri,
    st.binary(max_size=10).map(lambda text: text.replace(b"\n", b"")),
    stream=st.sampled_from(["stdout", "stderr", "bogus"]),
    tag=st.sampled_from(["F", "P", "F:x", "P:x", "X", "", "FP"]),
    time=st.sampled_from([T, b"2024-01-02T03:04:05Z", b"2024-01-03T03:04:05.1+02:00", b"-", b""]),
)


@given(st.data())
def test_the_order_of_both_outputs(data: st.DataObject) -> None:
    """However the outputs are grouped, each has the same bytes; merged, the order is the lines'."""
    has_timestamps = data.draw(st.booleans())
    lines = data.draw(st.lists(some_lines, max_size=8)) * data.draw(st.sampled_from([1, 40]))
    whole = b"".join(lines)

    def chunks(grouping: Grouping) -> list[Chunk]:
        return decoded(LogDecoder(grouping=grouping, has_timestamps=has_timestamps), whole)

    ordered = chunks("ordered")
    by_stream = chunks("by stream")
    for stream in ("stdout", "stderr"):
        assert b"".join(chunk.data for chunk in by_stream if chunk.stream == stream) == b"".join(
            chunk.data for chunk in ordered if chunk.stream == stream
        )
    merged = chunks("merged")
    assert {chunk.stream for chunk in merged} <= {"stdout"}
    assert b"".join(chunk.data for chunk in merged) == b"".join(chunk.data for chunk in ordered)
    if len(lines) < 9:
        assert by_stream == ordered


def test_lines_as_crictl_reads_them() -> None:
    """The expected bytes are those of crictl 1.36.0."""
    early = b"2024-01-02T03:04:02.5Z"
    lines = (
        cri(b"part ", tag="P", time=early)
        + cri(b"err", stream="stderr")
        + b"garbage\n\n"
        + cri(b"x", time=b"2024-02-30T03:04:05Z")
        + cri(b"x", time=b"2024-02-28T24:04:05Z")
        + docker("json\n")
        + cri(b"", tag="P")
        + cri(b"end")
    )
    expected: dict[LogStream, bytes] = {
        "stdout": b"2024-01-02T03:04:02.500000000Z part " + T + b" " + T + b" end\n",
        "stderr": b"err\n",
    }
    decoder = LogDecoder(has_timestamps=True, is_strict=True)
    assert texts(lines, decoder=decoder) == expected
    assert decoder.first_bad == "'garbage'"
    one_by_one = (line + b"\n" for line in lines[:-1].split(b"\n"))
    decoder = LogDecoder(has_timestamps=True, is_strict=True)
    assert texts(*one_by_one, decoder=decoder) == expected
    for line in (docker("json\n"), cri(b"json")):
        decoder = LogDecoder(is_strict=True)
        shown = texts(line + cri(b"x") + docker("x\n") + line, decoder=decoder)
        assert shown["stdout"] == b"json\nx\njson\n"


# Docker's lines


def test_docker_lines() -> None:
    lines = docker("one\n") + docker("err\n", stream="stderr") + docker("no ") + docker("feed\n")
    assert texts(lines) == {"stdout": b"one\nno feed\n", "stderr": b"err\n"}
    assert texts(docker("é\u2028\ud800\n"))["stdout"] == "é\u2028?\n".encode()
    assert decoded(LogDecoder(), docker("")) == []


# Times


def test_timestamps_begin_lines_and_not_parts() -> None:
    early = b"2024-01-02T03:04:02.5Z"
    lines = (
        cri(b"part a ", tag="P", time=early)
        + cri(b"part b ", tag="P")
        + cri(b"err", stream="stderr")
        + cri(b"end")
        + cri(b"next", time=b"2024-01-02T03:04:08.5+02:00")
    )
    expected = {
        "stdout": b"2024-01-02T03:04:02.500000000Z part a part b end\n"
        b"2024-01-02T03:04:08.500000000+02:00 next\n",
        "stderr": T + b" err\n",
    }
    assert texts(lines, decoder=LogDecoder(has_timestamps=True)) == expected
    one_by_one = (line + b"\n" for line in lines.splitlines())
    assert texts(*one_by_one, decoder=LogDecoder(has_timestamps=True)) == expected


@pytest.mark.parametrize("make", [cri, docker])
def test_since(make: object) -> None:
    def line(text: str, time: bytes) -> bytes:
        return docker(text + "\n", time=time) if make is docker else cri(text.encode(), time=time)

    times = [b"2024-01-02T11:59:59.999999999Z", b"2024-01-02T12:00:00Z"]
    times += [b"2024-01-02T12:00:00.000000001Z", b"2024-01-02T12:00:00.1Z", b"2024-01-02T13:00:00Z"]
    lines = b"".join(line(str(n), time) for n, time in enumerate(times))
    for since_ns, first in ((0, 0), (NOON_NS, 1), (NOON_NS + 1, 2), (NOON_NS + 2, 3), (2**62, 5)):
        shown = texts(lines, decoder=LogDecoder(since_ns=since_ns))["stdout"].splitlines()
        assert [text.split()[-1] for text in shown] == [b"%d" % n for n in range(first, 5)]


# Invalid lines


def test_broken_lines_are_passed_on() -> None:
    lines = cri(b"good") + b"garbage \x1b[31m\n\n" + cri(b"x", stream="bogus") + cri(b"good2")
    for decoder in (LogDecoder(), LogDecoder(has_timestamps=True, since_ns=0)):
        shown = texts(lines, decoder=decoder)["stdout"]
        assert b"garbage \x1b[31m\n\n" + cri(b"x", stream="bogus") in shown
        assert shown.endswith(b"good2\n")
        assert decoder.first_bad == r"'garbage \x1b[31m'"
    decoder = LogDecoder(only="stderr")
    assert texts(lines, decoder=decoder)["stdout"] == b""


@pytest.mark.parametrize("torn", [b"2024-01-02T03:0\n", b"2024-01-02T03:04:05.123\n", b"x\n"])
def test_a_torn_line_does_not_hide_the_next(torn: bytes) -> None:
    decoder = LogDecoder()
    assert texts(cri(b"1") + torn + cri(b"2"), decoder=decoder)["stdout"] == b"1\n" + torn + b"2\n"
    assert decoder.first_bad is not None


def test_a_line_that_is_too_long() -> None:
    decoder = LogDecoder(max_line_bytes=100)
    for whole in (cri(b"1") + b"x" * 200 + b"\n" + cri(b"2"), b"y" * 1000):
        pieces = [whole[start : start + 50] for start in range(0, len(whole), 50)]
        shown = texts(*pieces, decoder=decoder)["stdout"]
        assert shown == whole.replace(cri(b"1"), b"1\n").replace(cri(b"2"), b"2\n")
        assert len(decoder._pending) < 200
    assert decoder.first_bad is not None


# The end of the file


@pytest.mark.parametrize("has_timestamps", [False, True])
def test_an_unfinished_last_line_is_shown(has_timestamps: bool) -> None:
    prefix = T + b" " if has_timestamps else b""
    decoder = LogDecoder(has_timestamps=has_timestamps)
    assert texts(cri(b"x"), cri(b"unfinished").rstrip(), decoder=decoder)["stdout"] == (
        prefix + b"x\n" + prefix + b"unfinished"
    )
    assert texts(docker("json\n").rstrip())["stdout"] == b"json\n"
    decoder = LogDecoder()
    assert texts(cri(b"x"), T[:10], decoder=decoder)["stdout"] == b"x\n" + T[:10]
    assert decoder.first_bad is not None


# Any bytes, any pieces

WHOLE = b"".join(
    [
        cri(b"one"),
        cri(b"two", time=b"2024-01-02T03:04:05Z"),
        cri(b"part ", tag="P"),
        cri(b"err", stream="stderr"),
        cri(b"end"),
        docker("json\n"),
        b"garbage\n",
        cri(b""),
        cri(b"last"),
    ]
)


@given(
    st.sampled_from([None, "stdout", "stderr"]),
    st.booleans(),
    st.sampled_from([None, 0]),
    st.lists(st.integers(0, len(WHOLE))),
)
def test_pieces_may_end_anywhere(
    only: LogStream | None, has_timestamps: bool, since_ns: int | None, cuts: list[int]
) -> None:
    """Any pieces give the same result as one line at a time, on every code path."""

    def decoder() -> LogDecoder:
        return LogDecoder(only=only, has_timestamps=has_timestamps, since_ns=since_ns)

    edges = [0, *sorted(cuts), len(WHOLE)]
    pieces = [WHOLE[start:end] for start, end in pairwise(edges)]
    assert texts(*pieces, decoder=decoder()) == texts(
        *(line + b"\n" for line in WHOLE.splitlines()), decoder=decoder()
    )
