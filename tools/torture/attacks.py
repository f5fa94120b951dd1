"""Attacks on a proxy and on an agent's port, each of which did harm before there were limits.

An attack on the CRI socket is a function that misuses one client connection. Run as a program, an
attack continues until it is killed; it drops its privileges first if it needs none:

    python -m tools.torture.attacks NAME WHERE

WHERE is the path of the CRI socket; for attacks in ``ON_STREAMS`` the address of the stream server;
for ``FLOODS``, made by TLS clients without a certificate, the address of the agent.
"""

from __future__ import annotations

import itertools
import os
import resource
import select
import socket
import ssl
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from pycrictl._proto import cri_pb2
from tests.e2e.node.kubelet import IMAGE, RUNTIME
from tests.serving import believing
from tools.torture import http2
from tools.torture.http2 import message, opened, reset

MIB: Final = 1024 * 1024
VERSION: Final = RUNTIME + "Version"
PULL: Final = IMAGE + "PullImage"
PATIENCE_S: Final = 60.0
NOBODY: Final = 65534
BODY_BYTES: Final = 4 * MIB
HELD: Final = 600
"""Connections that a flood of the stream server holds: more than its limit."""

HELD_AT_AGENT: Final = 2000
SOURCE: Final = "127.0.0.2"
"""Source address of a flood of an agent, as if from another pod than a good client."""

HEADS: Final = 60
"""Connections that each send a request head without an end."""

RESETS: Final = 8192
"""Calls that are reset on one connection."""

_HELLO: Final = http2.PREFACE + http2.settings()
_HEADERS: Final = http2.headers(VERSION)
_KEPT: Final = 4
"""Connections that an attack on the CRI socket holds at once."""


class Attacker:
    """A client that sends arbitrary data and reads all responses.

    ``is_over`` is true once the proxy has closed the connection or sent GOAWAY.
    """

    def __init__(self, where: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(where)
        self._socket.setblocking(False)
        self._unread = b""
        self.is_over = False
        self.send(_HELLO)

    def acknowledge(self) -> None:
        """Accept the proxy's settings; before that, gRPC allows fewer calls, and longer headers."""
        self.read(wait_s=1.0)
        self.send(http2.frame(http2.SETTINGS, http2.ACK, 0))

    def send(self, data: bytes) -> bool:
        """Send all data, and return whether the connection is still open."""
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

    def repeat(self, frame: bytes, thousands: int) -> None:
        for _ in range(thousands):
            if not self.send(frame * 1000):
                break

    def read(self, wait_s: float = 0.0) -> None:
        """Read the data that has arrived, waiting at most ``wait_s`` for some."""
        self._socket.settimeout(wait_s)
        with suppress(OSError):
            while not self.is_over:
                data = self._socket.recv(MIB)
                self.is_over = not data
                self._unread += data
                self._socket.settimeout(0.0)
        self._socket.settimeout(0.0)
        read = 0
        for kind, _, stop in http2.frames(self._unread):
            read = stop
            self.is_over |= kind == http2.GOAWAY
        self._unread = self._unread[read:]

    def wait(self) -> None:
        """Wait until the proxy ends the connection."""
        until = time.monotonic() + PATIENCE_S
        while not self.is_over and time.monotonic() < until:
            self.read(wait_s=0.1)

    def close(self) -> None:
        self._socket.close()


# On the CRI socket


_HUFFMAN: Final = b"\x18\xc6\x31\x8c\x63" * (8 * MIB // 5)
_LARGE_HEADER: Final = http2.block(
    1, _HEADERS + b"\0\x01x" + http2.length(len(_HUFFMAN), 7, 0x80) + _HUFFMAN
)


def header_of_megabytes(attacker: Attacker) -> None:
    """Send 8 MB of a Huffman-coded header, which took seconds to decode."""
    attacker.send(_LARGE_HEADER)


def continuations(attacker: Attacker) -> None:
    """Send frames that each made the proxy parse the header block again from its start."""
    attacker.send(http2.frame(http2.HEADERS, 0, 1, _HEADERS))
    attacker.repeat(http2.frame(http2.CONTINUATION, 0, 1), 1_700)


def unending_bodies(attacker: Attacker, size: int = BODY_BYTES) -> None:
    """Begin ten pulls with requests of ``size`` bytes, and end none of them."""
    for stream_id in range(1, 21, 2):
        prefix = b"\0" + size.to_bytes(4, "big")
        attacker.send(opened(stream_id, PULL) + http2.frame(http2.DATA, 0, stream_id, prefix))
        body = http2.frame(http2.DATA, 0, stream_id, bytes(http2.FRAME_BYTES))
        for _ in range(min(size, 3 * MIB) // http2.FRAME_BYTES):
            if not attacker.send(body):
                return


_PULL_REQUEST: Final = cri_pb2.PullImageRequest(
    image=cri_pb2.ImageSpec(image="registry.example/app")
).SerializeToString()


def _reset_each(attacker: Attacker, path: str, request: bytes, pause_s: float = 0.0) -> None:
    attacker.acknowledge()
    for stream_id in range(1, 2 * RESETS, 2):
        if not attacker.send(opened(stream_id, path) + message(stream_id, request)):
            break
        time.sleep(pause_s)
        if not attacker.send(reset(stream_id)):
            break


def pulls_reset(attacker: Attacker) -> None:
    """Open calls and reset them, as in CVE-2023-44487."""
    _reset_each(attacker, PULL, _PULL_REQUEST)


def pulls_given_up(attacker: Attacker) -> None:
    """Reset calls once their handling has begun, which costs a line of the log each."""
    _reset_each(attacker, PULL, _PULL_REQUEST, 0.001)


def events_reset(attacker: Attacker) -> None:
    """Open streams of the runtime and reset them."""
    _reset_each(attacker, RUNTIME + "GetContainerEvents", b"")


_kinds: Final = itertools.cycle(
    (
        http2.frame(http2.PING, 0, 0, bytes(8)),
        http2.settings(),
        http2.frame(http2.DATA, 0, 1),
        http2.window_update(0, 1),
        http2.reset(1),
        http2.frame(http2.PRIORITY, 0, 1, bytes(5)),
        http2.frame(0xF0, 0, 0, b"x"),
    )
)


def empty_frames(attacker: Attacker) -> None:
    """Send empty frames of one kind."""
    attacker.send(opened(1, PULL))
    attacker.repeat(next(_kinds), 500)


def bytes_in_frames(attacker: Attacker) -> None:
    """Send a request in frames of one byte each, which is valid."""
    attacker.send(opened(1, PULL))
    attacker.send(http2.frame(http2.DATA, 0, 1, b"\0" + BODY_BYTES.to_bytes(4, "big")))
    attacker.repeat(http2.frame(http2.DATA, 0, 1, b"\0"), BODY_BYTES // 1000)


def garbage(attacker: Attacker) -> None:
    """Violate the protocol, until the proxy closes the connection."""
    attacker.send(b"GET / HTTP/1.1\r\n\r\n" * 10)
    attacker.wait()


# On the stream server


def _become_nobody() -> None:
    if not os.geteuid():
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def _hold(where: str, hello: bytes, *, most: int = HELD, source: str = "127.0.0.1") -> None:
    """Hold connections, and open another for each that is closed."""
    poll = select.epoll()
    held: dict[int, socket.socket] = {}
    while True:
        while len(held) < most:
            try:
                sock = socket.create_connection(_address(where), 1.0, (source, 0))
                sock.sendall(hello)
            except OSError:
                break
            held[sock.fileno()] = sock
            poll.register(sock, select.EPOLLIN)
        for number, _ in poll.poll(0.1):
            with suppress(OSError):
                if held[number].recv(65536):
                    continue
            poll.unregister(number)
            held.pop(number).close()


def _address(where: str) -> tuple[str, int]:
    host, _, port = where.rpartition(":")
    return host, int(port)


ON_STREAMS: Final[dict[str, Callable[[str], object]]] = {
    "half-requests": partial(_hold, hello=b"GET /progress/x HTTP/1.1\r\nHost: "),
    "silence": partial(_hold, hello=b""),
    "guesses": lambda where: _hold(
        where, f"GET /copy/{'x' * 32} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode()
    ),
}


# On an agent's port


def tls(where: str) -> ssl.SSLSocket:
    """Connect without a certificate."""
    plain = socket.create_connection(_address(where), timeout=20, source_address=(SOURCE, 0))
    try:
        return believing().wrap_socket(plain)
    except BaseException:
        plain.close()
        raise


def heads(where: str) -> None:
    """Send request heads of 590 fields of 15 kB, without an end, over many connections."""
    lines = [b"X-%d: %s\r\n" % (number, b"a" * 15_000) for number in range(590)]
    held: deque[ssl.SSLSocket] = deque()
    while True:
        with suppress(OSError):
            held.append(connection := tls(where))
            connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n")
            for line in lines:
                connection.sendall(line)
        if len(held) >= HEADS:
            held.popleft().close()


def idle(where: str, hello: bytes = b"") -> None:
    """Hold idle connections."""
    _hold(where, hello, most=HELD_AT_AGENT, source=SOURCE)


def half_open(where: str) -> None:
    """Hold connections with unfinished handshakes."""
    idle(where, client_hello())


def client_hello() -> bytes:
    """Return what a TLS client sends first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = believing().wrap_bio(incoming, outgoing, server_hostname="a")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


_NO_HTTP: Final = (
    b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"\x01\xff" * 8_000 + b"\r\n\r\n",
    b"\x01" * 16_000 + b"\r\n\r\n",
    b"GET / HTTP/9.9\r\n" + b"a" * 15_000 + b"\r\n\r\n",
)


def no_http(where: str) -> None:
    """Send data that is not HTTP, on one connection after another."""
    for content in itertools.cycle(_NO_HTTP):
        with suppress(OSError), tls(where) as connection:
            connection.sendall(content)
            while connection.recv(65536):
                pass


# By a lost node


_WRONG: Final[tuple[dict[str, Any], ...]] = (
    {"etaSeconds": "soon"},
    {"totalBytes": 10**4000},
    {"error": {}},
    {"percent": float("nan")},
    {"layers": [{"name": 5}] * 1000},
    {"phase": "x" * 100_000},
)


def lies(pod: str = "db", uid: str = "u", node: str = "n2") -> Callable[[object], Any]:
    """Return a stand-in for a lost node's agent, with false and changing data about a pod."""
    wrong = itertools.cycle(_WRONG)

    async def of_own_node(scope: object) -> Any:
        lie = {
            "metadata": {"name": f"{pod}.c0", "namespace": "default", "uid": uid},
            "spec": {"podName": pod, "podUID": uid, "image": "a/b:1", "nodeName": node},
            "status": {"phase": "Pulling", **next(wrong)},
        }
        return [lie, *([{}] * 200_000)]

    return of_own_node


# As programs


def _repeated(misuse: Callable[[Attacker], object]) -> Callable[[str], None]:
    """Misuse one connection after another, and keep the latest ones open."""

    def attack(where: str) -> None:
        kept: deque[Attacker] = deque()
        while True:
            with suppress(OSError, AssertionError):
                kept.append(Attacker(where))
                misuse(kept[-1])
            if len(kept) == _KEPT:
                kept.popleft().close()

    return attack


def _named(*functions: Callable[..., object]) -> dict[str, Callable[..., object]]:
    return {function.__name__.replace("_", "-"): function for function in functions}


FLOODS: Final = _named(heads, idle, half_open, no_http)
ON_CRI: Final = _named(
    header_of_megabytes, continuations, unending_bodies, pulls_reset,
    pulls_given_up, events_reset, empty_frames, bytes_in_frames, garbage,
)  # fmt: skip


@contextmanager
def attack(name: str, where: str) -> Iterator[None]:
    """Run an attack during the block."""
    with subprocess.Popen(
        [sys.executable, "-m", __name__, name, where],
        cwd=Path(__file__).parent.parent.parent,
        stdin=subprocess.DEVNULL,
    ) as process:
        try:
            yield
            assert process.poll() is None, "the attack has ended"
        finally:
            process.kill()


def main() -> None:
    """Attack."""
    with suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    name, where = sys.argv[1:]
    if name in ON_CRI:
        _repeated(ON_CRI[name])(where)
    _become_nobody()
    (ON_STREAMS | FLOODS)[name](where)


if __name__ == "__main__":
    main()
