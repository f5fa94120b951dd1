"""What is fed, and what must hold whatever it is fed with. ``TARGETS`` is the table of all."""

from __future__ import annotations

import io
import random
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pycrictl import config, configfile, yamltree
from pycrictl._proto import cri_pb2
from pycrictl.cri.specs import loading
from pycrictl.errors import ConfigError, RemoteProtocolError, StreamError, UsageError
from pycrictl.proxy import settings
from pycrictl.show import gotemplate, jsonpath
from pycrictl.show.columns import Columns
from pycrictl.streaming.opening import Opening
from pycrictl.streaming.target import parse_url
from pycrictl.wire.command import Streams, parse_status, remote_command
from pycrictl.wire.http1 import parse_request
from pycrictl.wire.logline import LogDecoder
from pycrictl.wire.portforward import port_forward
from pycrictl.wire.progress import ProgressDecoder
from pycrictl.wire.spdy.streams import SpdyChannels
from pycrictl.wire.tar.reader import DataReceived, TarReader
from tests.fuzz.harness import Target, pieces
from tests.wire.recorded import RECORDED

# Streams


def _whole_and_in_pieces(
    read: Callable[[list[bytes]], object],
) -> Callable[[bytes, random.Random], None]:
    """However the input is cut, the same comes of it."""

    def check(data: bytes, chance: random.Random) -> None:
        whole = read([data])
        cut = read(list(pieces(data, chance)))
        assert cut == whole, f"in pieces: {cut!r:.500}, whole: {whole!r:.500}"

    return check


def _feed(core: Any, data: bytes, chance: random.Random) -> None:
    for piece in pieces(data, chance):
        core.receive_data(piece)
        core.events_received()
        core.data_to_send()
    core.receive_eof()


def _spdy(data: bytes, chance: random.Random) -> None:
    core = SpdyChannels(dict.fromkeys(range(3), (("streamtype", "stdout"),)))
    _feed(core, data, chance)
    assert core.is_over


def _command(data: bytes, chance: random.Random) -> None:
    transport: Any
    transport, protocol = chance.choice(
        (("spdy", "v4.channel.k8s.io"), ("websocket", "v4.channel.k8s.io"), ("websocket", ""))
    )
    streams = Streams(stdin=True, stdout=True, stderr=True)
    core = remote_command(transport, protocol, streams)
    _feed(core, data, chance)
    assert core.is_over


def _forward(data: bytes, chance: random.Random) -> None:
    core = port_forward("spdy" if chance.randrange(2) else "websocket", 80)
    _feed(core, data, chance)
    assert core.is_over


def _response(parts: list[bytes]) -> object:
    opening = Opening(parse_url("http://a/"), "GET", [("Upgrade", "x"), ("Connection", "Upgrade")])
    try:
        for part in [*parts, b""]:
            if opening.is_complete():
                break
            opening.receive(part)
        opening.is_complete()
    except StreamError as exc:
        return opening.response and opening.response.status, opening.body, type(exc)
    return opening.response and opening.response.status, opening.body, None


def _request(data: bytes, chance: random.Random) -> None:
    parse_request(data)


def _log(**options: Any) -> Callable[[bytes, random.Random], None]:
    def read(data: bytes, chance: random.Random) -> None:
        """Of lines whose times are none, not the same may come in other pieces."""
        decoder = LogDecoder(**options)
        size = sum(
            len(chunk.data)
            for piece in pieces(data, chance)
            for chunk in decoder.receive_data(piece)
        )
        size += sum(len(chunk.data) for chunk in decoder.receive_eof())
        assert size <= 2 * len(data), "more comes out than went in"

    return read


def _progress(parts: list[bytes]) -> object:
    decoder = ProgressDecoder(max_message_bytes=1000)
    found = []
    for part in parts:
        found += decoder.receive_data(part)
    found += decoder.receive_eof()
    return found, decoder.bad_count, decoder.first_bad


def _tar(parts: list[bytes]) -> object:
    reader = TarReader()
    found: list[object] = []
    content = 0
    for part in parts:
        reader.receive_data(part)
        for event in reader.events_received():
            if isinstance(event, DataReceived):
                content += len(event.data)
            else:
                found.append(str(event))
    reader.receive_eof()
    found += map(str, reader.events_received())
    return found, content, str(reader.error)


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


def _columns(data: bytes, chance: random.Random) -> None:
    Columns(_text(data)[:2000])


def _yaml(data: bytes, chance: random.Random) -> None:
    yamltree.parse(_text(data))


def _pod(data: bytes, chance: random.Random) -> None:
    loading.parse(_text(data), cri_pb2.PodSandboxConfig())


def _config(data: bytes, chance: random.Random) -> None:
    text = _text(data)
    config.parse_file(text)
    changed = configfile.changed(text, {"timeout": 7})
    assert config.parse_file(changed)["timeout"] == 7


def _toml(data: bytes, chance: random.Random) -> None:
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(data)
        settings.load({"config": file.name, "upstream": "unix:///run/containerd.sock"})


def _status(data: bytes, chance: random.Random) -> None:
    parse_status(data)


_SPDY_SEEDS = tuple(
    b"".join(data for side, data in pieces_ if side == "s") or b"\0"
    for pieces_ in RECORDED.values()
)
_WEBSOCKET_SEEDS = (
    b"\x82\x02\x01a\x89\x00\x82\x7e\x01\x00\x01" + b"b" * 255 + b"\x88\x02\x03\xe8",
    b"\x02\x02\x01a\x00\x01b\x80\x01c\x8a\x00\x88\x00",
)
_YAML_SEEDS = (
    b"metadata:\n  name: web\n  uid: 'x'\nlabels: {a: b, c: \"d\"}\n# comment\nhostname: |\n  a\n",
    b'{"metadata": {"name": "web", "attempt": 1}, "linux": {"sysctls": {"a": "b"}}}',
    b"port_mappings:\n- container_port: 80\n  host_port: 0x50\n- protocol: TCP\n",
    b"a: &x 1\nb: *x\n---\nc: !!str 2\n? d\n: e\n",
)

TARGETS: Final = (
    Target("spdy", _spdy, _SPDY_SEEDS, words=(b"\x80\3\0\1", b"\x80\3\0\2", b"\0\0\0\1")),
    Target("exec", _command, (*_SPDY_SEEDS, *_WEBSOCKET_SEEDS), words=(b"\x82\x01\3",)),
    Target("port-forward", _forward, (*_SPDY_SEEDS, *_WEBSOCKET_SEEDS)),
    Target(
        "http1-response",
        _whole_and_in_pieces(_response),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3;x=y\r\nabc\r\n0\r\nA: b\r\n\r\n",
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\n\r\n\x80\3",
        ),
        words=(b"\r\n", b"Content-Length: ", b"chunked", b"HTTP/1.1 100 x\r\n\r\n", b"ffffffff"),
    ),
    Target(
        "http1-request",
        _request,
        (b"GET /stream/token HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n",),
        errors=(RemoteProtocolError,),
        words=(b"\r\n", b"Host: a\r\n", b"\r\n folded", b": "),
    ),
    Target(
        "tar",
        _whole_and_in_pieces(_tar),
        tuple(map(_archive, (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))),
        words=(bytes(512), b"ustar\0" + b"00", b"27 path=", b"GNU.sparse"),
    ),
    Target(
        "log",
        _log(),
        (
            b"2024-01-02T03:04:05.678901234Z stdout F hello\n"
            b"2024-01-02T03:04:05.678901234+02:00 stderr P part\n"
            b"2024-01-02T03:04:06Z stderr F ial\n",
            b'{"log":"hello\\n","stream":"stdout","time":"2024-01-02T03:04:05.6Z"}\n',
        ),
        words=(b" stdout F ", b" stderr P ", b"\n", b"2024-01-02T03:04:05Z", b'{"log":"'),
    ),
    Target(
        "log-times",
        _log(has_timestamps=True, since_ns=1704164645 * 10**9),
        (b"2024-01-02T03:04:05.678901234Z stdout F hello\n" * 3,),
        words=(b"\n", b"9999-12-31T23:59:60Z", b"+99:99", b" stdout P "),
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
    Target("columns", _columns, (b"NAME:.metadata.name,ID:.id",), errors=(UsageError,)),
    Target(
        "yaml",
        _yaml,
        _YAML_SEEDS,
        errors=(yamltree.Problem,),
        words=(b"- ", b": ", b"\n  ", b"[", b"{", b"&a ", b"*a", b"!!", b"<<: ", b"? ", b"'", b'"'),
    ),
    Target(
        "pod",
        _pod,
        _YAML_SEEDS,
        errors=(yamltree.Problem,),
        words=(b"metadata:", b"linux: ", b"- ", b"1e9", b"null", b"TCP", b"~"),
    ),
    Target(
        "config",
        _config,
        (
            b"runtime-endpoint: unix:///run/c.sock\ntimeout: 5\ndebug: false\n",
            b'{"timeout": "5"}',
            b"# nothing\n\ntimeout: 2 # seconds\npull-image-on-create: true\n",
        ),
        errors=(ConfigError,),
        words=(b"timeout: ", b"debug: ", b"\n", b"#", b"'", b"---\n", b"max-retries: -1\n"),
    ),
    Target(
        "toml",
        _toml,
        (
            b'listen = "unix:///run/p.sock"\nmax-parallel-image-pulls = 3\n[x]\ny = 1979-05-27\n',
            b'retry-interval = "10s"\nwhen-full = "wait"\ncontainer-copy-size-limit = "1GiB"\n',
        ),
        errors=(ConfigError, UsageError),
        words=(b'"""', b"[[", b" = ", b"{", b"inf", b"'", b"\n", b"0x", b"1_000"),
    ),
    Target(
        "status",
        _status,
        (
            b'{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":'
            b'[{"reason":"ExitCode","message":"7"}]}}',
            b'{"status":"Success"}',
        ),
        errors=(RemoteProtocolError,),
        words=(b'"causes":', b"[", b"null", b'"message":'),
    ),
)
