"""Lay out the files that all distributions' packages share, where systems look for them."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Final

import bundle

MAINTAINER: Final = "The pycrictl authors <pycrictl@users.noreply.github.com>"
HOMEPAGE: Final = "https://github.com/pycrictl/pycrictl"

PLUGINS: Final = (
    "kubectl-image_pull_progress",
    "kubectl-container_cp",
    "kubectl-why",
)
"""Names by which kubectl finds the program."""

_SOURCES: Final = Path(__file__).parent
_UNITS: Final = sorted(_SOURCES.glob("pycrictl-proxy.*"))
_EXAMPLES: Final = (
    "prometheus/pycrictl.rules.yaml",
    "prometheus/pycrictl-agent.rules.yaml",
    "grafana/pycrictl-proxy.json", "grafana/pycrictl-agent.json",
)  # fmt: skip


def place(folder: Path, root: Path, *, elsewhere: dict[str, str]) -> Path:
    """Fill `root` with the files that the package installs; return its documentation folder.

    Args:
        folder: made by `standalone`.
        root: replaced.
        elsewhere: folders below `share` that have another name on the system.
    """
    shutil.rmtree(root, ignore_errors=True)
    program = root / "usr/lib/pycrictl"
    shutil.copytree(folder / "lib", program / "lib")
    shutil.copy(folder / "pycrictl", program)
    (root / "usr/bin").mkdir()
    for name in ("pycrictl", *PLUGINS):
        (root / "usr/bin" / name).symlink_to("../lib/pycrictl/pycrictl")
    write(root / "etc/pycrictl.toml", (_SOURCES / "pycrictl.toml").read_bytes())
    for unit in _UNITS:
        write(root / "usr/lib/systemd/system" / unit.name, _installed(unit.read_text()))
    for file in bundle.files(folder / "share"):
        name = str(file.relative_to(folder / "share"))
        for here, there in elsewhere.items():
            name = name.replace(here, there)
        write(root / "usr/share" / name, file.read_bytes())
    documents = root / "usr/share/doc/pycrictl"
    shutil.copytree(folder / "licenses", documents / "licenses")
    for example in _EXAMPLES:
        write(documents / "examples" / Path(example).name, (_SOURCES / example).read_bytes())
    for path in (root, *root.rglob("*/")):
        path.chmod(0o755)
    return documents


def packed(content: bytes) -> bytes:
    """Return the content, compressed reproducibly."""
    return gzip.compress(content, 9, mtime=0)


def write(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)


def _installed(unit: str) -> str:
    """Return the unit with the installed program's path, without steps for manual setup."""
    head, rest = unit.split("\n[Unit]", 1)
    kept = [line for line in head.splitlines() if line != "#" and not line.startswith("#   ")]
    return "\n".join([*kept, "\n[Unit]"]) + rest.replace("/usr/local/bin/", "/usr/bin/")
