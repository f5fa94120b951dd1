"""Containers that are processes of this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ID = "c" * 64
# A process with its own mount namespace and root directory, and optionally a user namespace, which
# is all that these tests need of a container.
FIRST_PROCESS = """
import ctypes, os, subprocess, sys
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
root, has_users = sys.argv[1], len(sys.argv) > 2
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(CLONE_NEWNS | (CLONE_NEWUSER if has_users else 0)) == 0
os.write(1, b"unshared\\n")
os.read(0, 1)
if has_users:
    os.setgid(0)
    os.setuid(0)
script = 'mount --make-rprivate / && mount --bind "$0" "$0" && cd "$0" && pivot_root . old'
subprocess.run(["sh", "-c", script, root], check=True)
os.chdir("/")
os.write(1, b"ready\\n")
os.read(0, 1)
"""


def start(root: Path, *, users: str = "") -> subprocess.Popen[bytes]:
    """Start the first process of a simulated container with the root directory ``root``."""
    (root / "old").mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", FIRST_PROCESS, root, *([users] if users else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"unshared\n"
    if users:
        Path(f"/proc/{process.pid}/uid_map").write_text(users)
        Path(f"/proc/{process.pid}/gid_map").write_text(users)
    process.stdin.write(b"x")
    process.stdin.flush()
    assert process.stdout.readline() == b"ready\n"
    return process


def stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()
