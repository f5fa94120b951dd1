"""What /proc says of another process."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in use now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had; 0 if it has ended."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def descriptors(pid: int) -> list[str]:
    """What a process has open."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found.append(str(entry.readlink()))
    return found


def children(pid: int) -> list[str]:
    """The processes that a process has started and not yet waited for."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def connections(path: Path) -> list[str]:
    """The connections to a socket, as /proc/net/unix has them; the last but one is the inode."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return [line for line in lines if line.endswith(str(path)) and line.split()[5] == "03"]
