"""Install built packages, each in an empty place, and run them there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.packaging.building import built
from tests.packaging.roots import Root, debian

LINK = "/bin/crictl"
QEMU = "/qemu-aarch64-static"

INTERPRETER = Path(sys.base_prefix, "bin", "python{}.{}".format(*sys.version_info))
"""An interpreter with the standard library only."""


@dataclass(frozen=True)
class Installed:
    """An installed program."""

    command: Callable[..., list[str]]
    program: str
    link: str
    pages: str

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
    """Install the wheel by pip, in a virtual environment of its own."""
    (file,) = dist.glob("*.whl")
    place = folder / "venv"
    venv.create(place, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python")]
    install = ["install", "--quiet", "--no-compile", "--disable-pip-version-check", str(file)]
    subprocess.run([*pip, *install], check=True)
    yield _in_folder(place / "bin" / "pycrictl", folder, pages=str(place / "share" / "man"))


@contextmanager
def pyz(dist: Path, folder: Path) -> Iterator[Installed]:
    program = folder / "pycrictl.pyz"
    program.write_bytes((dist / program.name).read_bytes())
    program.chmod(0o755)
    yield _in_folder(program, folder)


PACKAGES = {"deb": "*_amd64.deb", "rpm": "*.x86_64.rpm"}


@contextmanager
def deb(dist: Path, folder: Path, suite: str) -> Iterator[Installed]:
    with _package("deb", dist, folder, suite) as program:
        yield program


@contextmanager
def rpm(dist: Path, folder: Path, suite: str) -> Iterator[Installed]:
    with _package("rpm", dist, folder, suite) as program:
        yield program


@contextmanager
def _package(kind: str, dist: Path, folder: Path, suite: str) -> Iterator[Installed]:
    (file,) = dist.glob(PACKAGES[kind])
    with Root(folder, debian(suite)) as root:
        before = files(root)
        install(root, file)
        yield _in_root(root, "/usr/bin/pycrictl", pages="/usr/share/man")
        root.run("rm", LINK)
        remove(root, kind)
        assert files(root) - before == set()


def install(root: Root, package: Path) -> None:
    """Install a package, or another version of it."""
    if package.suffix == ".deb":
        root.put(package, "/tmp/it.deb")
        done = root.run("dpkg", "--force-unsafe-io", "-i", "/tmp/it.deb")
        root.run("rm", "/tmp/it.deb")
    else:
        done = _rpm(root, "-U", "--replacepkgs", str(package))
    assert done.returncode == 0, done.stderr
    assert "scriptlet failed" not in done.stderr  # rpm only warns of it


def remove(root: Root, kind: str) -> None:
    words = ("dpkg", "--force-unsafe-io", "--purge", "pycrictl")
    done = root.run(*words) if kind == "deb" else _rpm(root, "-e", "pycrictl")
    assert done.returncode == 0, done.stderr


def _rpm(root: Root, *words: str) -> subprocess.CompletedProcess[str]:
    """Run this machine's rpm on a root of Debian, since there is no root with RPM packages."""
    inside = ("rpm", "--force-debian", "--root", str(root.path), "--nodeps", *words)
    return subprocess.run(root.outside(*inside), capture_output=True, text=True, check=False)


@contextmanager
def directory(dist: Path, folder: Path, suite: str) -> Iterator[Installed]:
    (file,) = dist.glob("*-linux-x86_64.tar.xz")
    name = file.name.removesuffix(".tar.xz")
    with Root(folder, debian(suite)) as root:
        unpack = ["tar", "-C", str(root.path), "-xJf", str(file)]
        subprocess.run(root.outside(*unpack), check=True)
        yield _in_root(root, f"/{name}/pycrictl", pages=f"/{name}/share/man")


@contextmanager
def aarch64(dist: Path, folder: Path, suite: str) -> Iterator[Installed]:
    """Run the program under qemu-user: none of this was tested on a real aarch64 machine.

    Unless qemu is registered with the kernel, such programs cannot be started by others: scripts of
    packages do not run, nor does the proxy hand over.
    """
    file = built(dist, "*-linux-aarch64.tar.xz")
    name = file.name.removesuffix(".tar.xz")
    with emulated(folder, debian(suite, "arm64")) as root:
        for words in (
            ("tar", "-C", str(root.path), "-xJf", str(file)),
            ("ln", "-s", f"/{name}/pycrictl", f"{root.path}{LINK}"),
        ):
            subprocess.run(root.outside(*words), check=True)
        command = partial(root.command, QEMU)
        yield Installed(command, f"/{name}/pycrictl", LINK, f"/{name}/share/man")


@contextmanager
def emulated(folder: Path, contents: str) -> Iterator[Root]:
    qemu = shutil.which(Path(QEMU).name)
    assert qemu is not None
    with Root(folder, f"{contents}\ncp {qemu} root{QEMU}") as root:
        yield root


@contextmanager
def single(dist: Path, folder: Path, suite: str) -> Iterator[Installed]:
    (file,) = dist.glob("*-linux-x86_64.bin")
    with Root(folder, debian(suite)) as root:
        root.put(file, "/bin/pycrictl")
        root.run("chmod", "755", "/bin/pycrictl")
        yield _in_root(root, "/bin/pycrictl")


def files(root: Root) -> set[str]:
    paths = root.run("find", "/", "-xdev", "-not", "-type", "d").stdout.splitlines()
    own = ("/var/log/", "/var/lib/dpkg/", "/var/cache/", "/root/")
    return {path for path in paths if not path.startswith(own) and "/rpm" not in path}


def _in_folder(program: Path, folder: Path, pages: str = "") -> Installed:
    link = folder / "crictl"
    link.symlink_to(program)
    path = f"{INTERPRETER.parent}:{os.defpath}"
    environ = ["env", "-i", f"PATH={path}", f"HOME={folder}"]
    return Installed(lambda *words: [*environ, *words], str(program), str(link), pages)


def _in_root(root: Root, program: str, pages: str = "") -> Installed:
    root.run("ln", "-sf", program, LINK)
    return Installed(root.command, program, LINK, pages)
