"""An interactive shell on a pseudo terminal, whose job the client is."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Self

from tests.waiting import WAIT_S

_CONTROLS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Shell:
    """Types, and reads what comes; ``CLIENT`` is the client's command in it."""

    def __init__(self, environ: Mapping[str, str], client: Sequence[str]) -> None:
        self._environ = {**environ, "PS1": "$ ", "TERM": "xterm", "CLIENT": " ".join(client)}
        self.seen = b""

    def __enter__(self) -> Self:
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], self._environ)
        self.resize(24, 100)
        self.expect(r"\$ $")
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        os.waitpid(self.pid, 0)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        self.seen = b""
        os.write(self.fd, text.encode())

    def expect(self, pattern: str) -> str:
        """Read until the output since the last ``type`` matches; return that output."""
        give_up_at = time.monotonic() + WAIT_S
        while not re.search(pattern.encode(), text := _CONTROLS.sub(b"", self.seen)):
            left_s = give_up_at - time.monotonic()
            assert left_s > 0, f"no {pattern!r} in {text!r}"
            if select.select([self.fd], [], [], min(left_s, 1))[0]:
                with suppress(OSError):
                    self.seen += os.read(self.fd, 65536)
        return text.decode(errors="replace")

    def run(self, command: str) -> str:
        """Run a command line; return its output, with ``status N`` as its last line."""
        self.type(f"{command}; echo status $?\n")
        output = self.expect(r"\nstatus \d+\n\$ $")
        return output.partition("\n")[2].removesuffix("$ ")
