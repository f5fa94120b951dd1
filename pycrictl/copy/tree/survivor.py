"""A process that outlives this program to clear up what it could not.

It does nothing, and imports nothing, until a pipe shows that this program has ended: the kernel
closes it when a process dies.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Final

from pycrictl.signals import ENDING

FROZEN_ENTRY: Final = "--survivor"
"""The option that makes a frozen program, which is not an interpreter, this process."""

_PROGRAM: Final = """\
import os, sys
if not os.read(0, 1):
    sys.path[:] = sys.argv[1].split(os.pathsep)
    from pycrictl.copy.tree.survivor import act
    act(*sys.argv[2:])
"""


class Survivor:
    """Clears something up when this program is killed.

    Args:
        module: the dotted name of a module, whose ``clear`` does it.
        arguments: what ``clear`` is called with.
        fds: descriptors that the process keeps under their numbers.
    """

    def __init__(self, module: str, arguments: Sequence[str], *, fds: Sequence[int] = ()) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        # Blocked signals stay blocked in a new program: those that end this one, when they are
        # sent to every process of a service, must not end the survivor before.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            with suppress(OSError):  # it is only a precaution
                self._process = subprocess.Popen(
                    [*interpreter(), module, *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    pass_fds=fds,
                    start_new_session=True,  # Ctrl-C is not for it
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def dismiss(self) -> None:
        """End the process: there is nothing left to clear up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._close()

    def release(self) -> None:
        """Let the process clear up now, because this program could not."""
        if self._process is not None:
            self._close()
            self._process.returncode = 0  # nothing waits for it, and Popen need not complain

    def _close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()


def interpreter() -> list[str]:
    """Return the command that waits for the end of its standard input, and then acts."""
    if getattr(sys, "frozen", False):
        return [sys.executable, FROZEN_ENTRY]
    package = os.path.abspath(__file__)  # noqa: PTH100 (in an archive of modules it is not a file)
    for _ in __name__.split("."):
        package = os.path.dirname(package)  # noqa: PTH120 (the same)
    # Relative ones would mean something else there.
    folders = [package, *filter(os.path.isabs, sys.path)]
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, os.pathsep.join(folders)]


def wait_and_act(arguments: Sequence[str]) -> None:
    """Be the survivor, in a frozen program: ``arguments`` are those behind the option."""
    if not os.read(0, 1):
        act(*arguments)


def act(module: str, *arguments: str) -> None:
    """Clear up as the module knows how to."""
    import_module(module).clear(*arguments)
