"""Build one folder of modules with the program and its dependencies, for all supported Pythons.

Compiled modules for different Pythons lie side by side, as their names end in the interpreter's
tag. The image's additional modules have a folder of their own. Run as a program, this module
updates the hashes in both files of pins.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

WHEELS: Final = Path(__file__).resolve().parent.parent / "build" / "wheels"
"""Cache of wheels, so that the next build does not download them again."""

PYTHONS: Final = ((3, 11), (3, 12), (3, 13), (3, 14), (3, 15))
"""The versions of CPython that bundles support; wheels for all of them must exist."""

MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
"""Machines for which the files have hashes, with their names in Debian and in images."""


@dataclass(frozen=True)
class Pins:
    """Projects in fixed versions.

    Attributes:
        file: the versions, with the hashes of the wheels.
        pythons: the versions of CPython that need wheels.
    """

    file: Path
    pythons: tuple[tuple[int, int], ...]


PROGRAM: Final = Pins(Path(__file__).with_name("bundled.txt"), PYTHONS)
"""Dependencies in every package of the program."""

AGENT: Final = Pins(Path(__file__).parent / "image" / "modules.txt", ((3, 13),))
"""Dependencies of the agent alone, which runs from the image and so with one Python."""

_PLATFORMS: Final = ("manylinux2014_{}", "manylinux_2_17_{}")
_UNUSED: Final = frozenset({".pyi", ".pyx", ".pxd", ".pxi"})
_UNUSED_METADATA: Final = frozenset({"RECORD", "WHEEL", "INSTALLER", "REQUESTED"})


def suffixes(machine: str) -> tuple[str, ...]:
    """Return the suffixes of compiled modules for the supported interpreters."""
    tags = (f"cpython-{major}{minor}" for major, minor in PYTHONS)
    return tuple(f".{tag}-{machine}-linux-gnu.so" for tag in tags)


def build(pins: Pins, folder: Path, *own_wheels: Path, machine: str) -> None:
    """Fill `folder` from the wheels of the pinned projects and from `own_wheels`.

    Args:
        pins: the projects.
        folder: replaced.
        own_wheels: pycrictl's, if it is to be included.
        machine: the target machine.

    Raises:
        subprocess.CalledProcessError: pip failed; its output has the reason.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for wheel in (*own_wheels, *_wheels(pins, machine)):
        for name, content in _modules(wheel):
            path = folder / name
            if path.exists():
                if path.read_bytes() != content:
                    raise SystemExit(f"dist: two wheels differ in {name}")
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def share(own_wheel: Path, folder: Path) -> None:
    """Fill `folder` with the data files of the program's wheel: man pages and completions."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with zipfile.ZipFile(own_wheel) as archive:
        for name in archive.namelist():
            path = Path(name)
            if path.parts[0].endswith(".data") and path.parts[1:3] == ("data", "share"):
                target = folder.joinpath(*path.parts[3:])
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))


def files(folder: Path) -> list[Path]:
    """Return the files of a bundle, sorted, without the `__pycache__` that running it creates."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in files if path.parent.name != "__pycache__")


def licenses(folder: Path) -> list[Path]:
    """Return the license texts and notices of a bundle."""
    return [file for file in files(folder) if file.stem in ("LICENSE", "LICENCE", "NOTICE")]


def _wheels(pins: Pins, machine: str) -> list[Path]:
    """Return the wheels for a machine, downloaded again only when the pins change."""
    folder = WHEELS / pins.file.stem / machine
    done = folder / f"complete-{hashlib.sha256(pins.file.read_bytes()).hexdigest()[:16]}"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        words = ["--require-hashes", "--requirement", str(pins.file)]
        _download(pins, words, folder, machine)
        done.touch()
    return sorted(folder.glob("*.whl"))


def _download(pins: Pins, words: list[str], folder: Path, machine: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check"]
    pip += ["--no-deps", "--only-binary", ":all:", "--implementation", "cp"]
    for pattern in _PLATFORMS:
        pip += ["--platform", pattern.format(machine)]
    with ExitStack() as stack:
        # Each into its own folder: they run in parallel, and share some wheels.
        downloads = []
        for major, minor in pins.pythons:
            part = stack.enter_context(tempfile.TemporaryDirectory(dir=folder))
            command = [*pip, "--python-version", f"{major}.{minor}", "--dest", part, *words]
            downloads.append((part, stack.enter_context(subprocess.Popen(command))))
        for part, process in downloads:
            if process.wait():
                raise subprocess.CalledProcessError(process.returncode, process.args)
            for wheel in Path(part).glob("*.whl"):
                wheel.replace(folder / wheel.name)


def _modules(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the files that a wheel puts on the module path."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            path = Path(name)
            top = path.parts[0]
            unused = path.suffix in _UNUSED or (
                top.endswith(".dist-info") and path.name in _UNUSED_METADATA
            )
            if not (name.endswith("/") or top.endswith(".data") or unused):
                yield name, archive.read(name)


def _lock(pins: Pins) -> None:
    """Rewrite a file of pins with the hashes of all wheels of its versions."""
    lines = pins.file.read_text().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    versions = sorted(line.removesuffix(" \\") for line in lines if "==" in line)
    with tempfile.TemporaryDirectory() as scratch:
        for machine in MACHINES:
            _download(pins, versions, Path(scratch), machine)
        hashes = _hashes(Path(scratch).glob("*.whl"))
    entries = [
        " \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in hashes[_project(pin)])])
        for pin in versions
    ]
    pins.file.write_text("\n".join([*comments, *entries]) + "\n")


def _hashes(wheels: Iterable[Path]) -> dict[str, list[str]]:
    hashes: dict[str, list[str]] = {}
    for wheel in sorted(wheels):
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        hashes.setdefault(wheel.name.partition("-")[0], []).append(digest)
    return hashes


def _project(pin: str) -> str:
    """Return the name of a pinned project as its wheels spell it."""
    return pin.partition("==")[0].replace("-", "_")


if __name__ == "__main__":
    for bundled in (PROGRAM, AGENT):
        _lock(bundled)
