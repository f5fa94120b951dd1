"""An attacker that exchanges two names of a directory as fast as it can, until it is stopped.

Its lower priority lets its target run at the same time.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

RENAME_EXCHANGE: Final = 2


@contextmanager
def flipping(folder: Path, first: str, second: str) -> Iterator[None]:
    """Keep exchanging ``first`` and ``second`` in ``folder`` while the block runs."""
    command = [sys.executable, __file__, str(folder), first, second]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has started
        try:
            yield
        finally:
            flips = int(process.communicate()[0])
        assert flips > 1000, f"only {flips} flips: no attack"


def main() -> None:
    folder, first, second = (os.fsencode(argument) for argument in sys.argv[1:])
    renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.nice(5)
    os.set_blocking(0, False)
    os.write(1, b"begun\n")
    flips, is_over = 0, False
    while not is_over:
        for _ in range(1000):
            if renameat2(fd, first, fd, second, RENAME_EXCHANGE):
                raise OSError(ctypes.get_errno(), "renameat2")
        flips += 1000
        with suppress(BlockingIOError):
            is_over = not os.read(0, 1)
    os.write(1, b"%d" % flips)


if __name__ == "__main__":
    main()
