"""The file systems of the node, as the runtime names them."""

from __future__ import annotations

import os

from pycrictl import noderoot
from pycrictl.errors import PycrictlError


def space(mountpoint: str) -> tuple[int, int] | None:
    """Return the size of a file system of the node and what is left of it, in bytes.

    None if it cannot be asked: the runtime may run elsewhere.
    """
    try:
        found = os.statvfs(noderoot.locate(mountpoint))
    except (OSError, ValueError, PycrictlError):
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
