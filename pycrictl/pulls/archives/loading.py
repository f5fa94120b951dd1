"""Loading the images of an archive into containerd's content store.

Each file that may belong to an image becomes a blob, in the order of the archive and under a lease.
containerd computes a blob's digest while writing it, and refuses an unexpected one. Image
records, which make images visible, are written at the end, once all that they need is there.
Ingests and snapshots have the names that a pull gives them: a load continues what a pull or an
interrupted load has left, and ``image-pull-progress`` shows it as a pull.

An archive that is refused (``ArchiveError``) leaves nothing. An interrupted load leaves its lease
for a day, and the next load of the same archive continues from there.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from pycrictl._proto.containerd.content_pb2 import COMMIT, WRITE, WriteContentRequest
from pycrictl.base import errors
from pycrictl.base.errors import ArchiveError, PycrictlError
from pycrictl.base.foreign import text, texts
from pycrictl.base.units import format_bytes, quote
from pycrictl.pulls.archives import archive
from pycrictl.pulls.archives.archive import Member
from pycrictl.pulls.state import LayerState, Phase, PullState
from pycrictl.runtime.containerd import grpc_client, store
from pycrictl.runtime.containerd.grpc_client import ContainerdClient, as_message
from pycrictl.runtime.containerd.store import DOCUMENT_LIMIT_BYTES, Descriptor, Index, Manifest

_INTERRUPTIONS: Final = (errors.Cancelled, errors.DeadlineExceeded, errors.Unavailable)
_COMPRESSED: Final = {b"\x1f\x8b": "+gzip", b"\x28\xb5": "+zstd"}
"""Suffixes of a layer's media type, by the first bytes of the layer."""


@dataclass(eq=False)
class Load:
    """Loads the images of one archive."""

    client: ContainerdClient
    title: str  # names the load to those who watch it
    snapshotter: str  # unpacks the images; empty if that is left to containerd
    folder: Path | None  # where images are stored, to check the space there; None if unknown
    most_files: int = 20_000  # of an archive; 100 images with as many layers as can be mounted
    _lists: dict[str, bytes] = field(default_factory=dict, init=False)
    _blobs: dict[str, Descriptor] = field(default_factory=dict, init=False)
    _layers: dict[str, LayerState] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._documents = grpc_client.Documents(self.client)
        self._began_s = time.time()

    def run(self, members: Iterable[Member], *, name: str = "") -> list[str]:
        """Load all images of an archive, the one without a name as ``name``; return their names."""
        try:
            for member in members:
                self._receive(member)
            images = self._images(name)
            for image, target in images.items():
                # Parts for other platforms may be missing, since pulls leave them out.
                if not self._is_complete(target):
                    raise ArchiveError(f"{quote(image)} is not complete for {store.own_platform()}")
        except PycrictlError as exc:
            # A bare StreamError means that the archive ends too early, others that it is wrong.
            if not isinstance(exc, _INTERRUPTIONS) and type(exc) is not errors.StreamError:
                self.client.delete_lease(self._lease, sync=True)
            raise
        for image, target in images.items():
            self.client.name_image(image, target)
        for lease in self.client.leases():
            is_same_load = lease.labels[grpc_client.LOAD_LABEL] == self.title
            if is_same_load and (lease.id == self._lease or grpc_client.is_abandoned(lease.id)):
                self.client.delete_lease(lease.id)
        return list(images)

    def state(self) -> PullState:
        """Return how far the load is, from any thread."""
        layers = tuple(self._layers.values())
        return PullState(image=self.title, layers=layers, began_s=self._began_s)

    def _show(self, name: str, total: int, phase: Phase, progress: int) -> None:
        is_unpacked = bool(self.snapshotter) and phase is not Phase.PRESENT
        self._layers[name] = LayerState(
            name=name, phase=phase, progress=progress, total=total, is_unpacked=is_unpacked
        )

    @cached_property
    def _lease(self) -> str:
        """The lease, created when it is first needed: the images' names may be known by then."""
        names = [name for names, _ in archive.images_in(self._lists) for name in names]
        self.title = (names or [self.title])[0]
        return self.client.create_load(self.title)

    # The files of the archive

    def _receive(self, member: Member) -> None:
        name = member.name
        if len(self._blobs) >= self.most_files:  # each is remembered
            raise ArchiveError(f"the archive has more than {self.most_files} files")
        if name in self._blobs or name in self._lists:
            raise ArchiveError(f"{quote(name)} is in the archive twice")
        if name not in archive.LISTS:
            self._blobs[name] = self._add(member)
        elif member.size_bytes <= DOCUMENT_LIMIT_BYTES:
            self._lists[name] = b"".join(member.pieces)
        else:
            raise ArchiveError(f"{name} is too large: {format_bytes(member.size_bytes)}")

    def _add(self, member: Member) -> Descriptor:
        """Make a file a blob, unless it is one; in Docker's archives, its name may be no digest."""
        size_bytes, name = member.size_bytes, member.name.removeprefix("blobs/").replace("/", ":")
        digest, phase = name, Phase.PRESENT
        if not (store.is_digest(name) and self._holds(name, size_bytes)):
            digest = self._write(member, name)
            phase = Phase.WAITING if self.snapshotter else Phase.DONE
        document = self._documents.get(digest) if size_bytes <= DOCUMENT_LIMIT_BYTES else None
        if document is None:
            self._show(name, size_bytes, phase, size_bytes)
        else:
            self._layers.pop(name, None)  # it is no layer
        children = document.manifests if isinstance(document, Index) else ()
        if isinstance(document, Manifest):
            children = (document.config, *document.layers)
            for layer in document.layers:  # shown before they arrive, also to watchers
                waiting = LayerState(name=layer.digest, total=layer.size_bytes)
                self._layers.setdefault(layer.digest, waiting)
        if children:
            self._refer(digest, {f"content.{n}": child.digest for n, child in enumerate(children)})
        return Descriptor(digest, size_bytes, "")

    def _write(self, member: Member, name: str) -> str:
        """Write a blob, and return its digest."""
        total, digest = member.size_bytes, name if store.is_digest(name) else ""
        with suppress(OSError):  # a container may not see the folder
            if self.folder and total > (free_bytes := shutil.disk_usage(self.folder).free):
                sizes = format_bytes(total), format_bytes(free_bytes)
                raise ArchiveError(f"{quote(name)} has {sizes[0]}, but only {sizes[1]} are free")
        request = partial(WriteContentRequest, ref=f"layer-{name}", total=total, expected=digest)
        failures: list[Exception] = []

        def requests(offset: int) -> Iterator[WriteContentRequest]:
            end = 0
            try:
                for piece in member.pieces:
                    data, end = bytes(piece[max(offset - end, 0) :]), end + len(piece)
                    if data:
                        yield request(action=WRITE, offset=end - len(data), data=data)
                yield request(action=COMMIT, offset=end)
            except Exception as exc:  # gRPC, which reads in another thread, would hide it
                failures.append(exc)

        try:
            offset = self._begin(request())
            for answer in self.client.write(requests(offset), lease=self._lease):
                digest = answer.digest
                self._show(name, total, Phase.DOWNLOADING, answer.offset)
        except errors.FailedPrecondition as exc:
            raise ArchiveError(f"{quote(name)} is damaged: its digest does not match") from exc
        except errors.AlreadyExists:
            # Its digest was unknown until now, or somebody else has written it meanwhile.
            self._holds(digest, total)
        if failures:
            raise failures[0]
        return digest

    def _begin(self, status: WriteContentRequest) -> int:
        """Return the offset at which an ingest goes on, once no pull or other load writes it."""
        while True:
            try:
                answer, *_ = self.client.write(iter((status,)), lease=self._lease)
            except errors.Unavailable as exc:
                if "locked" not in exc.details:
                    raise
                time.sleep(0.2)
            else:
                # Without a digest, it may be what is left of another file.
                return answer.offset if status.expected and answer.offset <= status.total else 0

    def _holds(self, digest: str, size_bytes: int) -> bool:
        """Return whether a blob is present; the lease then keeps it."""
        info = self.client.infos([digest]).get(digest)
        if info is None:
            return False
        # Not earlier: watchers take what a lease holds for complete.
        resource = {"id": digest, "type": "content"}
        self.client.call("Leases.AddResource", id=self._lease, resource=resource)
        if info.size != size_bytes:
            raise ArchiveError(f"{digest} has {info.size} bytes, not {size_bytes} as listed")
        return True

    # The images

    def _images(self, name: str) -> dict[str, Descriptor]:
        """Return the images by canonical name; ``name`` is that of the only one without a name."""
        images: dict[str, Descriptor] = {}
        for names, entry in archive.images_in(self._lists):
            target = self._of_docker(entry) if "Config" in entry else store.descriptor(entry)
            if target is None:
                raise ArchiveError("the archive names an image without its digest and size")
            if not any(names := names or [name]):
                raise ArchiveError("an archived image has no name", hint="name it with --name")
            for known in map(archive.checked_name, names):
                if images.setdefault(known, target).digest != target.digest:
                    raise ArchiveError(f"two images in the archive are named {quote(known)}")
        if not images:
            raise ArchiveError("no image is in the archive")
        return images

    def _of_docker(self, entry: Mapping[str, Any]) -> Descriptor:
        """Write the manifest that Docker's format lacks."""
        names = [text(entry["Config"]), *texts(entry.get("Layers"))]
        if missing := set(names) - self._blobs.keys():
            raise ArchiveError(f"{quote(min(missing))} is missing from the archive")
        config, *layers = (self._blobs[name] for name in names)
        for n, diff_id in enumerate(self._diff_ids(config.digest, len(layers))):
            head = self.client.read(layers[n].digest, size_bytes=2) or b""
            kind = "" if layers[n].digest == diff_id else _COMPRESSED.get(head)
            if kind is None:
                raise ArchiveError(f"{layers[n].digest} is not the layer that the config names")
            layers[n] = layers[n]._replace(media_type=archive.LAYER + kind)
        data = archive.manifest(config._replace(media_type=archive.CONFIG), layers)
        name = archive.path_of(f"sha256:{hashlib.sha256(data).hexdigest()}")
        written = self._add(Member(name, len(data), iter((data,))))
        return written._replace(media_type=archive.MANIFEST)

    def _is_complete(self, target: Descriptor, depth: int = 0) -> bool:
        """Return whether all that this node needs of an image is here; unpack it if asked to."""
        if depth > 2:  # nothing known nests more than an index of indexes
            raise ArchiveError("the indexes of the archive are nested too deeply")
        if not self._holds(target.digest, target.size_bytes):
            return False
        document = self._documents.get(target.digest)
        if isinstance(document, Index):
            are_complete = [self._is_complete(child, depth + 1) for child in document.manifests]
            return any(are_complete)
        if not isinstance(document, Manifest):
            raise ArchiveError(f"{target.digest} is neither a manifest nor an index")
        children = (document.config, *document.layers)
        are_here = [self._holds(child.digest, child.size_bytes) for child in children]
        is_ours = all(are_here) and store.runs_on(target.platform, store.own_platform())
        if is_ours and self.snapshotter:
            self._unpack(document)
        return is_ours

    def _diff_ids(self, config: str, count: int) -> tuple[str, ...]:
        document = self._documents.get(config)
        diff_ids = document.diff_ids if isinstance(document, store.ImageConfig) else ()
        if len(diff_ids) != count:
            raise ArchiveError(f"the config names {len(diff_ids)} layers, not {count}")
        return diff_ids

    def _refer(self, digest: str, references: Mapping[str, str]) -> None:
        """Have containerd keep what a blob refers to, as long as the blob."""
        labels = {f"containerd.io/gc.ref.{key}": value for key, value in references.items()}
        info = {"digest": digest, "labels": labels}
        paths = [f"labels.{key}" for key in labels]
        self.client.call("Content.Update", info=info, update_mask={"paths": paths})

    # Unpacking

    def _unpack(self, manifest: Manifest) -> None:
        diff_ids, parent = self._diff_ids(manifest.config.digest, len(manifest.layers)), ""
        names = store.chain_ids(diff_ids)
        for layer, diff_id, name in zip(manifest.layers, diff_ids, names, strict=True):
            size_bytes = layer.size_bytes
            self._show(layer.digest, size_bytes, Phase.EXTRACTING, size_bytes)
            if not self.client.snapshots(self.snapshotter, [name]):
                self._apply(layer, diff_id, name, parent)
            self._show(layer.digest, size_bytes, Phase.DONE, size_bytes)
            parent = name
        self._refer(manifest.config.digest, {f"snapshot.{self.snapshotter}": parent})

    def _apply(self, layer: Descriptor, diff_id: str, name: str, parent: str) -> None:
        call, lease = self.client.call, self._lease
        key = f"extract-{time.time_ns() % 10**9}-{secrets.token_hex(4)} {name}"
        target: dict[str, Any] = {"snapshotter": self.snapshotter, "key": key}
        mounts = call("Snapshots.Prepare", lease=lease, parent=parent, **target).mounts
        answer = call("Diff.Apply", has_limit=False, diff=as_message(layer), mounts=mounts)
        if answer.applied.digest != diff_id:
            raise ArchiveError(f"{layer.digest} is not the layer that the config names")
        with suppress(errors.AlreadyExists):  # somebody else has unpacked it meanwhile
            call("Snapshots.Commit", lease=lease, name=name, **target)
