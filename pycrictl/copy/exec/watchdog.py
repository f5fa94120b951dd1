"""Ends a ``tar`` in the container that nobody reads from any more.

When the reader disconnects, however its program ended, the runtime keeps the output of ``tar``
open: ``tar`` would block on a write, and stay, for as long as the container runs. So a second
program in the container waits for the end of its own input, which does end with this program, and
then kills that ``tar``. If the container lacks the programs that this needs, nothing happens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from pycrictl.copy.exec.remote import Remote


@contextmanager
def watched(remote: Remote) -> Iterator[str]:
    """Make a ``tar`` end soon after this block, or after the death of this program.

    Yields:
        A suffix for the path of the directory that ``tar`` enters. It does not change the path, but
        marks the command: BusyBox may lack every option that could, such as ``--exclude``.
    """
    mark = "".join(random.choices(("/.", "//."), k=32))
    with remote.stream(*watchdog(mark), stdin=True) as dog:
        dog.wait_for_streams()  # a tar started earlier might outlive this program
        yield mark


def watchdog(mark: str) -> list[str]:
    """Return a command that waits for the end of its input, then kills the marked process.

    It uses programs that containers have: ``xargs`` waits, ``find`` and ``grep`` find the process,
    and ``start-stop-daemon`` (BusyBox, Debian) or ``pkill`` (procps) kills it. The former reads
    ``/proc/PID/stat`` as a PID file, since that begins with the PID.
    """
    pattern = mark.replace(".", "[.]")  # does not match itself
    return [
        *("xargs", "-0", "find", "/proc", "-maxdepth", "1"),
        *("-path", "/proc", "-exec", "sleep", "1", ";", "-o"),  # tar may be about to start
        *("-name", "[1-9]*", "-exec", "grep", "-qsz", pattern, "{}/cmdline", ";"),
        *("(", "-exec", "start-stop-daemon", "-K", "-s", "KILL", "-p", "{}/stat", ";"),
        *("-o", "-exec", "pkill", "-KILL", "-f", pattern, ";", ")"),
    ]
