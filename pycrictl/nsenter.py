"""Runs a static program in the namespaces of a container, beside its file system, not in it.

The program's root is a file system in memory with nothing but itself; it is in a mount namespace of
its own, and gone with its last process. The container's files are below ``/container``, a link to
``/proc/PID/root`` as the container's PID namespace numbers its process. Linux, as root only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from pycrictl.errors import PycrictlError
from pycrictl.units import quote

NAMESPACES: Final = ("ipc", "uts", "net", "pid")
"""Those of the container; its user and mount namespaces are not joined."""

_CLONE_NEWNS: Final = 0x20000
_MS_NOSUID: Final = 2
_MS_NODEV: Final = 4
_MS_BIND: Final = 0x1000
_MS_REC: Final = 0x4000
_MS_PRIVATE: Final = 0x40000
_MNT_DETACH: Final = 2
_FAILED: Final = 125
_EXECUTABLE_BYTES: Final = 64 * 1024 * 1024
_PT_INTERP: Final = 3
_ELF64_HEADER: Final = struct.Struct("<16xHHIQQQIHHHHHH")

_libc = ctypes.CDLL(None, use_errno=True)


def check_static(path: Path) -> None:
    """Require that a file is a program that needs no libraries."""
    try:
        with path.open("rb") as file:
            is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            head = file.read(1 << 16) if is_regular else b""
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise PycrictlError(f"cannot read {quote(str(path), 4096)}: {reason}") from None
    if head[:5] != b"\x7fELF\x02":
        raise PycrictlError(f"{quote(str(path), 4096)} is no program for this machine")
    _, _, _, _, offset, _, _, _, size, count, *_ = _ELF64_HEADER.unpack_from(head)
    kinds = [
        struct.unpack_from("<I", head, offset + number * size)[0]
        for number in range(count)
        if offset + (number + 1) * size <= len(head)
    ]
    if _PT_INTERP in kinds:
        raise PycrictlError(
            f"{quote(str(path), 4096)} needs libraries, which are not there beside a container",
            hint="install busybox-static, or name a static one with --busybox",
        )


def run(pid: int, program: Path, words: Sequence[str], scratch: Path) -> int:
    """Run a program in the namespaces of a process, on this terminal; return its exit status.

    ``program`` is static, such as busybox, which finds its applets in ``/bin``; its root is mounted
    on the empty directory ``scratch`` for it alone.
    """
    content = program.read_bytes()[:_EXECUTABLE_BYTES]
    number = _inner_pid(pid)
    namespaces = []
    try:
        for name in NAMESPACES:
            namespaces.append(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise PycrictlError(f"cannot enter the container's namespaces: {reason}") from None
    sys.stdout.flush()
    sys.stderr.flush()
    former = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    interrupted = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        child = os.fork()
        if not child:
            _enter(namespaces, content, words, number, scratch)
        _, status = os.waitpid(child, 0)
    finally:
        _take_terminal(os.getpgrp())
        signal.signal(signal.SIGTTOU, former)
        signal.signal(signal.SIGINT, interrupted)
        for descriptor in namespaces:
            os.close(descriptor)
    return os.waitstatus_to_exitcode(status) % 256


def _inner_pid(pid: int) -> int:
    """Return the number of a process in its own PID namespace (``NSpid``, proc(5))."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        raise PycrictlError("the container has ended meanwhile") from None
    found = next((line.split()[-1] for line in lines if line.startswith("NSpid:")), "1")
    return int(found)


def _enter(
    namespaces: Sequence[int], content: bytes, words: Sequence[str], number: int, scratch: Path
) -> NoReturn:
    """Become the parent of the program, in the namespaces; ends this process."""
    code = _FAILED
    try:
        for descriptor in namespaces:
            _check(_libc.setns(descriptor, 0), "setns")
        child = os.fork()  # only a child is in the PID namespace
        if not child:
            _become(content, words, number, scratch)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        code = 128 - code if code < 0 else code
    except BaseException as exc:
        os.write(2, f"pycrictl: {exc}\n".encode())
    finally:
        os._exit(code)


def _become(content: bytes, words: Sequence[str], number: int, scratch: Path) -> NoReturn:
    """Make the root, and become the program."""
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
            _take_terminal(os.getpgrp())
        for signal_number in (signal.SIGINT, signal.SIGTTOU):
            signal.signal(signal_number, signal.SIG_DFL)
        _check(_libc.unshare(_CLONE_NEWNS), "unshare")
        _mount(b"none", Path("/"), b"", _MS_REC | _MS_PRIVATE)
        _mount(b"tmpfs", scratch, b"tmpfs", _MS_NOSUID | _MS_NODEV)
        for name in ("bin", "proc", "dev", "tmp", "etc", "old"):
            (scratch / name).mkdir()
        busybox = scratch / "bin/busybox"
        busybox.write_bytes(content)
        busybox.chmod(0o755)
        _mount(b"/dev", scratch / "dev", b"", _MS_BIND | _MS_REC)
        _mount(b"proc", scratch / "proc", b"proc", _MS_NOSUID | _MS_NODEV)
        for name in ("resolv.conf", "hosts"):
            (scratch / "etc" / name).symlink_to(f"/container/etc/{name}")
        (scratch / "container").symlink_to(f"/proc/{number}/root")
        os.chdir(scratch)
        _check(_libc.pivot_root(b".", b"old"), "pivot_root")
        os.chroot(".")
        os.chdir("/")
        _check(_libc.umount2(b"/old", _MNT_DETACH), "umount")
        Path("/old").rmdir()
        if not os.fork():
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.execv("/bin/busybox", ["busybox", "--install", "-s", "/bin"])
        os.wait()
        environ = {
            "PATH": "/bin",
            "HOME": "/",
            "TERM": os.environ.get("TERM", "dumb"),
            "PS1": "debug:\\w# ",
        }
        os.execve("/bin/busybox", list(words), environ)
    except BaseException as exc:
        os.write(2, f"pycrictl: cannot run the shell: {exc}\n".encode())
    finally:
        os._exit(_FAILED)


def _take_terminal(group: int) -> None:
    for descriptor in (0, 2):
        with suppress(OSError):
            os.tcsetpgrp(descriptor, group)
            return


def _mount(source: bytes, target: Path, kind: bytes, flags: int) -> None:
    result = _libc.mount(source, os.fsencode(target), kind, ctypes.c_ulong(flags), None)
    _check(result, f"mounting {target}")


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number).lower()}")
