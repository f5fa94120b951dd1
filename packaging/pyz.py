"""Build `pycrictl.pyz`, a zipapp with the dependencies for every supported Python.

pex and shiv do much the same. But neither refuses a cache that other users can write to, shiv
supports a single Python, and pex starts the interpreter twice, which is too slow for scripts.
`pyz/unpack.py` unpacks it.
"""

from __future__ import annotations

import hashlib
import platform
import zipfile
from pathlib import Path
from typing import Final

import bundle

_SOURCES: Final = Path(__file__).with_name("pyz")
_SHEBANG: Final = b"#!/usr/bin/env python3\n"
_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""The earliest that the format allows: modules are recompiled in any case."""


def build(modules: Path, path: Path) -> None:
    """Write the zipapp of a folder of modules made by `bundle`."""
    contents = {
        f"lib/{file.relative_to(modules)}": file.read_bytes() for file in bundle.files(modules)
    }
    key = hashlib.sha256()
    for name, content in contents.items():
        key.update(f"{name}\0{len(content)}\0".encode() + content)
    suffixes = bundle.suffixes(platform.machine())
    facts = f"NAME = {path.name!r}\nKEY = 'pyz-{key.hexdigest()[:32]}'\nSUFFIXES = {suffixes!r}\n"
    facts += "PACKED = ''\n"
    sources = {file.name: file.read_bytes() for file in sorted(_SOURCES.glob("*.py"))}
    with path.open("wb") as output:
        output.write(_SHEBANG)
        with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in {**sources, "facts.py": facts.encode(), **contents}.items():
                entry = zipfile.ZipInfo(name, _TIME)
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    path.chmod(0o755)
