"""Runs a program in the namespaces of a container, but with a root file system of its own.

The program's root is a file system in memory, with a static busybox and nothing else. It is in a
mount namespace of its own, and disappears with its last process. The container's files are below
``/container``, a link to ``/proc/PID/root`` with the PID in the container's PID namespace. Works as
root only, with the programs of util-linux.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pycrictl.base.errors import PycrictlError, reason_of
from pycrictl.base.units import quote_path

NAMESPACES: Final = ("--ipc", "--uts", "--net", "--pid")
"""The container's namespaces to join; its user and mount namespaces are not joined."""

_PROGRAMS: Final = ("setpriv", "nsenter", "unshare", "mount", "chroot", "sh")
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LOADER: Final = rb"/[^\0]*/ld-[^\0]*\0"
"""The loader that a dynamically linked program names near its start (elf(5), PT_INTERP)."""

_DIE_WITH_PARENT: Final = ("setpriv", "--pdeathsig", "KILL")

_SCRIPT: Final = """\
set -eu
pid=$1 busybox=$2 front=$3
shift 3
[ -z "$front" ] || trap '' TSTP  # nothing would continue it; a shell with job control handles it
exec 3< "$busybox"
mount -t tmpfs -o nosuid,nodev tmpfs /tmp
root=/tmp/root
mkdir $root
for name in bin proc dev tmp etc; do
    mkdir $root/$name
done
cat <&3 > $root/bin/busybox
exec 3<&-
chmod 755 $root/bin/busybox
chroot $root /bin/busybox --install -s /bin
mount --rbind /dev $root/dev
mount -t proc -o nosuid,nodev proc $root/proc
ln -sfn /proc/$pid/root $root/container
ln -sfn /container/etc/resolv.conf /container/etc/hosts $root/etc/
cd /
exec env -i "$@"
"""
"""Makes the root in a mount namespace of its own, and runs the program there."""


def check_static(path: Path) -> None:
    name = quote_path(str(path))
    try:
        with path.open("rb") as file:
            head = file.read(4096) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError as exc:
        raise PycrictlError(f"cannot read {name}: {reason_of(exc)}") from None
    if head[:5] != b"\x7fELF\x02":
        raise PycrictlError(f"{name} is not a program for this machine")
    if re.search(_LOADER, head):
        raise PycrictlError(
            f"{name} is dynamically linked, and the shell has no libraries",
            hint="install busybox-static, or name a static one with --busybox",
        )


def run(pid: int, busybox: str, words: Sequence[str]) -> int:
    """Run a program beside the process with this PID; return its exit status.

    ``busybox`` is the path of a static busybox, which is installed with its applets in ``/bin``.
    """
    for name in _PROGRAMS:
        if shutil.which(name, path=_PATH) is None:
            raise PycrictlError(f"this host has no {name}", hint="debug needs util-linux")
    is_front = _is_in_front()
    term = os.environ.get("TERM", "dumb")
    command = [
        *(*_DIE_WITH_PARENT, "nsenter", f"--target={pid}", *NAMESPACES),
        *(*_DIE_WITH_PARENT, "unshare", "--mount", "--propagation=private"),
        "sh", "-c", _SCRIPT, "sh", str(_inner_pid(pid)), busybox, "front" if is_front else "",
        "PATH=/bin", "HOME=/", f"TERM={term}", "PS1=debug:\\w# ",
        shutil.which("chroot", path=_PATH) or "chroot", "/tmp/root", *words,
    ]  # fmt: skip
    former = {number: signal.getsignal(number) for number in (signal.SIGTTOU, signal.SIGINT)}
    group = 0 if is_front else None
    shell = subprocess.Popen(command, cwd="/", env={"PATH": _PATH}, process_group=group)
    try:
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        signal.signal(signal.SIGINT, lambda *_: None)
        if is_front:
            _give_terminal(shell.pid)
        code = shell.wait()
    finally:
        shell.kill()
        shell.wait()
        if is_front:
            _give_terminal(os.getpgrp())
        for number, handler in former.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code


def _inner_pid(pid: int) -> int:
    """Return the ID of a process in its own PID namespace (``NSpid``, proc(5))."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        raise PycrictlError("the container has ended") from None
    pid_there = next((line.split()[-1] for line in lines if line.startswith("NSpid:")), "1")
    return int(pid_there)


def _is_in_front() -> bool:
    """Return whether this process group has the terminal."""
    for descriptor in (0, 2):
        with suppress(OSError):
            return os.tcgetpgrp(descriptor) == os.getpgrp()
    return False


def _give_terminal(group: int) -> None:
    for descriptor in (0, 2):
        with suppress(OSError):
            os.tcsetpgrp(descriptor, group)
            return
