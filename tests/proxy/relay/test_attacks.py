"""What one client can make a whole proxy do: memory, work and log, while another one is served.

Each attack is one that did harm before there were limits.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.wire import grpc_http2, hpack, http2, limits
from pycrictl.wire.http2 import ErrorCode
from tests.fakecri.server import FakeServer
from tests.frames import units
from tests.node.kubelet import IMAGE, RUNTIME
from tests.proxy.program import Program
from tests.proxy.sides import message, opened, request_headers, reset

Start = Callable[..., Program]

MIB = 1024 * 1024
VERSION = RUNTIME + "Version"
PULL = IMAGE + "PullImage"
HELLO = http2.PREFACE + http2.settings()
HEADERS = hpack.encode(request_headers(VERSION))
MEMORY_BYTES = 128 * MIB
PATIENCE_S = 60.0


class Attacker:
    """A client that sends what it likes and reads all that comes."""

    def __init__(self, proxy: Program) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(proxy.socket_path))
        self._socket.setblocking(False)
        self._unread = b""
        self.codes: dict[int, list[int]] = {http2.RST_STREAM: [], http2.GOAWAY: []}
        self.is_over = False
        self.send(HELLO)

    def send(self, data: bytes) -> bool:
        """Send it all, and return whether the connection is still there."""
        until = time.monotonic() + PATIENCE_S
        view = memoryview(data)
        while view and not self.is_over and time.monotonic() < until:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                self.read(wait_s=0.01)
            except OSError:
                self.read(wait_s=1.0)
                self.is_over = True
        self.read()
        assert not view or self.is_over, "the proxy takes nothing"
        return not self.is_over

    def read(self, wait_s: float = 0.0) -> None:
        """Take what has come, after a while if nothing has."""
        self._socket.settimeout(wait_s)
        with suppress(OSError):
            while not self.is_over:
                data = self._socket.recv(MIB)
                self.is_over = not data
                self._unread += data
                self._socket.settimeout(0.0)
        self._socket.settimeout(0.0)
        pos = 0
        for unit in units(self._unread):
            pos += len(unit.raw)
            if unit.kind in self.codes:
                self.codes[unit.kind].append(int.from_bytes(unit.payload[-4:], "big"))
        self._unread = self._unread[pos:]

    def end(self) -> int | None:
        """Wait until the proxy ends the connection; return the code of its GOAWAY."""
        until = time.monotonic() + PATIENCE_S
        while not self.is_over and time.monotonic() < until:
            self.read(wait_s=0.1)
        codes = self.codes[http2.GOAWAY]
        return codes[-1] if codes else None

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def proxy(fake: FakeServer, start: Start) -> Program:
    fake.offer("Version", cri_pb2.VersionResponse(runtime_name="fake"))
    return start("--max-parallel-image-pulls", "1")


@pytest.fixture
def attackers(proxy: Program) -> Iterator[Callable[[], Attacker]]:
    made = []

    def make() -> Attacker:
        made.append(Attacker(proxy))
        return made[-1]

    yield make
    for attacker in made:
        attacker.close()


@contextmanager
def bounded(proxy: Program, *, cpu_s: float) -> Iterator[None]:
    """What happens costs the proxy no more than that, little memory and few lines."""
    lines = proxy.log().count("\n")
    clock = ~proxy.pid << 3 | 2  # as clock_getcpuclockid(3) makes it
    before_s = time.clock_gettime(clock)
    yield
    good_client(proxy)
    assert time.clock_gettime(clock) - before_s < cpu_s
    assert proxy.peak_bytes() < MEMORY_BYTES
    assert proxy.log().count("\n") - lines <= 2 * limits.FAULT_LINES
    assert "Traceback" not in proxy.log()


def good_client(proxy: Program) -> None:
    began = time.monotonic()
    response = proxy.kubelet.call(
        VERSION, cri_pb2.VersionRequest(), cri_pb2.VersionResponse, timeout_s=PATIENCE_S
    )
    assert response.runtime_name == "fake"
    assert time.monotonic() - began < 5.0


def block(stream_id: int, content: bytes) -> bytes:
    return http2.header_frames(stream_id, HEADERS + content, end_stream=True)


def literal(value: bytes, *, is_huffman: bool = False) -> bytes:
    """A field with the name ``x`` that is not indexed."""
    length = bytearray()
    hpack._put_integer(length, len(value), 0x7F, 0x80 if is_huffman else 0)
    return b"\0\x01x" + bytes(length) + value


def test_header_of_eight_megabytes(proxy: Program, attackers: Callable[[], Attacker]) -> None:
    """Huffman-coded, which took seconds to decode."""
    frames = block(1, literal(b"\x18\xc6\x31\x8c\x63" * (8 * MIB // 5), is_huffman=True))
    with bounded(proxy, cpu_s=1.0):
        attacker = attackers()
        attacker.send(frames)
        assert attacker.end() == ErrorCode.ENHANCE_YOUR_CALM


def test_continuations_without_end(proxy: Program, attackers: Callable[[], Attacker]) -> None:
    """Each that came made the block be looked at again from its start."""
    with bounded(proxy, cpu_s=1.0):
        attacker = attackers()
        attacker.send(http2.frame(http2.HEADERS, 0, 1, HEADERS))
        empty = http2.frame(http2.CONTINUATION, 0, 1)
        sent = 0
        while attacker.send(empty * 1000) and sent < 1_700_000:
            sent += 1000
        assert attacker.end() == ErrorCode.ENHANCE_YOUR_CALM
        assert sent < 100_000


def test_blocks_that_stand_for_much_more(proxy: Program, attackers: Callable[[], Attacker]) -> None:
    """Each octet refers to 4 KiB in the table, which were written out for the runtime."""
    entry = bytearray(b"\x40\x01x")
    hpack._put_integer(entry, 4000, 0x7F, 0)
    entry += b"v" * 4000
    with bounded(proxy, cpu_s=1.0):
        attacker = attackers()
        attacker.send(block(1, bytes(entry)))
        for stream_id in range(3, 300, 2):
            if not attacker.send(block(stream_id, b"\xbe" * 3800)):
                break
        assert attacker.end() == ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("size", [16 * MIB - 6, limits.OWN_BODY_BYTES], ids=["16MiB", "4MiB"])
def test_bodies_that_never_end(
    proxy: Program, attackers: Callable[[], Attacker], fake: FakeServer, size: int
) -> None:
    """Who asks for little is served all the same."""
    piece = http2.frame(http2.DATA, 0, 1, bytes(limits.FRAME_BYTES))[4:]
    head = (limits.FRAME_BYTES).to_bytes(3, "big") + b"\0"
    fake.offer("ImageStatus", cri_pb2.ImageStatusResponse())
    fake.offer("PullImage", cri_pb2.PullImageResponse(image_ref="sha256:1"))
    with bounded(proxy, cpu_s=5.0):
        for _ in range(4):
            attacker = attackers()
            for stream_id in range(1, 21, 2):
                begin = opened(stream_id, PULL) + http2.frame(
                    http2.DATA, 0, stream_id, b"\0" + size.to_bytes(4, "big")
                )
                body = head + piece[:1] + stream_id.to_bytes(4, "big") + piece[5:]
                assert attacker.send(begin)
                for _ in range(min(size, 3 * MIB) // limits.FRAME_BYTES):
                    assert attacker.send(body)
        answer = proxy.kubelet.start_pull("registry.example/app", None).result(PATIENCE_S)
        assert answer.image_ref == "sha256:1"


def test_calls_opened_and_reset(proxy: Program, attackers: Callable[[], Attacker]) -> None:
    """The shape of CVE-2023-44487, on as many connections as it takes."""
    request = cri_pb2.PullImageRequest(image=cri_pb2.ImageSpec(image="registry.example/app"))
    body = request.SerializeToString()
    with bounded(proxy, cpu_s=20.0):
        for _ in range(5):
            attacker = attackers()
            stream_id = 1
            while attacker.send(
                opened(stream_id, PULL) + message(stream_id, body) + reset(stream_id, 8)
            ):
                stream_id += 2
                assert stream_id < 4 * limits.RESETS
            assert attacker.end() == ErrorCode.ENHANCE_YOUR_CALM


def test_frames_that_carry_nothing(proxy: Program, attackers: Callable[[], Attacker]) -> None:
    with bounded(proxy, cpu_s=2.0):
        for frame in (
            http2.frame(http2.PING, 0, 0, bytes(8)),
            http2.settings(),
            http2.frame(http2.DATA, 0, 1),
            http2.window_update(0, 1),
            http2.rst_stream(1, 8),
            http2.frame(http2.PRIORITY, 0, 1, bytes(5)),
            http2.frame(0xF0, 0, 0, b"x"),
        ):
            attacker = attackers()
            attacker.send(opened(1, PULL))
            while attacker.send(frame * 1000):
                pass
            assert attacker.end() == ErrorCode.ENHANCE_YOUR_CALM


def test_own_calls_of_one_byte_a_frame(proxy: Program, attackers: Callable[[], Attacker]) -> None:
    """They are in order; others have their turn all the same."""
    frames = http2.frame(http2.DATA, 0, 1, b"\0") * 20_000
    size = limits.OWN_BODY_BYTES
    with bounded(proxy, cpu_s=5.0):
        attacker = attackers()
        attacker.send(opened(1, PULL))
        attacker.send(http2.frame(http2.DATA, 0, 1, b"\0" + size.to_bytes(4, "big")))
        for _ in range(5):
            assert attacker.send(frames)
            good_client(proxy)
    assert grpc_http2.PREFIX_BYTES + 100_000 < size
