"""The parsers to fuzz, and what must hold for any input. ``TARGETS`` is the table of all."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from pycrictl.node.logs.logline import LogDecoder
from pycrictl.pulls.messages import MessageReader
from pycrictl.show import gotemplate, jsonpath
from pycrictl.streams.remote_command import Transport
from pycrictl.streams.wire.command import ExitReported, Streams, remote_command
from pycrictl.streams.wire.tar.reader import DataReceived, TarReader
from tests.fuzz.harness import Target, pieces
from tests.streams.wire.frames import BINARY, frame
from tests.streams.wire.recorded import RECORDED

# Streams


def _whole_and_in_pieces(
    read: Callable[[list[bytes]], object],
) -> Callable[[bytes, random.Random], None]:
    """Check that the result is the same however the input is split."""

    def check(data: bytes, chance: random.Random) -> None:
        whole = read([data])
        cut = read(list(pieces(data, chance)))
        assert cut == whole, f"in pieces: {cut!r:.500}, whole: {whole!r:.500}"

    return check


def _stream(transport: Transport, data: bytes, chance: random.Random) -> None:
    """A command ends, with an outcome or an error."""
    core = remote_command(transport, Streams(stdin=True))
    events: list[object] = []
    for piece in pieces(data, chance):
        core.connection.receive_data(piece)
        events += core.events_received()
        core.connection.data_to_send()
    core.connection.receive_eof()
    events += core.events_received()
    assert core.is_over
    outcomes = [event for event in events if isinstance(event, ExitReported)]
    assert len(outcomes) == 1 or (not outcomes and core.error is not None)


def _log(data: bytes, chance: random.Random) -> None:
    """Check the size only: lines with invalid times may be handled differently in other pieces."""
    is_timed = chance.random() < 0.5
    since_ns = 1704164645 * 10**9 if is_timed else None
    decoder = LogDecoder(has_timestamps=is_timed, since_ns=since_ns)
    chunks = [chunk for piece in pieces(data, chance) for chunk in decoder.receive_data(piece)]
    size = sum(len(chunk.data) for chunk in (*chunks, *decoder.receive_eof()))
    assert size <= 2 * len(data), "more comes out than went in"


def _progress(parts: list[bytes]) -> object:
    reader = MessageReader({})
    events: list[object] = []
    for part in parts:
        events += reader.receive_data(part)
    events += reader.receive_eof()
    return events, reader.first_bad


def _tar(parts: list[bytes]) -> object:
    reader = TarReader()
    events: list[object] = []
    content = 0
    for part in parts:
        reader.receive_data(part)
        for event in reader.events_received():
            if isinstance(event, DataReceived):
                content += len(event.data)
            else:
                events.append(str(event))
    reader.receive_eof()
    events += map(str, reader.events_received())
    return events, content, str(reader.error)


def _archive(form: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for number, name in enumerate(("file", "folder/" + "x" * 150, "größe", "empty")):
            member = tarfile.TarInfo(name)
            content = b"content" * number
            member.size, member.mtime = len(content), 1234567890.5
            member.uid = 2**22
            archive.addfile(member, io.BytesIO(content))
        for kind, link in ((tarfile.SYMTYPE, "y" * 200), (tarfile.LNKTYPE, "file")):
            member = tarfile.TarInfo(f"link-{link[:4]}")
            member.type, member.linkname = kind, link
            archive.addfile(member)
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    return stream.getvalue()


# Texts

_DOCUMENT: Final[dict[str, Any]] = {
    "id": "abc",
    "metadata": {"name": "web", "attempt": 2, "uid": ""},
    "labels": {"app": "web", "a.b/c": "d"},
    "created": "1700000000000000000",
    "sizes": [1, 2.5, -3, 10**18],
    "is": True,
    "none": None,
    "deep": [[{"a": [{"b": 1}, {"b": 2}]}], []],
}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _template(data: bytes, chance: random.Random) -> None:
    gotemplate.GoTemplate(_text(data)[:2000]).render(_DOCUMENT)


def _path(data: bytes, chance: random.Random) -> None:
    jsonpath.JsonPathTemplate(_text(data)[:2000]).render(_DOCUMENT)


_SPDY_SEEDS = tuple(
    b"".join(data for side, data in pieces_ if side == "s") or b"\0"
    for pieces_ in RECORDED.values()
)

TARGETS: Final = (
    Target(
        "spdy",
        partial(_stream, "spdy"),
        _SPDY_SEEDS,
        words=(b"\x80\3\0\1", b"\x80\3\0\2", b"\0\0\0\1", b'{"status":"Success"}'),
    ),
    Target(
        "websocket",
        partial(_stream, "websocket"),
        (frame(BINARY, b"\x01out") + frame(BINARY, b'\x03{"status":"Success"}'),),
        words=(b"\x82\2\1x", b"\x82\0", b"\x88\2\3\xe8", b"\x02", b"\x80\x7f", b"\x82\2\5x"),
    ),
    Target(
        "tar",
        _whole_and_in_pieces(_tar),
        tuple(map(_archive, (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))),
        words=(bytes(512), b"ustar\0" + b"00", b"27 path=", b"GNU.sparse"),
    ),
    Target(
        "log",
        _log,
        (
            b"2024-01-02T03:04:05.678901234Z stdout F hello\n"
            b"2024-01-02T03:04:05.678901234+02:00 stderr P part\n"
            b"2024-01-02T03:04:06Z stderr F ial\n",
            b'{"log":"hello\\n","stream":"stdout","time":"2024-01-02T03:04:05.6Z"}\n',
        ),
        words=(b" stdout F ", b" stderr P ", b"\n", b"9999-12-31T23:59:60Z", b'{"log":"'),
    ),
    Target(
        "progress",
        _whole_and_in_pieces(_progress),
        (b'{"image":"a","layer":"b","progress":1,"total":2}\n{"error":"x"}\n',),
        words=(b'"progress":', b"\n", b"1e400", b"[" * 100, b"\\ud800"),
    ),
    Target(
        "template",
        _template,
        (
            b"{{range $i, $x := .sizes}}{{$i}}={{$x | printf `%05.2f`}},{{end}}",
            b'{{with .metadata}}{{.name}}{{else}}-{{end}}{{index .labels "a.b/c"}}',
            b"{{if and .is (gt (len .sizes) 2)}}{{slice .id 1 2}}{{else if not .none}}x{{end}}",
        ),
        errors=(gotemplate.TemplateError,),
        words=(b"{{", b"}}", b"range ", b".sizes", b"(", b"|", b"end", b"%9999999d", b"$x := "),
    ),
    Target(
        "jsonpath",
        _path,
        (
            b"{range .deep[*][*]}{.a[?(@.b==1)].b}{'\\n'}{end}",
            b"{.sizes[-1:0:-1]} {..b} {['id','created']} {.labels.a\\.b/c}",
            b"$.metadata.name",
        ),
        errors=(jsonpath.JsonPathError,),
        words=(b"..", b"[*]", b"[?(", b"{range ", b"{end}", b"@", b"['", b"*", b"==", b"[::2]"),
    ),
)
