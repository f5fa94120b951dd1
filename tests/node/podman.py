"""podman with everything in one folder. It pulls with the library that CRI-O pulls with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from .sweep import mount_points


class Podman:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        (folder / "tmp").mkdir()
        self.environ = {**os.environ, "TMPDIR": str(folder / "tmp")}

    def close(self) -> None:
        for mount_point in reversed(mount_points(self.folder)):
            subprocess.run(["umount", "--lazy", mount_point], check=False)

    def command(self, *words: str) -> list[str]:
        own = {
            "--root": self.store,
            "--runroot": self.folder / "run",
            "--tmpdir": self.folder / "state",
            "--storage-driver": "overlay",
            "--cgroup-manager": "cgroupfs",
            "--events-backend": "none",
        }
        return ["podman", *(str(word) for pair in own.items() for word in pair), *words]

    def pull(self, reference: str) -> subprocess.Popen[bytes]:
        with (self.folder / "stderr").open("wb") as stderr:
            return subprocess.Popen(
                self.command("pull", "--quiet", "--tls-verify=false", reference),
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )

    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()
