"""Facts about other processes, from /proc."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_bytes(pid: int) -> int:
    """Return the peak resident memory of a process, in bytes; 0 if it has ended."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def descriptors(pid: int) -> list[str]:
    """Return the targets of a process's open descriptors."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found.append(str(entry.readlink()))
    return found


def children(pid: int) -> list[str]:
    """Return the PIDs of the children that a process has not yet waited for."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def connections(path: Path) -> list[str]:
    """Return the lines of /proc/net/unix for a socket's connections; field 7 is the inode."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return [line for line in lines if line.endswith(str(path)) and line.split()[5] == "03"]
