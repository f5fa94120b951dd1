"""Strangers that flood an agent's port: TLS without a certificate, or not even that.

Each is one that did harm before there were limits. As a program of its own a flood goes on until it
is killed; it runs as nobody:

    python -m tools.torture.floods NAME HOST PORT
"""

from __future__ import annotations

import contextlib
import itertools
import math
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
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.serving import believing

Address = tuple[str, int]

NOBODY: Final = 65534
SOURCE: Final = "127.0.0.2"
"""Where a flood comes from, as if from another pod than a good client."""

HELD: Final = 2000
HEADS: Final = 60
"""Connections that each have a head without an end."""

ROUNDS: Final = 3
_FIELD: Final = b"a" * 15_000
_NEVER: Final = math.inf


def tls(address: Address) -> ssl.SSLSocket:
    """Connect without a certificate."""
    plain = socket.create_connection(address, timeout=20, source_address=(SOURCE, 0))
    try:
        return believing().wrap_socket(plain)
    except BaseException:
        plain.close()
        raise


def heads(address: Address, until: float = _NEVER) -> None:
    """Send 590 fields of 15 kB each, and never the end of them, over many connections."""
    lines = [b"X-%d: %s\r\n" % (number, _FIELD) for number in range(590)]
    held: deque[ssl.SSLSocket] = deque()
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            held.append(one := tls(address))
            one.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n")
            for line in lines:
                one.sendall(line)
        if len(held) >= HEADS:
            held.popleft().close()
    for one in held:
        one.close()


def idle(address: Address, until: float = _NEVER, *, hello: bytes = b"") -> None:
    """Hold 2,000 connections that say nothing, and open another for each that is ended."""
    poll = select.epoll()
    held: dict[int, socket.socket] = {}
    try:
        while time.monotonic() < until:
            while len(held) < HELD and time.monotonic() < until:
                sock = socket.socket()
                sock.settimeout(1.0)
                sock.bind((SOURCE, 0))
                try:
                    sock.connect(address)
                    sock.sendall(hello)
                except OSError:
                    sock.close()
                    break
                held[sock.fileno()] = sock
                poll.register(sock, select.EPOLLIN)
            for number, _ in poll.poll(0.1):
                sock = held[number]
                with contextlib.suppress(OSError):
                    if sock.recv(65536):
                        continue
                del held[number]
                poll.unregister(number)
                sock.close()
    finally:
        for sock in held.values():
            sock.close()
        poll.close()


def half_open(address: Address, until: float = _NEVER) -> None:
    """The same with the beginning of a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = believing().wrap_bio(incoming, outgoing, server_hostname="a")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    idle(address, until, hello=outgoing.read())


_GARBAGE: Final = (
    b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"\x01\xff" * 8_000 + b"\r\n\r\n",
    b"\x01" * 16_000 + b"\r\n\r\n",
    b"GET / HTTP/9.9\r\n" + b"a" * 15_000 + b"\r\n\r\n",
)


def garbage(address: Address, until: float = _NEVER) -> None:
    """Send what is no HTTP, one connection after the other."""
    for number in itertools.count():
        if time.monotonic() >= until:
            return
        with contextlib.suppress(OSError), tls(address) as one:
            one.sendall(_GARBAGE[number % len(_GARBAGE)])
            while one.recv(65536):
                pass


FLOODS: Final[dict[str, Callable[[Address], None]]] = {
    function.__name__.replace("_", "-"): function for function in (heads, idle, half_open, garbage)
}


@contextmanager
def flood(name: str, address: Address) -> Iterator[None]:
    """Flood an agent meanwhile."""
    with subprocess.Popen(
        [sys.executable, "-m", __name__, name, address[0], str(address[1])],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.DEVNULL,
    ) as process:
        try:
            yield
            assert process.poll() is None, "the flood has ended"
        finally:
            process.kill()


def main() -> None:
    """Flood."""
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    if not os.geteuid():
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    name, host, port = sys.argv[1:]
    FLOODS[name]((host, int(port)))


if __name__ == "__main__":
    main()
