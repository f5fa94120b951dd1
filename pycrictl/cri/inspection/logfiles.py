"""Log files of containers on this host."""

from __future__ import annotations

import os
import stat
from pathlib import PurePosixPath

from pycrictl import noderoot
from pycrictl.units import quote


def remove_logs(log_path: str) -> tuple[str, ...]:
    """Delete a container's log file and its rotated ones (``LOG_PATH.*``).

    The path comes from the runtime. Only files and symbolic links in one existing directory are
    deleted, never what a link points to; a path that is relative, holds ``..`` or whose directory
    is a link is left alone. A file that is not there is fine: the runtime may run elsewhere.

    Returns:
        Lines for the user about what could not be deleted.
    """
    path = PurePosixPath(log_path)
    if not log_path:
        return ()
    if not path.is_absolute() or ".." in path.parts or not path.name or "\0" in log_path:
        return (f"the log path {quote(log_path, 4096)} is not safe to delete; left alone",)
    try:
        here = noderoot.locate(str(path.parent), follow=False)
        folder = os.open(here, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return ()
    except OSError as error:
        return (_failure(str(path), error),)
    warnings = []
    try:
        # Not glob: a log path may hold characters that mean something to it.
        for name in sorted(os.listdir(folder)):  # noqa: PTH208 (by descriptor)
            if name != path.name and not name.startswith(f"{path.name}."):
                continue
            try:
                if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                warnings.append(_failure(str(path.parent / name), error))
    finally:
        os.close(folder)
    return tuple(warnings)


def _failure(path: str, error: OSError) -> str:
    reason = (error.strerror or str(error)).lower()
    return f"the log file {quote(path, 4096)} could not be deleted: {reason}"
