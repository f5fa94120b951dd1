"""Build the interpreter of the standalone program, for the oldest supported C library.

Python and its libraries come from a newer Debian, and are compiled in a chroot of an older one, by
a cross-compiler for another machine. Needs root (for chroot), debootstrap and dpkg-dev.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
from pathlib import Path
from typing import Final

import bundle
import process

GLIBC: Final = (2, 31)
"""The oldest C library that the program runs on: that of `_SUITE`."""

_SUITE: Final = "bullseye"
_PACKAGES: Final = "gcc,libc6-dev,make,perl,pkg-config"
_CROSS: Final = "gcc-{triplet},libc6-dev-{architecture}-cross,libstdc++6-{architecture}-cross"
"""Additional packages for another machine."""

_CARRIED: Final = {"libstdc++6": "gcc-10"}
"""Packages of the root whose code gets into the program, with their source packages."""

_SOURCES: Final = Path(__file__).with_name("standalone")
_PINS: Final = _SOURCES / "sources.txt"
_TIME_S: Final = 1_580_601_600
"""Timestamp that compilers write into their output."""


def contents(root: Path) -> dict[str, str]:
    """Return the versions of the interpreter's parts, by the names of Debian's source packages."""
    versions = {name: version for _, name, version in pins(_PINS)}
    for paragraph in (root / "var/lib/dpkg/status").read_text().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line)
        if fields.get("Package") in _CARRIED:
            versions[_CARRIED[fields["Package"]]] = fields["Version"]
    return versions


def build(cache: Path, machine: str) -> Path:
    """Return a root with the interpreter, cached from an earlier build or newly built.

    In it are `/python`, an installed Python; `/native`, the same for the machine that builds;
    `/programs/folder` and `/programs/single`, the launchers; `/programs/lib`, libraries that
    modules need; and `/licenses` of all this.

    Args:
        cache: the folder that keeps the root.
        machine: the target machine, as `uname -m` prints it.

    Raises:
        subprocess.CalledProcessError: a tool failed; its output has the reason.
    """
    script, triplet = _SOURCES / "interpreter.sh", f"{machine}-linux-gnu"
    packages, is_native = _PACKAGES, machine == platform.machine()
    if not is_native:
        cross = _CROSS.format(triplet=triplet, architecture=bundle.MACHINES[machine])
        packages += f",{cross.replace('_', '-')}"
    key = hashlib.sha256(f"{_SUITE} {packages} {machine}\0".encode())
    for file in (_PINS, script):
        key.update(file.read_bytes())
    folder = cache / f"interpreter-{machine}-{key.hexdigest()[:16]}"
    root, done = folder / "root", folder / "complete"
    if not done.exists():
        for old in cache.glob(f"interpreter-{machine}-*"):
            shutil.rmtree(old)
        folder.mkdir(parents=True)
        variant = ["--variant=minbase", f"--include={packages}"]
        process.run("debootstrap", *variant, _SUITE, str(root), _mirror())
        if not is_native:
            native = build(cache, platform.machine())
            shutil.copytree(native / "python", root / "native", symlinks=True)
        _fetch(folder / "apt", root / "src")
        _run(root, script, triplet)
        done.touch()
    launcher, link = _SOURCES / "launcher.c", _SOURCES / "launcher.sh"
    # What the launchers were linked from, as linking them takes minutes.
    linked, sources = folder / "linked", launcher.read_bytes() + link.read_bytes()
    if not linked.exists() or linked.read_bytes() != sources:
        linked.unlink(missing_ok=True)
        shutil.rmtree(root / "programs", ignore_errors=True)
        (root / "programs").mkdir()
        shutil.copy(launcher, root / "src")
        _run(root, link, triplet)
        linked.write_bytes(sources)
    return root


def apt(folder: Path, release: str, architecture: str) -> list[str]:
    """Return the command line of an apt-get with its own package lists, of one Debian release.

    Args:
        folder: for its lists; signatures are checked with this machine's keyring.
        release: the name of the release.
        architecture: of packages, as Debian names it.
    """
    for name in ("lists/partial", "cache/archives/partial", "sources"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    source = f"[signed-by={keys}] {_mirror()} {release} main\n"
    lines = [f"{kind} {source}" for kind in ("deb", "deb-src")]
    (folder / "sources.list").write_text("".join(lines))
    (folder / "status").touch()
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
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
    """Return the entries of a file of pins: Debian release, name and version of a package."""
    lines = [line.split() for line in file.read_text().splitlines() if line[:1] != "#"]
    return [(release, name, version) for release, name, version in lines]


def _fetch(folder: Path, target: Path) -> None:
    """Unpack the sources, with Debian's patches, into one folder of `target` per program."""
    target.mkdir()
    needed = pins(_PINS)
    own = bundle.MACHINES[platform.machine()]
    releases = {release for release, _, _ in needed}
    words = {release: apt(folder / release, release, own) for release in releases}
    for release, name, version in needed:
        process.run(*words[release], "--download-only", "source", f"{name}={version}", cwd=folder)
        (description,) = folder.glob(f"{name}_*.dsc")
        program = name.rstrip("0123456789.")
        process.run("dpkg-source", "--no-check", "-x", str(description), str(target / program))


def _run(root: Path, script: Path, *words: str) -> None:
    """Run a script in the root, isolated from this machine except for its kernel."""
    shutil.copy(script, root / "src")
    own = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "chroot", str(root)]
    path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
    plain = ["env", "-i", path, "LC_ALL=C", f"SOURCE_DATE_EPOCH={_TIME_S}", "PYTHONHASHSEED=1"]
    process.run(*own, *plain, "sh", f"/src/{script.name}", *words)
