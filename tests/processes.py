"""Facts about other processes, from /proc, and processes with a name of their own."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self


class Listener:
    """A separate process, with the given name, that listens on a socket until it is closed."""

    def __init__(
        self, path: Path, name: str, *words: str, environ: Mapping[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(path), name, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=None if environ is None else {**os.environ, **environ},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_bytes(pid: int) -> int:
    """Return the peak resident memory of a process, in bytes; 0 if it has ended."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def descriptors(pid: int) -> list[str]:
    """Return the targets of a process's open descriptors."""
    pids = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            pids.append(str(entry.readlink()))
    return pids


def children(pid: int) -> list[str]:
    """Return the PIDs of the children that a process has not yet waited for."""
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return []


def connections(path: Path) -> list[str]:
    """Return the lines of /proc/net/unix for a socket's connections; field 7 is the inode."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return [line for line in lines if line.endswith(str(path)) and line.split()[5] == "03"]


def _listen(path: str, name: str) -> None:
    Path("/proc/self/comm").write_text(name)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    _listen(*sys.argv[1:3])
