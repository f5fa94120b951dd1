"""Archives on CRI-O, by skopeo: it reads and writes the storage that CRI-O uses.

CRI-O has no API for it, and its storage is that of a library in Go. Without skopeo, the error names
the command that would do the same.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from typing import Final

from pycrictl.errors import PycrictlError, Unimplemented

_STORAGE: Final = "containers-storage:"
_TRANSPORTS: Final = {"oci": "oci-archive", "docker": "docker-archive"}


def save(image: str, name: str, path: str, form: str) -> None:
    _copy(_STORAGE + image, f"{_TRANSPORTS[form]}:{path}:{name}")


def load(transport: str, path: str, name: str) -> None:
    """Load an image; ``transport`` is ``oci`` for a folder, otherwise as for ``save``."""
    _copy(f"{transport}:{path}", _STORAGE + name)


def tag(image: str, name: str) -> None:
    _copy(_STORAGE + image, _STORAGE + name)


def _copy(source: str, target: str) -> None:
    words = ["skopeo", "copy", "--quiet", source, target]
    if shutil.which("skopeo") is None:
        raise Unimplemented(
            "CRI-O needs skopeo for this, which is not installed here",
            hint=f"with it: {shlex.join(words)}",
        )
    done = subprocess.run(words, check=False, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise PycrictlError(f"skopeo failed: {lines[-1] if lines else done.returncode}")
