"""What agents keep of archives: files without names, which only their processes know."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def spooled(folder: Path) -> list[Path]:
    """The files in a folder, and those without a name that any process has there."""
    found = list(folder.iterdir()) if folder.exists() else []
    prefix = f"{os.path.realpath(folder)}/"
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for path in (process / "fd").iterdir():
                with suppress(OSError):
                    link = str(path.readlink())
                    if link.startswith(prefix) and link.endswith(" (deleted)"):
                        found.append(path)
    return found
