"""Run the builds of `make dist`, once for all processes of pytest."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.once import locked

ROOT: Final = Path(__file__).parents[2]
PYTHON: Final = ROOT / ".venv-dist" / "bin" / "python"
"""The interpreter of `make dist`; tests of its output may use it."""

_DONE: Final = "SHA256SUMS"
"""The file that a build writes last into its folder."""

_FOR_THIS_PYTHON: Final = """
import sys
sys.path.insert(0, "packaging")
import bundle
bundle.PYTHONS = (sys.version_info[:2],)
bundle.PROGRAM = bundle.Pins(bundle.PROGRAM.file, bundle.PYTHONS)
bundle.WHEELS = bundle.WHEELS.with_name("wheels-for-tests")
import dist
sys.exit(dist.main())
"""
"""The zipapp is for the tests' Python alone: modules for all would take longest to build."""


def dist(folder: Path) -> Path:
    """Build the packages that have no interpreter of their own; return their folder."""
    output = folder / "dist"
    with locked(output):
        if not (output / _DONE).exists():
            build("-c", _FOR_THIS_PYTHON, "--output", output, "wheel", "pyz")
    return output


def unpack(archive: Path, folder: Path) -> None:
    """Unpack with tar(1), since before Python 3.11.4 the tarfile module has no filters."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-C", folder, "-xf", archive], check=True)


def built(released: Path, pattern: str) -> Path:
    """Return a file of a release; skip the test if it is missing, as it may be for aarch64."""
    packages = list(released.glob(pattern))
    if not packages:
        pytest.skip("make dist image ARCH=arm64")
    return packages[0]


class Layout:
    """An OCI layout, unpacked in a folder, with access by tag."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.folder = folder
        unpack(archive, folder)

    def blob(self, descriptor: dict[str, Any]) -> Path:
        digest: str = descriptor["digest"]
        return self.folder / "blobs" / digest.replace(":", "/")

    def read(self, descriptor: dict[str, Any]) -> Any:
        content = self.blob(descriptor).read_bytes()
        assert f"sha256:{hashlib.sha256(content).hexdigest()}" == descriptor["digest"]
        return json.loads(content)

    def tagged(self) -> dict[str, dict[str, Any]]:
        index = json.loads((self.folder / "index.json").read_text())
        name = "org.opencontainers.image.ref.name"
        return {manifest["annotations"][name]: manifest for manifest in index["manifests"]}


def build(*words: str | Path, python: str | Path = sys.executable, **variables: str) -> None:
    done = subprocess.run(
        [python, *words],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


GLIBC = (2, 31)


def needs_old_c_library(file: Path) -> bool:
    """Return whether a file needs a C library, and check that it needs no newer one."""
    command = ["readelf", "--wide", "--version-info", str(file)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = {tuple(map(int, match.split("."))) for match in re.findall(r"GLIBC_([\d.]+)", shown)}
    assert not needed or max(needed) <= GLIBC, file
    return bool(needed)
