"""Build the Debian package from the standalone program.

One file serves every release, including those whose Python is too old. Security updates of bundled
code come with a new version of the package.
"""

from __future__ import annotations

import hashlib
from email.utils import formatdate
from pathlib import Path
from typing import Final

import bundle
import interpreter
import process
import tree
from standalone import Program

_SOURCES: Final = Path(__file__).with_name("debian")
_ROOT: Final = Path(__file__).resolve().parent.parent
_REVISION: Final = "1"
_SCRIPTS: Final = ("postinst", "prerm", "postrm")
_ELSEWHERE: Final = {"zsh/site-functions": "zsh/vendor-completions"}


def build(program: Program, output: Path, work: Path) -> None:
    """Write the package.

    Raises:
        subprocess.CalledProcessError: a dpkg tool failed; its output has the reason.
    """
    version = f"{program.version}-{_REVISION}"
    documents = tree.place(program.folder, work, elsewhere=_ELSEWHERE)
    changelog = _text("changelog").format(
        version=version,
        upstream=program.version,
        maintainer=tree.MAINTAINER,
        date=formatdate(program.time_s),
    )
    tree.write(documents / "changelog.Debian.gz", tree.packed(changelog.encode()))
    tree.write(documents / "changelog.gz", tree.packed((_ROOT / "CHANGELOG.md").read_bytes()))
    tree.write(documents / "README.Debian", _text("README.Debian"))
    tree.write(documents / "copyright", _text("copyright"))
    tree.write(work / "usr/share/lintian/overrides/pycrictl", _text("lintian-overrides"))
    installed = [file for file in bundle.files(work) if not file.is_symlink()]
    control = _text("control").format(
        version=version,
        architecture=program.architecture,
        maintainer=tree.MAINTAINER,
        homepage=tree.HOMEPAGE,
        size_kib=sum(-(-file.stat().st_size // 1024) for file in installed),
        glibc=".".join(map(str, interpreter.GLIBC)),
    )
    sums = "".join(
        f"{hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()}"
        f"  {file.relative_to(work)}\n"
        for file in installed
    )
    tree.write(work / "DEBIAN/control", control)
    tree.write(work / "DEBIAN/md5sums", sums)
    tree.write(work / "DEBIAN/conffiles", "/etc/pycrictl.toml\n")
    for script in _SCRIPTS:
        tree.write(work / "DEBIAN" / script, _text(script), mode=0o755)
    for folder in (work, *work.rglob("*/")):
        folder.chmod(0o755)
    dpkg_deb = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build"]
    path = output / f"pycrictl_{version}_{program.architecture}.deb"
    process.run(*dpkg_deb, str(work), str(path), SOURCE_DATE_EPOCH=str(program.time_s))


def _text(name: str) -> str:
    return (_SOURCES / name).read_text()
