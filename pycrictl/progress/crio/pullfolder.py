"""One pull of CRI-O, as its directory and the node's storage show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pycrictl.containerd.store import unpacked_estimate
from pycrictl.progress.crio import bigfiles
from pycrictl.progress.crio.downloaders import Downloader, unpacker_read_bytes
from pycrictl.progress.crio.filelayers import FileLayers
from pycrictl.progress.crio.storage import Storage, StoredImage
from pycrictl.progress.reference import is_same_image

if TYPE_CHECKING:
    from pycrictl.containerd.store import Manifest
    from pycrictl.progress.crio.bigfiles import BlobFile
    from pycrictl.progress.crio.claims import Claim
    from pycrictl.progress.registry.manifest import Inquiry

_DOCUMENT_BYTES: Final = 4 * 1024 * 1024


@dataclass(slots=True, eq=False)
class PullFolder:
    """One directory with the files of a pull.

    Attributes:
        folder: as it can be reached from here, which names the pull.
        started_s: when it was first seen, in wall time.
        owner: the process.
        image: its name, for good; empty while it is unknown.
        claim: what is known of it otherwise.
        layers: None until the registry has been asked.
        documents: numbers of small files, and whether they are documents.
    """

    folder: str
    owner: Downloader
    storage: Storage
    started_s: float
    image: str = ""
    inquiry: Inquiry | None = None
    layers: FileLayers | None = None
    manifest: Manifest | None = None
    files: Sequence[BlobFile] = ()
    documents: dict[int, bool] = field(default_factory=dict)
    trailers: dict[int, int] = field(default_factory=dict)
    open_numbers: set[int] = field(default_factory=set)
    claim: Claim | None = None
    images_before: list[StoredImage] = field(default_factory=list)
    pods: str = ""
    error: str = ""

    def new_layers(self) -> FileLayers:
        manifest = self.manifest.layers if self.manifest is not None else None
        return FileLayers(manifest)

    def would_fit(self, other: PullFolder) -> bool:
        """Return whether its files may be layers of another pull's image."""
        if other.manifest is None:
            return False
        layers = FileLayers(other.manifest.layers)
        layers.look(self.files, self.storage.layers(), 0.0)
        return bool(self.files) and not layers.is_doubtful

    def without_documents(self, files: Sequence[BlobFile]) -> list[BlobFile]:
        """Leave out the image's config, which becomes a file like the layers, as the last one."""
        found = []
        for file in files:
            is_known = file.number in self.documents
            if not is_known and file.size_bytes and file.size_bytes <= _DOCUMENT_BYTES:
                is_document = bigfiles.is_document(self.folder, file.number)
                self.documents[file.number] = is_document
            if not self.documents.get(file.number):
                found.append(file)
        return found

    def watch_unpacking(self) -> None:
        assert self.layers is not None
        layer = self.layers.applied_next
        if layer is None or not layer.is_complete:
            return
        if layer.number not in self.trailers:
            trailer = bigfiles.gzip_trailer(self.folder, layer.number)
            self.trailers[layer.number] = unpacked_estimate(trailer, layer.progress) or 0
        layer.extracted_total = self.trailers[layer.number]
        read = unpacker_read_bytes(self.owner.pid)
        if read is not None and layer.extracted_total:
            layer.extracted = max(layer.extracted, min(read, layer.extracted_total))

    def find_image(self, layers: FileLayers) -> StoredImage | None:
        layers.look((), self.storage.layers(), 0.0)
        images = self.storage.images()
        if self.manifest is not None:
            image_id = self.manifest.config_digest.partition(":")[2]
            for image in images:
                if image.id == image_id:
                    return image
        new = [image for image in images if image not in self.images_before]
        new.sort(key=lambda image: not any(is_same_image(self.image, name) for name in image.names))
        fitting = (image for image in new if layers.fit(self.storage.layers_of(image)))
        return next(fitting, None)
