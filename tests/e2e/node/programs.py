"""The program as a process, on a terminal or forwarding ports, and what it connects to."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.serving import Handler, serving


class Session:
    def __init__(self, words: list[str]) -> None:
        self.terminal, own = os.openpty()
        self.resize(80, 24)
        self.settings = termios.tcgetattr(own)
        self.process = subprocess.Popen(words, stdin=own, stdout=own, stderr=own, process_group=0)
        self._own = own
        self.shown = b""

    def resize(self, columns: int, rows: int) -> None:
        termios.tcsetwinsize(self.terminal, (rows, columns))

    def type(self, keys: bytes) -> None:
        os.write(self.terminal, keys)

    def wait_for(self, text: bytes) -> None:
        deadline = time.monotonic() + 60
        while text not in self.shown:
            ready, _, _ = select.select([self.terminal], [], [], deadline - time.monotonic())
            if not ready:
                self.process.kill()
                self.process.wait()
                raise AssertionError(self.shown)
            self.shown += os.read(self.terminal, 65536)
        self.shown = self.shown.partition(text)[2]

    def talk(self, *turns: tuple[bytes, bytes]) -> None:
        """For each turn, type the keys and wait for the text."""
        for keys, shown in turns:
            self.type(keys)
            self.wait_for(shown)

    def end(self) -> int:
        """Wait for the exit and return its status; the terminal's settings must be as before."""
        status = self.process.wait(60)
        assert termios.tcgetattr(self._own) == self.settings
        os.close(self._own)
        os.close(self.terminal)
        return status


@contextmanager
def web_server(data: bytes) -> Iterator[int]:
    class Site(Handler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            self.send(200, data)

    with serving(Site) as port:
        yield port


@contextmanager
def closed_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextmanager
def forwarded(words: list[str]) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Run a forwarder; yield it and its first lines: two per port, or one with ``--address``."""
    specs = sum(":" in word and word[-1].isdigit() and word[0] == ":" for word in words)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as process:  # type: ignore[call-overload]  # pipes
        try:
            assert process.stdout is not None
            count = specs if "--address" in words else 2 * specs
            yield process, [process.stdout.readline() for _ in range(count)]
        finally:
            process.kill()
