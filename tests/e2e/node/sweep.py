"""Remove whatever a throwaway node left: processes, mounts, cgroups, sockets and its folder.

Everything is found by the node's folder, never by a program's name alone: a containerd of the
machine itself is out of reach. Standard library only: `start_janitor` runs this file by path.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

_DAEMONS = {"containerd", "docker-registry", "kubelet", "kube-apiserver", "mini-etcd", "crio"}
_SHIMS = {"containerd-shim-runc-v2", "containerd-shim", "runc", "conmon"}
_Kind = Callable[[Path, Path], bool]  # (process' folder in /proc, node's folder)


def start_janitor(folder: Path) -> subprocess.Popen[bytes]:
    """Start a process in its own session that sweeps `folder` when this one ends, however it ends.

    It waits for the end of its standard input, which the kernel closes even after SIGKILL.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, folder],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def sweep(folder: Path, *, timeout_s: float = 90.0) -> None:
    """Kill every process of the node in `folder` and remove all traces; safe to call again."""
    for belongs in _KINDS:
        _kill_all(folder, belongs, timeout_s=timeout_s)
    _remove_shim_sockets(folder)
    for mount_point in reversed(mount_points(folder)):
        subprocess.run(["umount", "--lazy", mount_point], check=False)
    _remove_cgroups(folder.name)
    shutil.rmtree(folder, ignore_errors=True)


def processes(folder: Path) -> list[int]:
    return [pid for kind in _KINDS for pid in _find(folder, kind)]


def mount_points(folder: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4] for line in lines]
    return [point for point in points if point == str(folder) or point.startswith(f"{folder}/")]


def cgroups(name: str) -> list[Path]:
    top = Path("/sys/fs/cgroup")
    return [path for path in (top / name, *top.glob(f"*/{name}")) if path.is_dir()]


def _find(folder: Path, belongs: _Kind) -> list[int]:
    own = {os.getpid(), os.getppid()}
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in own:
            # A process that has ended, or is a zombie, has nothing to read.
            with contextlib.suppress(OSError):
                if belongs(entry, folder):
                    pids.append(int(entry.name))
    return pids


def _names_folder(programs: set[str], process: Path, folder: Path) -> bool:
    words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    # The separator keeps a node in "…/pcn-ab" apart from one in "…/pcn-abc".
    return Path(words[0]).name in programs and any(f"{folder}/" in word for word in words)


def _is_contained(process: Path, folder: Path) -> bool:
    """True for a process whose root file system is one of the node's snapshots, or its ``/run``."""
    for line in (process / "mountinfo").read_text(errors="replace").splitlines():
        if line.split()[4] in ("/", "/run") and f"{folder}/" in line:
            return True
    return False


# Containers before shims: a living shim reaps its container, a dead one leaves it to init.
_KINDS = (partial(_names_folder, _DAEMONS), _is_contained, partial(_names_folder, _SHIMS))


def _kill_all(folder: Path, belongs: _Kind, *, timeout_s: float) -> None:
    give_up_at = time.monotonic() + timeout_s
    while pids := _find(folder, belongs):
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"processes {pids} of {folder} survive SIGKILL")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _remove_shim_sockets(folder: Path) -> None:
    # containerd puts them into a fixed folder, whatever its configuration says.
    for address in folder.glob("state/io.containerd.runtime.v2.task/*/*/address"):
        Path(address.read_text().removeprefix("unix://")).unlink(missing_ok=True)


def _remove_cgroups(name: str) -> None:
    for top in cgroups(name):
        for path, _, _ in os.walk(top, topdown=False):
            Path(path).rmdir()


if __name__ == "__main__":
    for stop_signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop_signal, signal.SIG_IGN)
    sys.stdin.buffer.read()
    sweep(Path(sys.argv[1]))
