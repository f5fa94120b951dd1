"""Image archives made by hand, right and wrong ones."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def path_of(data: bytes) -> str:
    return f"blobs/{digest_of(data).replace(':', '/')}"


def written(document: Any) -> bytes:
    return json.dumps(document).encode()


def described(data: bytes, kind: str = "manifest.v1+json", **more: Any) -> dict[str, Any]:
    media_type = f"application/vnd.oci.image.{kind}"
    return {"mediaType": media_type, "digest": digest_of(data), "size": len(data), **more}


def tar(files: Mapping[str, bytes | tarfile.TarInfo]) -> bytes:
    """Return an archive of files, in order; a ``TarInfo`` is written as it is."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
            else:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


LAYER = tar({"hello": b"hello\n"})
CONFIG = written(
    {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/hello"]},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(LAYER)]},
    }
)
MANIFEST = written(
    {
        "schemaVersion": 2,
        "config": described(CONFIG, "config.v1+json"),
        "layers": [described(LAYER, "layer.v1.tar")],
    }
)


NAME = "example.org/app:1"


def index(*entries: tuple[bytes, str]) -> bytes:
    """Return an ``index.json`` of manifests and their names; an empty one is left out."""
    return written(
        {
            "schemaVersion": 2,
            "manifests": [
                described(data, annotations={"io.containerd.image.name": name} if name else {})
                for data, name in entries
            ],
        }
    )


def layout(
    changes: Mapping[str, Any] | None = None, *, name: str = NAME, **more: Any
) -> dict[str, Any]:
    """Return the files of a layout of one image; ``more`` replaces them by short names."""
    files = {"index": index((MANIFEST, name)), "manifest": MANIFEST, "config": CONFIG}
    contents = {**files, "layer": LAYER, **(changes or {}), **more}
    names = {
        "index": "index.json",
        "manifest": path_of(MANIFEST),
        "config": path_of(CONFIG),
        "layer": path_of(LAYER),
    }
    return {names.get(key, key): content for key, content in contents.items()}
