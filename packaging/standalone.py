"""Build the program with its own interpreter, for nodes without Python.

It needs zlib, to which PyInstaller's loader is linked, and a C library that is not older than that
of the building machine.
"""

from __future__ import annotations

import gzip
import shutil
import sys
import sysconfig
import tarfile
from pathlib import Path
from typing import Final

import bundle
import process

_SPEC: Final = Path(__file__).with_name("standalone.spec")


def build(modules: Path, stem: Path, *, work: Path, shared: Path, time_s: int) -> None:
    """Write an archive of one folder, and one file that unpacks itself at each start.

    Args:
        modules: made by `bundle`.
        stem: the path of both without suffix; its name is also that of the folder in the archive.
        work: a folder for PyInstaller.
        shared: man pages and completions, the archive's `share`.
        time_s: the modification time of all files in the archive.

    Raises:
        subprocess.CalledProcessError: PyInstaller failed, and said why.
    """
    pyinstaller = [sys.executable, "-m", "PyInstaller", "--log-level", "WARN", "--noconfirm"]
    places = ["--distpath", str(work / "out"), "--workpath", str(work / "cache"), str(_SPEC)]
    process.run(
        *pyinstaller,
        *places,
        PYCRICTL_MODULES=str(modules),
        PYTHONHASHSEED="1",  # the order of sets is written into compiled modules
        PYTHONDONTWRITEBYTECODE="1",
        SOURCE_DATE_EPOCH=str(time_s),
    )
    folder = work / "out" / "folder"
    shutil.copytree(shared, folder / "share")
    _place_licenses(modules, folder / "licenses")
    archive = stem.with_name(f"{stem.name}.tar.gz")
    _archive(folder, archive, name=stem.name, time_s=time_s)
    # Not with the name of the folder: both may be unpacked in the same place.
    shutil.copy2(work / "out" / "file", stem.with_name(f"{stem.name}.bin"))


def _place_licenses(modules: Path, folder: Path) -> None:
    """Add what PyInstaller leaves out: the licenses of the modules and of Python."""
    for file in bundle.licenses(modules):
        target = folder / file.relative_to(modules).parts[0].removesuffix(".dist-info")
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    python = Path(sysconfig.get_path("stdlib"), "LICENSE.txt")
    if python.exists():
        shutil.copy(python, folder / "Python.txt")


def _archive(folder: Path, path: Path, *, name: str, time_s: int) -> None:
    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = time_s
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    with path.open("wb") as output, gzip.GzipFile("", "wb", 6, output, mtime=time_s) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            archive.add(folder, name, filter=plain)  # tarfile sorts what is in a folder
