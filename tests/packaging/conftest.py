"""What `make dist` builds, built once for all tests and all processes of pytest."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-dist" / "bin" / "python"
_BUILD_S = 900  # a cold and busy machine; about 60 otherwise


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first waits for the build, which takes Debian's tools."""
    for item in items:
        if "dist" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(_BUILD_S))
            item.add_marker(pytest.mark.node)


def build(output: Path, *names: str, root: Path = ROOT, **variables: str) -> None:
    """Runs what `make dist` runs, without its output."""
    script = str(root / "packaging" / "dist.py")
    command = [str(PYTHON), script, "--output", str(output), *names]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all that is built: $PYCRICTL_DIST, or a new one."""
    if given := os.environ.get("PYCRICTL_DIST"):
        return Path(given)
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    output = folder / "dist"
    with (folder / "dist.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (output / "SHA256SUMS").exists():
            subprocess.run(["make", "-s", ".venv-dist/.stamp"], cwd=ROOT, check=True)
            build(output)
    return output
