"""What processes say of themselves."""

from __future__ import annotations

import os
import subprocess
import sys

from pycrictl.progress.crio.downloaders import (
    children,
    unpacker_read_bytes,
)
from tests.waiting import wait_until

UNPACKER = """
import os, sys
code = "import sys, time; sys.stdin.buffer.read(); time.sleep(1000)"
os.execv(sys.executable, ["storage-untar", "-c", code])
"""


def test_how_much_an_unpacker_has_read() -> None:
    before = set(children(os.getpid()))
    assert unpacker_read_bytes(os.getpid()) is None
    read, write = os.pipe()
    with subprocess.Popen([sys.executable, "-c", UNPACKER], stdin=read) as process:
        try:
            wait_until(lambda: unpacker_read_bytes(os.getpid()) is not None)
            start = unpacker_read_bytes(os.getpid()) or 0
            for _ in range(50):
                os.write(write, b"x" * 20_000)
            wait_until(
                lambda: (unpacker_read_bytes(os.getpid()) or 0) >= start + 1_000_000 - 70_000
            )
            assert set(children(os.getpid())) - before == {process.pid}
        finally:
            process.kill()
            os.close(write)
            os.close(read)
    assert unpacker_read_bytes(os.getpid()) is None
