"""Turn proto/ into the committed Python modules and type stubs of ``pycrictl/_proto``.

    python proto/generate.py [--out DIR]

The result is the same on every machine, because only the version of grpcio-tools that
pyproject.toml pins in its ``dev`` group is accepted. There are no ``_pb2_grpc.py``: calls are made
by path.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "proto"
PACKAGE = Path("pycrictl", "_proto")
TOOL = "grpcio-tools"


def pinned_version() -> str:
    """The one version of the compiler's package that may be used."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        requirements = tomllib.load(file)["dependency-groups"]["dev"]
    pins = [line.removeprefix(f"{TOOL}==") for line in requirements if line.startswith(f"{TOOL}==")]
    if len(pins) != 1:
        raise SystemExit(f"generate.py: pyproject.toml does not pin {TOOL} once in its dev group")
    return str(pins[0])


def require_pinned_tool() -> None:
    """End the program unless the pinned compiler is the one installed."""
    wanted = pinned_version()
    try:
        found = version(TOOL)
    except PackageNotFoundError:
        found = "none"
    if found != wanted:
        raise SystemExit(f"generate.py: needs {TOOL} {wanted}, found {found}")


def compile_protos(out: Path) -> list[Path]:
    """Write the modules and stubs below ``out``; return their paths relative to it."""
    sources = sorted(path.relative_to(SOURCES) for path in SOURCES.rglob("*.proto"))
    # Mapped under the package's path, because protoc derives the imports of what it writes from
    # the names of its sources.
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PACKAGE}={SOURCES}"]
    command += [f"--python_out={out}", f"--pyi_out={out}"]
    if subprocess.run([*command, *(str(PACKAGE / s) for s in sources)], check=False).returncode:
        raise SystemExit("generate.py: protoc failed")
    return sorted(path.relative_to(out) for path in out.rglob("*_pb2.py*"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate pycrictl/_proto from proto/.")
    parser.add_argument("--out", type=Path, default=ROOT, help="folder that gets pycrictl/_proto")
    out: Path = parser.parse_args().out
    require_pinned_tool()
    with tempfile.TemporaryDirectory() as folder:
        made = compile_protos(Path(folder))
        for path in made:
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(folder, path), out / path)
        # What a source left behind that is no longer there.
        for path in (out / PACKAGE).rglob("*_pb2.py*"):
            if path.relative_to(out) not in made:
                path.unlink()


if __name__ == "__main__":
    main()
