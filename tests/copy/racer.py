"""An attacker: exchanges two names of one directory as fast as it can, until it is stopped.

It gives way to whoever it attacks, so that both are at work all the time.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

RENAME_EXCHANGE: Final = 2


@contextmanager
def flipping(folder: Path, first: str, second: str) -> Iterator[Callable[[], int]]:
    """While the block runs, ``first`` and ``second`` in ``folder`` change places all the time.

    Yields a function that tells how often they have.
    """
    with TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        command = [sys.executable, __file__, str(folder), first, second, str(file.fileno())]
        with (
            mmap.mmap(file.fileno(), mmap.PAGESIZE) as shared,
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(file.fileno(),),
            ) as process,
        ):

            def flips() -> int:
                return int.from_bytes(shared[:8], sys.byteorder)

            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdout.readline()  # it has begun
                yield flips
            finally:
                process.stdin.close()
                process.wait()
            assert process.returncode == 0
            assert flips() > 1000, f"only {flips()} flips: no attack"


def main() -> None:
    folder, first, second = (os.fsencode(argument) for argument in sys.argv[1:4])
    renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    shared = mmap.mmap(int(sys.argv[4]), mmap.PAGESIZE)
    os.nice(5)
    os.set_blocking(0, False)
    os.write(1, b"begun\n")
    flips = 0
    while True:
        for _ in range(50):
            for _ in range(20):
                if renameat2(fd, first, fd, second, RENAME_EXCHANGE):
                    raise OSError(ctypes.get_errno(), "renameat2")
            flips += 20
            shared[:8] = flips.to_bytes(8, sys.byteorder)
        try:
            if not os.read(0, 1):
                break
        except BlockingIOError:
            pass


if __name__ == "__main__":
    main()
