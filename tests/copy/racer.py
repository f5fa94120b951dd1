"""An attacker: exchanges two names of one directory as fast as it can, until it is stopped."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

RENAME_EXCHANGE: Final = 2


@contextmanager
def flipping(folder: Path, first: str, second: str) -> Iterator[None]:
    """While the block runs, ``first`` and ``second`` in ``folder`` change places all the time."""
    command = [sys.executable, __file__, str(folder), first, second]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdout.readline()  # it has begun
            yield
        finally:
            process.stdin.close()
            rest = process.stdout.read()
        flips = int(rest)
    assert process.returncode == 0
    assert flips > 1000, f"only {flips} flips: no attack"


def main() -> None:
    folder, first, second = (os.fsencode(argument) for argument in sys.argv[1:])
    renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.set_blocking(0, False)
    os.write(1, b"begun\n")
    flips = 0
    while True:
        for _ in range(1000):
            if renameat2(fd, first, fd, second, RENAME_EXCHANGE):
                raise OSError(ctypes.get_errno(), "renameat2")
        flips += 1000
        try:
            if not os.read(0, 1):
                break
        except BlockingIOError:
            pass
    os.write(1, b"%d\n" % flips)


if __name__ == "__main__":
    main()
