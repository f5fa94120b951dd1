"""OCI image layouts made on the spot: deterministic content, every digest and size known."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import random
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

MEDIA: Final = "application/vnd.oci.image"
INDEX_TYPE: Final = f"{MEDIA}.index.v1+json"
MANIFEST_TYPE: Final = f"{MEDIA}.manifest.v1+json"
CONFIG_TYPE: Final = f"{MEDIA}.config.v1+json"
LAYER_TYPE: Final = f"{MEDIA}.layer.v1.tar+gzip"
_CREATED: Final = "2026-01-02T03:04:05Z"
ARCHITECTURE: Final = {"x86_64": "amd64", "aarch64": "arm64"}.get(
    platform.machine(), platform.machine()
)


@dataclass(frozen=True)
class File:
    """One member of a layer: a regular file, a directory, or a symlink to `link_to`."""

    path: str
    size_bytes: int = 0
    open: Callable[[], IO[bytes]] = io.BytesIO
    mode: int = 0o644
    link_to: str | None = None
    is_folder: bool = False


def text_file(path: str, text: str, mode: int = 0o644) -> File:
    data = text.encode()
    return File(path, len(data), lambda: io.BytesIO(data), mode)


def random_file(path: str, size_bytes: int, seed: int) -> File:
    """A file that does not compress; the same bytes for the same seed."""
    return File(path, size_bytes, lambda: io.BytesIO(random.Random(seed).randbytes(size_bytes)))


def zero_file(path: str, size_bytes: int) -> File:
    """A file of zeros: gzip shrinks it to about a thousandth, but the unpacked snapshot is huge."""
    return File(path, size_bytes, lambda: Path("/dev/zero").open("rb"))


def busybox(path: str) -> File:
    """The static busybox, whose file name selects the applet."""
    binary = Path("/bin/busybox")
    return File(path, binary.stat().st_size, lambda: binary.open("rb"), mode=0o755)


def busybox_files() -> list[File]:
    """The root file system of the base layer: a static busybox with all its applets."""
    applets = subprocess.run(["/bin/busybox", "--list"], check=True, capture_output=True, text=True)
    files = [File(name, mode=0o755, is_folder=True) for name in ("bin", "etc", "root", "proc")]
    files.append(File("tmp", mode=0o1777, is_folder=True))
    passwd = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
    files.append(text_file("etc/passwd", passwd))
    files.append(text_file("etc/group", "root:x:0:\nnogroup:x:65534:\n"))
    files.append(busybox("bin/busybox"))
    names = sorted(set(applets.stdout.split()) - {"busybox"})
    return files + [File(f"bin/{name}", mode=0o777, link_to="busybox") for name in names]


@dataclass(frozen=True)
class Layer:
    """A gzip layer (one gzip member) in the layout."""

    digest: str
    size_bytes: int  # as a registry sends it
    diff_id: str
    unpacked_bytes: int  # the length of the tar inside

    @property
    def descriptor(self) -> dict[str, Any]:
        return {"mediaType": LAYER_TYPE, "digest": self.digest, "size": self.size_bytes}


@dataclass(frozen=True)
class Image:
    """An image in the layout."""

    name: str
    digest: str  # what a pull of the tag resolves to: the index's, if there is one
    manifest_digest: str
    config_digest: str
    layers: tuple[Layer, ...]

    @property
    def layers_bytes(self) -> int:
        return sum(layer.size_bytes for layer in self.layers)


class Layout:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._blobs = folder / "blobs/sha256"
        self._blobs.mkdir(parents=True)

    def blob(self, digest: str) -> Path:
        return self._blobs / digest.removeprefix("sha256:")

    def layer(self, files: Iterable[File], *, level: int = 1) -> Layer:
        """Write a layer. gzip `level` 0 only stores: much faster, and right for random content."""
        temporary = self._blobs / "unfinished"
        with temporary.open("wb") as out:
            packed = _Hashing(out)
            with gzip.GzipFile("", "wb", level, packed, mtime=0) as compressor:
                unpacked = _Hashing(compressor)
                with tarfile.open(fileobj=unpacked, mode="w|") as tar:
                    for file in files:
                        _add(tar, file)
        temporary.rename(self._blobs / packed.hexdigest)
        return Layer(
            f"sha256:{packed.hexdigest}",
            packed.size_bytes,
            f"sha256:{unpacked.hexdigest}",
            unpacked.size_bytes,
        )

    def random_layers(self, sizes_bytes: Sequence[int], *, seed: int) -> list[Layer]:
        return [
            self.layer([random_file(f"data/{seed}-{number}", size, seed + number)], level=0)
            for number, size in enumerate(sizes_bytes)
        ]

    def image(
        self,
        name: str,
        layers: Sequence[Layer],
        *,
        config: Mapping[str, Any] | None = None,
        architecture: str = ARCHITECTURE,
    ) -> Image:
        """Add `repository:tag`. `config` holds Cmd, Entrypoint, Env, User, Labels and so on."""
        document = {
            "created": _CREATED,
            "architecture": architecture,
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"], **(config or {})},
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": [{"created": _CREATED, "created_by": "test"} for _ in layers],
        }
        of_config = self._add_blob(CONFIG_TYPE, document)
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": of_config,
            "layers": [layer.descriptor for layer in layers],
        }
        digest = self._add_blob(MANIFEST_TYPE, manifest)["digest"]
        return Image(name, digest, digest, of_config["digest"], tuple(layers))

    def multi_platform_image(
        self, name: str, layers: Sequence[Layer], *, config: Mapping[str, Any] | None = None
    ) -> Image:
        """Add an image index: `layers` for this machine's platform, and for a foreign platform
        another layer, which no pull on this machine may fetch.
        """
        foreign = self.image(
            f"{name}-s390x", self.random_layers([50_000], seed=390), architecture="s390x"
        )
        native = self.image(name, layers, config=config)
        manifests = [
            {
                "mediaType": MANIFEST_TYPE,
                "digest": image.digest,
                "size": self.blob(image.digest).stat().st_size,
                "platform": {"os": "linux", "architecture": architecture},
            }
            for image, architecture in ((foreign, "s390x"), (native, ARCHITECTURE))
        ]
        index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests}
        return replace(native, digest=self._add_blob(INDEX_TYPE, index)["digest"])

    def _add_blob(self, media_type: str, document: Any) -> dict[str, Any]:
        data = json.dumps(document, sort_keys=True).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blob(digest).write_bytes(data)
        return {"mediaType": media_type, "digest": digest, "size": len(data)}


class _Hashing(io.RawIOBase):
    def __init__(self, out: Any) -> None:
        self._out = out
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: Any) -> int:
        self._hash.update(data)
        self.size_bytes += len(data)
        self._out.write(data)
        return len(data)

    @property
    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def _add(tar: tarfile.TarFile, file: File) -> None:
    member = tarfile.TarInfo(file.path)
    member.mode = file.mode
    if file.is_folder:
        member.type = tarfile.DIRTYPE
        tar.addfile(member)
    elif file.link_to is not None:
        member.type, member.linkname = tarfile.SYMTYPE, file.link_to
        tar.addfile(member)
    else:
        member.size = file.size_bytes
        with file.open() as content:
            tar.addfile(member, content)
