"""``dist.py [NAME]...``: build the packages into ``dist``; without names, all but the image.

With ``--arch``, a cross-compiler builds for another machine; the zipapp is for this machine only.

The same sources give the same files: their timestamps are $SOURCE_DATE_EPOCH, or the time of the
last commit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import bundle
import deb
import image
import interpreter
import process
import pyz
import rpm
import standalone

ROOT: Final = Path(__file__).resolve().parent.parent

_PACKERS: Final[dict[str, Callable[[standalone.Program, Path, Path], None]]] = {
    "archive": standalone.archive,
    "single": standalone.single,
    "deb": deb.build,
    "rpm": rpm.build,
    "image": image.build,
}
_MADE: Final = {
    "wheel": ("pycrictl-*.whl", "pycrictl-*.tar.gz"),
    "pyz": ("pycrictl.pyz",),
    "archive": ("pycrictl-*-{machine}.tar.xz",),
    "single": ("pycrictl-*-{machine}.bin",),
    "deb": ("pycrictl_*_{architecture}.deb",),
    "rpm": ("pycrictl-*.{machine}.rpm",),
    "image": ("pycrictl-*-image-{architecture}.tar", "pycrictl-*-image.tar"),
}
NAMES: Final = frozenset(_MADE)
_NO_COMMIT_S: Final = 1_580_601_600
"""Timestamp of files outside a repository; hatchling uses the same."""


def main() -> int:
    """Build, and print the path of each file made; return the exit status."""
    parser = argparse.ArgumentParser(prog="dist", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(_MADE)}")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", metavar="FOLDER")
    parser.add_argument("--arch", choices=bundle.MACHINES.values(), help="if not this machine's")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - NAMES:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    own = platform.machine()
    if own not in bundle.MACHINES:
        print(f"dist: no wheels for {own} in bundled.txt", file=sys.stderr)
        return 1
    machines = {name: machine for machine, name in bundle.MACHINES.items()}
    machine = machines[arguments.arch or bundle.MACHINES[own]]
    names = set(arguments.names or NAMES - {"image"})
    if machine != own:
        names -= {"pyz"}
    os.umask(0o022)  # modes of built files get into packages
    try:
        _build(names, arguments.output.resolve(), machine)
    except subprocess.CalledProcessError as exc:
        print(f"dist: '{exc.cmd[0]}' ended with {exc.returncode}", file=sys.stderr)
        return 1
    except FileNotFoundError as exc:
        print(f"dist: {exc.filename}: not found", file=sys.stderr)
        return 1
    return 0


def _build(names: set[str], output: Path, machine: str) -> None:
    output.mkdir(parents=True, exist_ok=True)
    for name in names | {"wheel"}:
        for pattern in _MADE[name]:
            own = pattern.format(machine=machine, architecture=bundle.MACHINES[machine])
            for old in output.glob(own):
                old.unlink()
    time_s = _time_s()
    _build_wheel(output, time_s)
    if names != {"wheel"}:
        _build_bundles(names, output, machine, time_s)
    made = sorted(output.glob("pycrictl*"))
    for path in made:
        print(path)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (output / "SHA256SUMS").write_text("".join(sums))


def _build_bundles(names: set[str], output: Path, machine: str, time_s: int) -> None:
    """Build everything that bundles the dependencies, from the wheel."""
    (wheel,) = output.glob("*.whl")
    version = wheel.name.split("-")[1]
    with tempfile.TemporaryDirectory(prefix="pycrictl-dist-") as scratch:
        work = Path(scratch)
        modules, shared = work / "modules", work / "share"
        bundle.build(bundle.PROGRAM, modules, wheel, machine=machine)
        if "pyz" in names:
            pyz.build(modules, output / "pycrictl.pyz")
        packers = [_PACKERS[name] for name in _PACKERS if name in names]
        if packers:
            bundle.share(wheel, shared)
            root = interpreter.build(ROOT / "build", machine)
            program = standalone.Program(work / "program", root, machine, version, time_s)
            standalone.build(program, modules, shared)
            with ThreadPoolExecutor() as pool:  # they mostly wait for tools
                started = [
                    pool.submit(pack, program, output, work / str(number))
                    for number, pack in enumerate(packers)
                ]
            for future in started:
                future.result()
        if "image" in names:
            image.join(output, work / "joined", version, time_s)


def _build_wheel(output: Path, time_s: int) -> None:
    """Build the sdist, and the wheel from it, which proves that the sdist is complete."""
    build = [sys.executable, "-I", "-m", "build", "--no-isolation", "--outdir", str(output)]
    process.run(*build, str(ROOT), SOURCE_DATE_EPOCH=str(time_s))


def _time_s() -> int:
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout) if not done.returncode else _NO_COMMIT_S


if __name__ == "__main__":
    sys.exit(main())
