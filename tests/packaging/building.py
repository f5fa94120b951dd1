"""Builds what `make dist` builds, once for all processes of pytest and before a test asks.

Run as a program, it builds into a folder what the functions here then find there.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.once import locked

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-dist" / "bin" / "python"
_DONE = "SHA256SUMS"
"""What is written last into a folder of built files."""

_END_S = 100


def dist(folder: Path) -> Path:
    """The folder, made in `folder`, of what needs no interpreter of its own, which takes long."""
    output = folder / "dist"
    with locked(output):
        if not (output / _DONE).exists():
            subprocess.run(["make", "-s", ".venv-dist/.stamp"], cwd=ROOT, check=True)
            _build(output, "wheel", "pyz")
    return output


def dist_again(folder: Path) -> Path:
    """The sdist and wheel that the sdist in `dist` builds elsewhere and in another environment."""
    (wheel,) = dist(folder).glob("*.whl")
    name = "-".join(wheel.name.split("-")[:2])
    output = folder / "dist-again"
    with locked(output):
        if not (output / _DONE).exists():
            sources = folder / "sources" / name
            unpack(wheel.with_name(f"{name}.tar.gz"), sources.parent)
            time_s = int((sources / "Makefile").stat().st_mtime)
            environ = {"TZ": "Pacific/Apia", "LC_ALL": "C", "PYTHONHASHSEED": "7"}
            _build(output, "wheel", root=sources, SOURCE_DATE_EPOCH=str(time_s), **environ)
    return output


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks by the program, as before Python 3.11.4 the module cannot be told what to trust."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-C", folder, "-xf", archive], check=True)


@contextmanager
def in_background(folder: Path, wanted: set[str]) -> Iterator[None]:
    """Meanwhile calls the functions above that are wanted; whoever calls them too waits."""
    names = [function.__name__ for function in (dist, dist_again) if function.__name__ in wanted]
    # A caller who finds that nothing was built tries again, and learns why.
    words = [sys.executable, "-m", __name__, str(folder), *names]
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(
        words, cwd=ROOT, stdin=nowhere, stdout=nowhere, stderr=nowhere, process_group=0
    )
    try:
        yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        process.wait(_END_S)


def _build(output: Path, *names: str, root: Path = ROOT, **variables: str) -> None:
    script = str(root / "packaging" / "dist.py")
    command = [str(PYTHON), script, "--output", str(output), *names]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(prog="building", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+", choices=["dist", "dist_again"])
    arguments = parser.parse_args()
    os.nice(10)  # tests are running
    for name in arguments.names:
        {"dist": dist, "dist_again": dist_again}[name](arguments.folder)


if __name__ == "__main__":
    main()
