"""Files that are replaced as a whole: the old content stays until the new one is complete."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: str, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a file that replaces the one at ``path`` at the end of the block.

    The new file is written beside the old one, and removed after an error. It gets the old file's
    owner and mode; without an old file, ``mode`` without the umask's bits. Links are followed. A
    device or a pipe is written to directly.

    Raises:
        OSError: the file cannot be written.
    """
    target = Path(path).resolve()
    before = target.stat() if target.exists() else None
    if before is not None and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}")
    try:
        with open(part, "xb", opener=partial(os.open, mode=mode)) as file:
            if before is not None:
                with suppress(PermissionError):
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), before.st_mode & 0o7777)
            yield file
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
