"""Archives on CRI-O, by skopeo: it reads and writes the storage that CRI-O uses.

CRI-O has no API for it, and its storage is that of a library in Go. Without skopeo, the error names
the command that would do the same.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pycrictl.base.errors import PycrictlError, Unimplemented
from pycrictl.base.replacing import replacing
from pycrictl.pulls.archives.archive import LISTS, Image, checked_name, images_in, opened
from pycrictl.runtime.containerd.store import DOCUMENT_LIMIT_BYTES
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.lists import lookup


def save(client: CriClient, images: Sequence[Image], path: str, form: str) -> None:
    """Write one image to a new file; ``form`` is ``oci`` or ``docker``."""
    _require(path, len(images))
    name = next(iter(images[0].names), "")
    with replacing(path) as file:  # skopeo takes an empty file for none
        _copy(f"{_storage(client)}@{images[0].known[-1]}", f"{form}-archive:{file.name}:{name}")


def load(client: CriClient, path: str, name: str) -> str:
    """Load the image of an archive and return its name; ``name`` is for one without."""
    _require(path, 1)
    lists = {}
    with opened(path) as members:
        for member in members:
            if member.name in LISTS and member.size_bytes <= DOCUMENT_LIMIT_BYTES:
                lists[member.name] = b"".join(member.pieces)
    names = [known for image, _ in images_in(lists) for known in image] or [name]
    _require(path, len([*filter(None, names)]))
    form = "oci-archive" if "index.json" in lists else "docker-archive"
    source = f"{'oci' if os.path.isdir(path) else form}:{Path(path).absolute()}"
    _copy(source, _storage(client) + (target := checked_name(names[0])))
    return target


def tag(client: CriClient, image: Image, name: str) -> None:
    storage = _storage(client)
    _copy(f"{storage}@{image.known[-1]}", storage + name)


def _require(path: str, count: int) -> None:
    if count != 1 or path == "-":
        message = "on CRI-O, only one image with one name can be saved or loaded at a time"
        raise Unimplemented(message, hint="name a file with -o or -i, and an image with --name")


def _storage(client: CriClient) -> str:
    """Return the beginning of the names of a CRI-O's images, in skopeo's words."""
    folder = lookup.image_folder(client)
    if folder is None or not folder.name.endswith("-images"):
        return "containers-storage:"
    return f"containers-storage:[{folder.name.removesuffix('-images')}@{folder.parent}]"


def _copy(source: str, target: str) -> None:
    words = ["skopeo", "copy", "--quiet", source, target]
    try:
        done = subprocess.run(words, check=False, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    except FileNotFoundError:
        message = "CRI-O needs skopeo for this, which is not installed here"
        raise Unimplemented(message, hint=f"once it is installed: {shlex.join(words)}") from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise PycrictlError(f"skopeo failed: {lines[-1] if lines else done.returncode}")
