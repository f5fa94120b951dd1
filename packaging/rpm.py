"""Build the RPM package from the standalone program."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import interpreter
import process
import tree
from standalone import Program

_SPEC: Final = Path(__file__).parent / "rpm" / "pycrictl.spec"
_ROOT: Final = Path(__file__).resolve().parent.parent


def build(program: Program, output: Path, work: Path) -> None:
    """Write the package.

    Raises:
        subprocess.CalledProcessError: rpmbuild failed; its output has the reason.
    """
    root = work / "tree"
    documents = tree.place(program.folder, root, elsewhere={})
    shutil.copy(_ROOT / "CHANGELOG.md", documents)
    definitions = {
        "_topdir": work / "top",
        "_rpmdir": work / "out",
        "tree": root,
        "upstream": program.version,
        "homepage": tree.HOMEPAGE,
        "maintainer": tree.MAINTAINER,
        "glibc": ".".join(map(str, interpreter.GLIBC)),
    }
    words = ["rpmbuild", "-bb", "--target", f"{program.machine}-linux", str(_SPEC)]
    for name, value in definitions.items():
        words += ["--define", f"{name} {value}"]
    process.run(*words, SOURCE_DATE_EPOCH=str(program.time_s))
    (made,) = (work / "out").rglob("*.rpm")
    shutil.move(made, output / made.name)
