"""Installs what was built, each in an empty place, with the way to run it there."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.packaging.building import PYTHON
from tests.packaging.roots import BARE, OVER_SYSTEM, Root

_UNIT = "pycrictl-proxy.service"
_WANTED = "/etc/systemd/system/multi-user.target.wants"

INTERPRETER = Path(sys.base_prefix, "bin", "python3")
"""One that has no modules but its own."""


@dataclass(frozen=True)
class Installed:
    """A program in its place.

    Attributes:
        command: makes a whole command line out of a program and its arguments.
        program: its path, as its place has it.
        link: the path of a link to it that is called `crictl`.
    """

    command: Callable[..., list[str]]
    program: str
    link: str

    def run(self, *words: str, program: str = "") -> subprocess.CompletedProcess[str]:
        command = self.command(program or self.program, *words)
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(self.program, *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@contextmanager
def wheel(dist: Path, folder: Path) -> Iterator[Installed]:
    """As `pip install` does, in an environment of its own."""
    (file,) = dist.glob("*.whl")
    place = folder / "venv"
    venv.create(place, symlinks=True)
    pip = [str(PYTHON), "-m", "pip", "--python", str(place / "bin" / "python")]
    install = ["install", "--quiet", "--no-compile", "--disable-pip-version-check", str(file)]
    subprocess.run([*pip, *install], check=True)
    yield _in_folder(place / "bin" / "pycrictl", folder)


@contextmanager
def pyz(dist: Path, folder: Path) -> Iterator[Installed]:
    """The file alone, with an interpreter that has no modules but its own."""
    program = folder / "pycrictl.pyz"
    program.write_bytes((dist / program.name).read_bytes())
    program.chmod(0o755)
    yield _in_folder(program, folder)


@contextmanager
def deb(dist: Path, folder: Path) -> Iterator[Installed]:
    """By dpkg, with the package's scripts, over a view of this machine's files."""
    (file,) = dist.glob("*.deb")
    with Root(folder, OVER_SYSTEM) as root:
        root.put(file, "/tmp/pycrictl.deb")
        done = root.run("dpkg", "--force-unsafe-io", "--no-triggers", "-i", "/tmp/pycrictl.deb")
        assert done.returncode == 0, done.stderr
        # As "systemctl enable" does.
        unit, wanted = (f"{folder}/{_UNIT}" for folder in ("/lib/systemd/system", _WANTED))
        assert root.run("mkdir", "-p", _WANTED).returncode == 0
        assert root.run("ln", "-s", unit, wanted).returncode == 0
        yield _in_root(root, "/usr/bin/pycrictl")
        removed = root.run("dpkg", "--force-unsafe-io", "--no-triggers", "--purge", "pycrictl")
        assert removed.returncode == 0, removed.stderr
        left = root.run("find", "/usr/lib/pycrictl", "/etc/pycrictl.toml", wanted)
        assert left.stdout == ""


@contextmanager
def directory(dist: Path, folder: Path) -> Iterator[Installed]:
    """The standalone folder, in a root that has no Python and next to nothing else."""
    (file,) = dist.glob("*-linux-*.tar.gz")
    name = file.name.removesuffix(".tar.gz")
    with Root(folder, BARE) as root:
        root.put(file, "/tmp/it.tar.gz")
        done = root.run("/bin/busybox", "tar", "-C", "/", "-xzf", "/tmp/it.tar.gz")
        assert done.returncode == 0, done.stderr
        yield _in_root(root, f"/{name}/pycrictl")


@contextmanager
def file(dist: Path, folder: Path) -> Iterator[Installed]:
    """The standalone file, in a root that has no Python and next to nothing else."""
    (file,) = dist.glob("*-linux-*.bin")
    with Root(folder, BARE) as root:
        root.put(file, "/bin/pycrictl")
        root.run("/bin/busybox", "chmod", "755", "/bin/pycrictl")
        yield _in_root(root, "/bin/pycrictl")


def _in_folder(program: Path, folder: Path) -> Installed:
    link = folder / "crictl"
    link.symlink_to(program)
    path = f"{INTERPRETER.parent}:{os.defpath}"
    environ = ["env", "-i", f"PATH={path}", f"HOME={folder}"]
    return Installed(lambda *words: [*environ, *words], str(program), str(link))


def _in_root(root: Root, program: str) -> Installed:
    link = "/bin/crictl"
    root.run("/bin/busybox", "ln", "-sf", program, link)
    return Installed(root.command, program, link)
