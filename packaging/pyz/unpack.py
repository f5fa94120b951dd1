"""Unpack a single-file program once per user, and run it from there.

The program is `pycrictl.pyz`, or the standalone file, which includes an interpreter. Since an
interpreter cannot load compiled modules from an archive, all modules are unpacked, all or none,
into a folder named after their content, in a cache that no other user can write to.

The cache is the first usable one of `$XDG_CACHE_HOME/pycrictl` or `~/.cache/pycrictl`, for root
`/var/cache/pycrictl`, `/var/tmp/pycrictl-UID`, `/tmp/pycrictl-UID`. It may be removed whenever no
pycrictl is running. Unpacking a newer file removes the folders of older ones, except those in use:
each process holds a shared lock on its folder.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # not documented; unlike signal, there already
import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Final, NoReturn

from facts import KEY, NAME, PACKED, SUFFIXES

_FOREIGN_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_LOCK_LIMIT_S: Final = 60.0
_LOCK_INTERVAL_S: Final = 0.05
_PARTIAL: Final = ".partial-"


class UnusableError(Exception):
    """A folder that cannot be the cache; the text says why."""


def start() -> NoReturn:
    """Run the program, after unpacking it if necessary."""
    suffix = EXTENSION_SUFFIXES[0]
    if suffix not in SUFFIXES:
        _fail(f"serves Pythons with modules in {', '.join(SUFFIXES)}; this one has {suffix}")
    umask = os.umask(0o077)
    archive = sys.path[0]
    try:
        sys.path[0] = _unpacked(suffix)
    except KeyboardInterrupt:
        sys.exit(130)
    os.umask(umask)
    # Packages that the interpreter's own start has imported from the archive.
    for module in tuple(sys.modules.values()):
        if paths := getattr(module, "__path__", None):
            module.__path__ = [path.replace(archive, sys.path[0], 1) for path in paths]
    if PACKED:
        from one_file import install

        install(sys.path[0])
    from pycrictl.__main__ import run

    run()


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"{NAME}: {message}\n")
    sys.exit(1)


def _unpacked(suffix: str) -> str:
    """Return the folder of modules, unpacked by an earlier start or now."""
    name = f"{KEY}{suffix.removesuffix('.so')}"
    reasons = []
    for base in _caches():
        try:
            _check(base)
            folder = os.path.join(base, name)
            while not _is_held(folder):
                _unpack(base, folder, suffix)
            return folder
        except UnusableError as exc:
            reasons.append(f"{base} {exc}")
        except OSError as exc:
            reasons.append(f"{base}: {(exc.strerror or str(exc)).lower()}")
    _fail(f"nowhere to unpack to, set XDG_CACHE_HOME ({'; '.join(reasons)})")


def _caches() -> Iterator[str]:
    uid = os.geteuid()
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):
        home = os.path.join(os.path.expanduser("~"), ".cache")
    if os.path.isabs(home):
        yield os.path.join(home, "pycrictl")
    if uid == 0:
        yield "/var/cache/pycrictl"
    yield f"/var/tmp/pycrictl-{uid}"
    yield f"/tmp/pycrictl-{uid}"


def _check(base: str) -> None:
    """Create the cache, and check that no other user can change it or the folders above it.

    Anyone who can write to a folder above the cache could replace it by one whose files root would
    run. In a sticky folder, such as /tmp, they cannot replace a folder of ours.
    """
    os.makedirs(base, mode=0o700, exist_ok=True)
    status = os.lstat(base)
    if not stat.S_ISDIR(status.st_mode):
        raise UnusableError("is a link")
    if status.st_uid != os.geteuid():
        raise UnusableError("belongs to another user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise UnusableError("is open to other users")
    if os.statvfs(base).f_flag & os.ST_NOEXEC:
        raise UnusableError("is on a file system without execution")
    path = os.path.realpath(base)
    while path != "/":
        path = os.path.dirname(path)
        status = os.stat(path)
        foreign = status.st_uid not in (0, os.geteuid())
        writable = status.st_mode & _FOREIGN_WRITE and not status.st_mode & stat.S_ISVTX
        if foreign or writable:
            raise UnusableError(f"is below {path}, which another user can change")


def _unpack(base: str, folder: str, suffix: str) -> None:
    """Fill `folder`, which appears with all of its files or not at all."""
    with _interruptible(), _alone(base) as is_alone:
        if is_alone:
            if os.path.isdir(folder):  # done by the previous holder of the lock
                return
            _remove_partial(base)
            _remove_older(base)
        partial = os.path.join(base, f"{_PARTIAL}{os.urandom(8).hex()}")
        os.mkdir(partial, 0o700)
        try:
            _extract(partial, suffix)
            # Otherwise the name could survive a power failure, but not the content.
            os.sync()
            os.rename(partial, folder)
        except BaseException as exc:
            _remove(partial)
            taken = isinstance(exc, OSError) and exc.errno in (errno.EEXIST, errno.ENOTEMPTY)
            if not taken:
                raise


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C raise an exception, so that nothing is left behind."""
    before = _signal.getsignal(_signal.SIGINT)
    if before is _signal.SIG_DFL:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    try:
        yield
    finally:
        _signal.signal(_signal.SIGINT, before)


@contextmanager
def _alone(base: str) -> Iterator[bool]:
    """Let one start at a time unpack; yield false if locking is unsupported or times out."""
    fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield _lock(fd)
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    give_up_at = time.monotonic() + _LOCK_LIMIT_S
    while time.monotonic() < give_up_at:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_INTERVAL_S)
        except OSError:  # a network file system
            return False
        else:
            return True
    return False


def _extract(folder: str, suffix: str) -> None:
    import zipfile

    others = tuple(set(SUFFIXES) - {suffix})
    with zipfile.ZipFile(sys.path[0]) as archive:
        if PACKED:
            import tarfile

            with archive.open(PACKED) as packed, tarfile.open(fileobj=packed, mode="r|xz") as tar:
                tar.extractall(folder, filter="data")
            return
        names = [name for name in archive.namelist() if name.startswith("lib/")]
        made = set()
        for name in names:
            if name.endswith(others):
                continue
            path = os.path.join(folder, name.removeprefix("lib/"))
            parent = os.path.dirname(path)
            if parent not in made:
                os.makedirs(parent, mode=0o700, exist_ok=True)
                made.add(parent)
            with open(path, "xb") as file:
                file.write(archive.read(name))


def _is_held(folder: str) -> bool:
    """Protect the folder from removal until this process ends; return whether it exists."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    with suppress(OSError):  # a network file system, where the exclusive lock fails too
        fcntl.flock(fd, fcntl.LOCK_SH)
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(fd), os.stat(folder)):
            return True
    os.close(fd)  # it was removed meanwhile
    return False


def _remove_older(base: str) -> None:
    """Remove the unpacked folders of other versions, for any Python, that are not in use."""
    kind = KEY.rpartition("-")[0]
    for name in os.listdir(base):
        key = name.partition(".")[0]
        if key == KEY or key.rpartition("-")[0] != kind or len(key) != len(KEY):
            continue
        older = os.path.join(base, name)
        with suppress(OSError):
            fd = os.open(older, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                gone = os.path.join(base, f"{_PARTIAL}{os.urandom(8).hex()}")
                os.rename(older, gone)
            finally:
                os.close(fd)
            _remove(gone)


def _remove_partial(base: str) -> None:
    """Remove what killed starts left; no other process is unpacking, since we hold the lock."""
    for name in os.listdir(base):
        if name.startswith(_PARTIAL):
            _remove(os.path.join(base, name))


def _remove(folder: str) -> None:
    import shutil

    with suppress(OSError):
        shutil.rmtree(folder)
