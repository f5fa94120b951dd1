"""Runs a program in the namespaces of a container, but with a root file system of its own.

The program's root is a file system in memory, with a static busybox and nothing else, or on top of
an image's layers, which are only read. It is in a mount namespace of its own, and disappears with
its last process. The container's files are below ``/container``, a link to ``/proc/PID/root`` with
the PID in the container's PID namespace. Works on Linux only, as root.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, Self

from pycrictl.errors import PycrictlError
from pycrictl.units import quote

NAMESPACES: Final = ("ipc", "uts", "net", "pid")
"""The container's namespaces to join; its user and mount namespaces are not joined."""

_CLONE_NEWNS: Final = 0x20000
_MS_NOSUID: Final = 2
_MS_NODEV: Final = 4
_MS_BIND: Final = 0x1000
_MS_REC: Final = 0x4000
_MS_PRIVATE: Final = 0x40000
_MNT_DETACH: Final = 2
_PR_SET_PDEATHSIG: Final = 1
_FAILED: Final = 125
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LOADER: Final = re.compile(rb"/[^\0]*/ld-[^\0]*\0")
"""The loader that a dynamically linked program names near its start (elf(5), PT_INTERP)."""


_libc = ctypes.CDLL(None, use_errno=True)


def check_static(path: Path) -> None:
    name = quote(str(path), 4096)
    try:
        with path.open("rb") as file:
            head = file.read(4096) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError as exc:
        raise PycrictlError(f"cannot read {name}: {(exc.strerror or str(exc)).lower()}") from None
    if head[:5] != b"\x7fELF\x02":
        raise PycrictlError(f"{name} is not a program for this machine")
    if _LOADER.search(head):
        raise PycrictlError(
            f"{name} is dynamically linked, and the shell has no libraries",
            hint="install busybox-static, or name a static one with --busybox",
        )


class Tools(NamedTuple):
    """The content of the program's root.

    Attributes:
        environ: environment variables that belong to it.
        busybox: a static busybox, installed with its applets in ``/bin`` as the only content.
        layers: otherwise, the directories of an image's layers, the uppermost first.
    """

    environ: Mapping[str, str]
    busybox: str = ""
    layers: Sequence[str] = ()


class Helper:
    """A process that becomes the parent of the program.

    It is forked before the first connection to a runtime: gRPC may abort a process forked later.
    """

    def __init__(self) -> None:
        order, self._order = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(self._order)
            _serve(order)
        os.close(order)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pid:
            if self._order >= 0:
                os.close(self._order)
            with suppress(ProcessLookupError, ChildProcessError):  # it may have just ended
                if self._order < 0:  # a signal ends this program while the shell runs
                    os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)

    def run(self, pid: int, tools: Tools, words: Sequence[str]) -> int:
        is_front = _is_in_front()
        order = json.dumps([pid, _inner_pid(pid), tools, words, is_front])
        sys.stdout.flush()
        sys.stderr.flush()
        former = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        interrupted = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            descriptor, self._order = self._order, -1
            with os.fdopen(descriptor, "w") as pipe:
                pipe.write(order)
            _, status = os.waitpid(self._pid, 0)
            self._pid = 0
        finally:
            if is_front:
                _take_terminal(os.getpgrp())
            signal.signal(signal.SIGTTOU, former)
            signal.signal(signal.SIGINT, interrupted)
        return os.waitstatus_to_exitcode(status) % 256


def _inner_pid(pid: int) -> int:
    """Return the ID of a process in its own PID namespace (``NSpid``, proc(5))."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        raise PycrictlError("the container has ended meanwhile") from None
    found = next((line.split()[-1] for line in lines if line.startswith("NSpid:")), "1")
    return int(found)


def _serve(order: int) -> NoReturn:
    code = _FAILED
    try:
        _die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        with os.fdopen(order) as pipe:
            text = pipe.read()
        if text:
            pid, number, tools, words, is_front = json.loads(text)
            code = _enter(pid, number, Tools(*tools), words, is_front=is_front)
    except BaseException as exc:
        os.write(2, f"pycrictl: cannot enter the container's namespaces: {exc}\n".encode())
    finally:
        os._exit(code)


def _enter(pid: int, number: int, tools: Tools, words: Sequence[str], *, is_front: bool) -> int:
    opened = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
    for descriptor in opened:
        _check(_libc.setns(descriptor, 0), "setns")
        os.close(descriptor)
    child = os.fork()  # only a child enters the PID namespace
    if not child:
        _become(tools, words, number, is_front=is_front)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _become(tools: Tools, words: Sequence[str], number: int, *, is_front: bool) -> NoReturn:
    try:
        _die_with_parent()
        if is_front:
            with suppress(OSError):
                os.setpgid(0, 0)
                _take_terminal(os.getpgrp())
            # Nothing would continue it; a shell with job control sets its own handler.
            signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        for signal_number in (signal.SIGINT, signal.SIGTTOU):
            signal.signal(signal_number, signal.SIG_DFL)
        _check(_libc.unshare(_CLONE_NEWNS), "unshare")
        _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
        _change_root(_make_root(tools))
        for name in ("resolv.conf", "hosts"):
            file = Path("/etc", name)
            file.unlink(missing_ok=True)
            file.symlink_to(f"/container/etc/{name}")
        Path("/container").symlink_to(f"/proc/{number}/root")
        if tools.busybox:
            install = ["/bin/busybox", "--install", "-s", "/bin"]
            subprocess.run(install, stdin=subprocess.DEVNULL, check=True)
        own = {"HOME": "/", "TERM": os.environ.get("TERM", "dumb"), "PS1": "debug:\\w# "}
        try:
            os.execvpe(words[0], list(words), {"PATH": _PATH, **tools.environ, **own})
        except FileNotFoundError:
            os.write(2, f"pycrictl: there is no {quote(words[0])} among the tools\n".encode())
    except BaseException as exc:
        os.write(2, f"pycrictl: cannot run the shell: {exc}\n".encode())
    finally:
        os._exit(_FAILED)


def _make_root(tools: Tools) -> Path:
    """Mount a root for the program over a directory that every Linux has; return its path."""
    folder = Path("/proc")
    content = Path(tools.busybox).read_bytes() if tools.busybox else b""
    _mount("tmpfs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV)
    if tools.busybox:
        (folder / "bin").mkdir()
        busybox = folder / "bin/busybox"
        busybox.write_bytes(content)
        busybox.chmod(0o755)
        return folder
    root, upper, work = (folder / name for name in ("root", "upper", "work"))
    for each in (root, upper, work):
        each.mkdir()
    # Relative paths, as mount(2) takes no more than a page.
    common = Path(os.path.commonpath(tools.layers)).parent
    os.chdir(common)
    layers = ":".join(os.path.relpath(layer, common) for layer in tools.layers)
    options = f"lowerdir={layers},upperdir={upper},workdir={work}"
    _mount("overlay", root, "overlay", _MS_NOSUID | _MS_NODEV, options)
    return root


def _change_root(root: Path) -> None:
    """Make a mount the root of this process alone, with the node's devices.

    An image may have links in place of the mount points: they are followed in the new root only.
    """
    former = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    os.chdir(root)
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    os.chroot(".")
    for name in ("proc", "dev", "tmp", "etc"):
        Path("/", name).mkdir(exist_ok=True)
    os.fchdir(former)
    _mount("dev", "/dev", "", _MS_BIND | _MS_REC)
    _check(_libc.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")
    os.close(former)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV)


def _die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, even by SIGKILL (prctl(2))."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def _is_in_front() -> bool:
    """Return whether this process group has the terminal."""
    for descriptor in (0, 2):
        with suppress(OSError):
            return os.tcgetpgrp(descriptor) == os.getpgrp()
    return False


def _take_terminal(group: int) -> None:
    for descriptor in (0, 2):
        with suppress(OSError):
            os.tcsetpgrp(descriptor, group)
            return


def _mount(source: str, target: str | Path, kind: str, flags: int, options: str = "") -> None:
    number = ctypes.c_ulong(flags)
    words = (os.fsencode(word) for word in (source, target, kind))
    _check(_libc.mount(*words, number, options.encode() or None), f"mounting {target}")


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number).lower()}")
