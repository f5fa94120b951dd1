"""Archives on CRI-O, by skopeo: it reads and writes the storage that CRI-O uses.

CRI-O has no API for it, and its storage is that of a library in Go. Without skopeo, the error names
the command that would do the same.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pycrictl.base.errors import PycrictlError, Unimplemented
from pycrictl.base.replacing import replacing
from pycrictl.pulls.archives import documents
from pycrictl.pulls.archives.members import opened
from pycrictl.pulls.archives.records import Image
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.lists import fetch

_TRANSPORTS: Final = {"oci": "oci-archive", "docker": "docker-archive"}


class Skopeo:
    """Images in the storage of the CRI-O behind a client."""

    def __init__(self, client: CriClient) -> None:
        folder = fetch.image_folder(client)
        self._storage = "containers-storage:"
        if folder is not None and folder.name.endswith("-images"):
            driver = folder.name.removesuffix("-images")
            self._storage += f"[{driver}@{folder.parent}]"

    def save(self, images: Sequence[Image], path: str, form: str) -> None:
        """Write one image to a new file; ``form`` is ``oci`` or ``docker``."""
        if len(images) != 1 or path == "-":
            raise Unimplemented(
                "on CRI-O, only one image at a time can be saved, and only to a file"
            )
        (image,) = images
        name = image.names[0] if image.names else ""
        with replacing(path) as file:  # skopeo takes an empty file for none
            self._copy(self._of(image), f"{_TRANSPORTS[form]}:{file.name}:{name}")

    def load(self, path: str, name: str) -> str:
        """Load the image of an archive and return its name; ``name`` is for one without."""
        if path == "-":
            raise Unimplemented("on CRI-O, only files can be loaded", hint="name one with -i")
        with opened(path) as members:
            lists = {
                each.name: b"".join(each.pieces())
                for each in members
                if each.name in documents.LISTS
            }
        images = documents.listed(lists)
        names = [each for image in images for each in image.names]
        if len(images) != 1 or len(names) > 1 or bool(names) is bool(name):
            raise Unimplemented(
                "on CRI-O, only an archive of one image with one name can be loaded",
                hint="--name names an image without a name",
            )
        form = "oci" if "index.json" in lists else "docker"
        transport = "oci" if os.path.isdir(path) else _TRANSPORTS[form]
        target = documents.checked_name(names[0] if names else name)
        self._copy(f"{transport}:{Path(path).absolute()}", self._storage + target)
        return target

    def tag(self, image: Image, name: str) -> None:
        self._copy(self._of(image), self._storage + name)

    def _of(self, image: Image) -> str:
        return f"{self._storage}@{image.known[-1]}"

    def _copy(self, source: str, target: str) -> None:
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
