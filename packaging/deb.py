"""Build the Debian package: the folder of modules, run by Debian's own Python.

The interpreter gets security updates from the distribution, so unlike the standalone program, the
package has none. With modules for several Pythons, one file serves several releases.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
from email.utils import formatdate
from pathlib import Path
from typing import Final

import bundle
import process

_SOURCES: Final = Path(__file__).with_name("debian")
_UNITS: Final = sorted(Path(__file__).parent.glob("pycrictl-proxy.*"))
_ROOT: Final = Path(__file__).resolve().parent.parent
_REVISION: Final = "1"
_SCRIPTS: Final = ("postinst", "prerm", "postrm")
_ELSEWHERE: Final = {"zsh/site-functions": "zsh/vendor-completions"}
"""Folders of completions that have another name on Debian."""


def file_name(version: str, architecture: str) -> str:
    """Return the name of the package file."""
    return f"pycrictl_{version}-{_REVISION}_{architecture}.deb"


def architecture() -> str:
    """Return Debian's name for the architecture of this machine."""
    command = ["dpkg", "--print-architecture"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def build(
    modules: Path, path: Path, *, work: Path, shared: Path, version: str, time_s: int
) -> None:
    """Write the package.

    Args:
        modules: made by `bundle`.
        path: of the package.
        work: a folder for what goes into it; replaced.
        shared: man pages and completions by their place below `share`.
        version: pycrictl's.
        time_s: the time of the entry in the changelog and of all files.

    Raises:
        subprocess.CalledProcessError: a tool of dpkg failed, and said why.
    """
    shutil.rmtree(work, ignore_errors=True)
    full_version = f"{version}-{_REVISION}"
    name = os.environ.get("DEBFULLNAME", "pycrictl")
    maintainer = f"{name} <{os.environ.get('DEBEMAIL', 'root@localhost')}>"
    _place_program(modules, work)
    _place_shared(shared, work / "usr/share")
    _place_documents(
        modules,
        work / "usr/share/doc/pycrictl",
        changelog=_text("changelog").format(
            version=full_version,
            upstream=version,
            maintainer=maintainer,
            date=formatdate(time_s),
        ),
    )
    installed = sorted(file for file in work.rglob("*") if file.is_file())
    major, minor = bundle.PYTHONS[-1]
    control = _text("control").format(
        version=full_version,
        architecture=architecture(),
        maintainer=maintainer,
        size_kib=sum(-(-file.stat().st_size // 1024) for file in installed),
        oldest=".".join(map(str, bundle.PYTHONS[0])),
        unserved=f"{major}.{minor + 1}",
        glibc=".".join(map(str, bundle.GLIBC)),
    )
    sums = "".join(
        f"{hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()}"
        f"  {file.relative_to(work)}\n"
        for file in installed
    )
    _write(work / "DEBIAN/control", control)
    _write(work / "DEBIAN/md5sums", sums)
    _write(work / "DEBIAN/conffiles", "/etc/pycrictl.toml\n")
    for script in _SCRIPTS:
        _write(work / "DEBIAN" / script, _text(script), mode=0o755)
    for folder in (work, *work.rglob("*/")):
        folder.chmod(0o755)
    # The best compression takes six times as long and makes it a tenth smaller.
    dpkg_deb = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z1", "--build"]
    process.run(*dpkg_deb, str(work), str(path), SOURCE_DATE_EPOCH=str(time_s))


def _place_program(modules: Path, root: Path) -> None:
    for file in bundle.files(modules):
        _write(root / "usr/lib/pycrictl" / file.relative_to(modules), file.read_bytes())
    _write(root / "usr/bin/pycrictl", _text("pycrictl"), mode=0o755)
    _write(root / "etc/pycrictl.toml", _text("pycrictl.toml"))
    for unit in _UNITS:
        _write(root / "usr/lib/systemd/system" / unit.name, _for_debian(unit.read_text()))


def _for_debian(unit: str) -> str:
    """Return the unit with the program's path, without how to install the unit by hand."""
    head, rest = unit.split("\n[Unit]", 1)
    kept = [line for line in head.splitlines() if line != "#" and not line.startswith("#   ")]
    return "\n".join([*kept, "\n[Unit]"]) + rest.replace("/usr/local/bin/", "/usr/bin/")


def _place_shared(shared: Path, target: Path) -> None:
    for file in bundle.files(shared):
        name = str(file.relative_to(shared))
        content = file.read_bytes()
        if name.startswith("man/"):
            name, content = f"{name}.gz", _packed(content)
        for folder, debian_folder in _ELSEWHERE.items():
            name = name.replace(folder, debian_folder)
        _write(target / name, content)


def _place_documents(modules: Path, target: Path, *, changelog: str) -> None:
    names = [file.relative_to(modules) for file in bundle.licenses(modules)]
    licenses = [f"/usr/lib/pycrictl/{name}\n" for name in names if name.parts[0][:8] != "pycrictl"]
    _write(target / "copyright", _text("copyright") + "".join(licenses))
    _write(target / "changelog.Debian.gz", _packed(changelog.encode()))
    _write(target / "changelog.gz", _packed((_ROOT / "CHANGELOG.md").read_bytes()))
    _write(target / "README.Debian", _text("README.Debian"))
    for name in ("prometheus/pycrictl.rules.yaml", "grafana/pycrictl-proxy.json"):
        example = _SOURCES.parent / name
        _write(target / "examples" / example.name, example.read_bytes())


def _text(name: str) -> str:
    return (_SOURCES / name).read_text()


def _packed(content: bytes) -> bytes:
    return gzip.compress(content, 9, mtime=0)


def _write(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
