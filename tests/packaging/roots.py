"""Throwaway roots for programs, which cannot change this machine's files from there."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Self

from tests.once import locked
from tests.packaging.building import ROOT

_END_S = 10

_SHARED = ("/proc", "/dev", "/var/tmp")
"""Folders of the machine in every root; `/var/tmp` has the throwaway node's sockets."""

SUITES = ("bullseye", "bookworm", "trixie")
"""Debian 11, 12 and 13, with C libraries 2.31, 2.36 and 2.41."""


def debian(suite: str, architecture: str = "") -> str:
    below = shlex.quote(str(unpacked(suite, architecture)))
    return f"""
        mkdir upper work root
        mount -t overlay -o lowerdir={below},upperdir=upper,workdir=work overlay root
        rm -f root/usr/lib/*/libstdc++.so.* root/lib/*/libgcc_s.so.*  # not every node has them
    """


def unpacked(suite: str, architecture: str = "") -> Path:
    """Return a minimal Debian's folder, made once for all runs; unconfigured if foreign."""
    folder = ROOT / "build" / "roots" / (f"{suite}-{architecture}" if architecture else suite)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            mirror = subprocess.check_output(ROOT / "packaging/mirror.sh", text=True).strip()
            foreign = ["--foreign", f"--arch={architecture}"] if architecture else []
            make = ["debootstrap", "--variant=minbase", *foreign, suite, str(partial), mirror]
            subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
            partial.rename(folder)
    return folder


def emulator(root: Path) -> list[str]:
    return ["qemu-aarch64-static", "-L", str(root)]


class Root:
    """A root in memory, as a context manager that removes it."""

    def __init__(self, folder: Path, contents: str) -> None:
        self.path = folder / "root"
        # In a container, debootstrap makes a link of /proc, which is mounted over itself otherwise.
        shared = "".join(
            f"[ ! -L root{path} ] || rm root{path}; mkdir -p root{path}\n"
            f"mount --rbind {path} root{path}\n"
            for path in _SHARED
        )
        folder_word = shlex.quote(str(folder))
        self._setup = f"""set -eu
            mount -t tmpfs tmpfs {folder_word}
            cd {folder_word}
            {contents}
            {shared}
            echo ready
            exec cat
        """

    def command(self, *words: str) -> list[str]:
        return [
            "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "nsenter", f"--mount=/proc/{self._process.pid}/ns/mnt",
            "chroot", str(self.path),
            *words,
        ]  # fmt: skip

    @property
    def namespace(self) -> Path:
        return Path(f"/proc/{self._process.pid}/ns/mnt").readlink()

    def outside(self, *words: str) -> list[str]:
        return ["nsenter", f"--mount=/proc/{self._process.pid}/ns/mnt", *words]

    def put(self, file: Path, path: str) -> None:
        with file.open("rb") as source:
            words = ["dd", f"of={path}", "bs=1M", "status=none"]
            subprocess.run(self.command(*words), stdin=source, check=True)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words), capture_output=True, text=True, check=False)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", self._setup],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait(_END_S)
