"""The program that a host without it is sent: which one, and its digest.

A standalone program sends itself. Otherwise, and for another machine, it is a file of a release:
the single-file program, or the archive of the folder.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Final

from pycrictl import __version__
from pycrictl.base.errors import ConfigError, NotFound
from pycrictl.base.units import quote

NAME: Final = "pycrictl"
RELEASES: Final = "https://github.com/pycrictl/pycrictl/releases"
_FILE: Final = re.compile(r"-linux-(\w+?)\.(?:bin|tar\.xz)$")


@dataclass
class Program:
    """A program that can be sent.

    Attributes:
        source: the single-file program, the archive of a folder, or that folder.
        machine: what it runs on, as ``uname -m`` prints it; empty for any.
    """

    source: Path
    machine: str

    @property
    def is_single(self) -> bool:
        return self.source.is_file() and not self.source.name.endswith(".tar.xz")

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of what ``sha256sum`` prints for its files in the order of their names.

        It is the same for a folder and its archive, and any host can compute it of its copy.
        """
        sums = {f"./{name}": hashlib.sha256(content).hexdigest() for name, content in self._files()}
        lines = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
        return hashlib.sha256(lines.encode()).hexdigest()

    @property
    def name(self) -> str:
        """The name of its folder in a host's cache."""
        return f"{__version__}-{self.machine or 'any'}-{self.digest[:32]}"

    @cached_property
    def packed(self) -> Path:
        """What is sent: the single file, or a tar archive by gzip, made on first use."""
        if self.is_single:
            return self.source
        import tarfile

        self._scratch = tempfile.TemporaryDirectory(prefix="pycrictl-")
        path = Path(self._scratch.name, "program.tar.gz")
        with tarfile.open(path, "w:gz", compresslevel=1) as tar:
            for name, content in self._files():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), 0o700 if name == NAME else 0o600
                tar.addfile(entry, BytesIO(content))
        return path

    def _files(self) -> Iterator[tuple[str, bytes]]:
        import tarfile

        try:
            if self.is_single:
                yield NAME, self.source.read_bytes()
            elif self.source.is_dir():
                for file in (self.source / NAME, *(self.source / "lib").rglob("*")):
                    if file.is_file():
                        yield str(file.relative_to(self.source)), file.read_bytes()
            else:
                with tarfile.open(self.source, "r:xz") as tar:
                    for entry in tar:
                        name = entry.name.partition("/")[2]
                        if re.match(rf"{NAME}$|lib/", name) and (content := tar.extractfile(entry)):
                            yield name, content.read()
        except (OSError, tarfile.TarError, EOFError) as exc:
            text = f"cannot read {quote(str(self.source), 4096)}: {str(exc).lower()}"
            raise ConfigError(text) from None


class Programs:
    """The programs that this machine can send, the named file first."""

    def __init__(self, named: str, environ: Mapping[str, str]) -> None:
        home = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "~") / ".cache"
        self._folder = Path(home).expanduser() / "pycrictl/programs"
        self.known = [_of_file(Path(named))] if named else []
        if named and not os.path.isfile(named):
            raise NotFound(f"there is no file {quote(named, 4096)}")
        if not named and getattr(sys, "frozen", False):
            own = Path(sys.executable)
            is_folder = (own.parent / "lib").is_dir()
            self.known.append(Program(own.parent if is_folder else own, platform.machine()))
        if not named:
            files = sorted(self._folder.glob(f"pycrictl-{__version__}-linux-*"))
            self.known += [_of_file(file) for file in files if _FILE.search(file.name)]

    def for_machine(self, machine: str) -> Program | None:
        return next((one for one in self.known if one.machine in ("", machine)), None)

    def needed(self, machine: str) -> str:
        """Return the hint for a machine for which there is no program."""
        file = f"pycrictl-{__version__}-linux-{machine}.bin"
        return f"put {file} of {RELEASES} into {self._folder}, or name it with --program"


def _of_file(path: Path) -> Program:
    """Return the program in a release's file; the machine is in the file's name, if at all."""
    match = _FILE.search(path.name)
    return Program(path, match[1] if match else "")
