"""Build the interpreter of the standalone program, for the oldest C library that it serves.

Python and the libraries in it are of a newer Debian, compiled in a root of an older one. Needs
root, for chroot; debootstrap and dpkg-dev.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
from pathlib import Path
from typing import Final

import process

GLIBC: Final = (2, 31)
"""The oldest C library that the program runs on: that of `_SUITE`."""

_SUITE: Final = "bullseye"
_PACKAGES: Final = "gcc,libc6-dev,make,perl,pkg-config"
_CARRIED: Final = {"libstdc++6": "gcc-10"}
"""Packages of the root whose code gets into the program, with the names of their sources."""

_SOURCES: Final = Path(__file__).with_name("standalone")
_PINS: Final = _SOURCES / "sources.txt"
_TIME_S: Final = 1_580_601_600
"""The time that compilers write into what they build."""


def sources() -> dict[str, str]:
    """Return the versions of what is compiled, by the names of Debian's source packages."""
    return {name: version for _, name, version in pins(_PINS)}


def contents(root: Path) -> dict[str, str]:
    """Return the versions of what the interpreter has, by the names of Debian's source packages."""
    carried = {}
    for paragraph in (root / "var/lib/dpkg/status").read_text().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line)
        if fields.get("Package") in _CARRIED:
            carried[_CARRIED[fields["Package"]]] = fields["Version"]
    return {**sources(), **carried}


def build(cache: Path) -> Path:
    """Return a root with the interpreter, from an earlier build or made now.

    In it are `/python`, an installed Python; `/programs/folder` and `/programs/single`, the
    launchers; `/programs/lib`, libraries that modules need; and `/licenses` of all this.

    Args:
        cache: a folder, where the root stays.

    Raises:
        subprocess.CalledProcessError: a tool failed, and said why.
    """
    script = _SOURCES / "interpreter.sh"
    key = hashlib.sha256(f"{_SUITE} {_PACKAGES} {platform.machine()}\0".encode())
    for file in (_PINS, script):
        key.update(file.read_bytes())
    folder = cache / f"interpreter-{key.hexdigest()[:16]}"
    root, done = folder / "root", folder / "complete"
    if not done.exists():
        for old in cache.glob("interpreter-*"):
            shutil.rmtree(old)
        folder.mkdir(parents=True)
        variant = ["--variant=minbase", f"--include={_PACKAGES}"]
        process.run("debootstrap", *variant, _SUITE, str(root), _mirror())
        _fetch(folder / "apt", root / "src")
        _run(script, root)
        done.touch()
    shutil.rmtree(root / "programs", ignore_errors=True)
    (root / "programs").mkdir()
    shutil.copy(_SOURCES / "launcher.c", root / "src")
    _run(_SOURCES / "launcher.sh", root)
    return root


def apt(folder: Path, release: str) -> list[str]:
    """Return the words of an apt-get of its own, which knows what a release of Debian has.

    Args:
        folder: for its lists; its signatures are checked with the machine's keyring.
    """
    for name in ("lists/partial", "cache/archives/partial", "sources"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    source = f"[signed-by={keys}] {_mirror()} {release} main\n"
    lines = [f"{kind} {source}" for kind in ("deb", "deb-src")]
    (folder / "sources.list").write_text("".join(lines))
    (folder / "status").touch()
    settings = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": folder / "sources",
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
    }
    words = ["apt-get", "-qq"]
    for name, value in settings.items():
        words += ["-o", f"{name}={value}"]
    process.run(*words, "update")
    return words


def _mirror() -> str:
    return process.output(str(Path(__file__).with_name("mirror.sh"))).strip()


def pins(file: Path) -> list[tuple[str, str, str]]:
    """Return the lines of a file: release of Debian, name and version of a package."""
    lines = [line.split() for line in file.read_text().splitlines() if line[:1] != "#"]
    return [(release, name, version) for release, name, version in lines]


def _fetch(folder: Path, target: Path) -> None:
    """Unpack the sources, with Debian's changes, below `target` by the program's name."""
    target.mkdir()
    needed = pins(_PINS)
    words = {release: apt(folder / release, release) for release in {each for each, _, _ in needed}}
    for release, name, version in needed:
        process.run(*words[release], "--download-only", "source", f"{name}={version}", cwd=folder)
        (description,) = folder.glob(f"{name}_*.dsc")
        program = name.rstrip("0123456789.")
        process.run("dpkg-source", "--no-check", "-x", str(description), str(target / program))


def _run(script: Path, root: Path) -> None:
    """Run a script in the root, with nothing of this machine's but the kernel."""
    shutil.copy(script, root / "src")
    own = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "chroot", str(root)]
    path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
    plain = ["env", "-i", path, "LC_ALL=C", f"SOURCE_DATE_EPOCH={_TIME_S}", "PYTHONHASHSEED=1"]
    process.run(*own, *plain, "sh", f"/src/{script.name}")
