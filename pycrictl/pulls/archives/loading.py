"""Loading the images of an archive into containerd's content store.

Each file that may belong to an image becomes a blob, in the order of the archive and under a lease.
containerd computes its digest while it is written, and refuses another than expected. Image
records, which make images visible, are written at the end, once all that they need is there.
Ingests and snapshots are named as by pulls: a load continues what a pull or an interrupted load has
left, and ``image-pull-progress`` shows it as a pull.

An archive that is refused leaves nothing. An interrupted load leaves its lease for a day, and the
next load of the same archive goes on from there.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from pycrictl._proto.containerd import content_pb2
from pycrictl.base.errors import (
    AlreadyExists,
    ArchiveError,
    Cancelled,
    ConnectError,
    DeadlineExceeded,
    FailedPrecondition,
    PycrictlError,
    StreamError,
    Unavailable,
)
from pycrictl.base.units import format_bytes, quote
from pycrictl.pulls.archives import archive
from pycrictl.pulls.archives.archive import DockerImage, Member, Root
from pycrictl.pulls.state import LayerState, Phase, PullState
from pycrictl.runtime.containerd import store
from pycrictl.runtime.containerd.grpc_client import (
    LOAD_LABEL,
    ContainerdClient,
    as_message,
    is_abandoned,
)
from pycrictl.runtime.containerd.store import Descriptor, Index, Manifest

_FILES_LIMIT: Final = 20_000
"""A hundred images with as many layers as overlayfs can mount have fewer."""

_DEPTH_LIMIT: Final = 3
"""An index of indexes of manifests; nothing known nests them deeper."""

_INTERRUPTIONS: Final = (Cancelled, ConnectError, DeadlineExceeded, Unavailable)
_COMPRESSED: Final = {b"\x1f\x8b": "+gzip", b"\x28\xb5": "+zstd"}
"""Suffixes of a layer's media type, by the first bytes of the layer."""


@dataclass(eq=False)
class Load:
    """Loads the images of one archive.

    Attributes:
        title: names the load to those who watch it.
        snapshotter: where to unpack the images; if empty, that is left to containerd.
        folder: where images are stored, to check the space there; None if unknown.
    """

    client: ContainerdClient
    title: str
    snapshotter: str
    folder: Path | None

    def __post_init__(self) -> None:
        self._lists: dict[str, bytes] = {}
        self._blobs: dict[str, Descriptor] = {}
        self._layers: dict[str, LayerState] = {}
        self._began_s = time.time()

    def run(self, members: Iterable[Member], *, name: str = "") -> list[str]:
        """Load all images of an archive; return their canonical names.

        Args:
            name: names the only image without a name.

        Raises:
            ArchiveError: something in the archive is missing, invalid, or not what it claims to be.
        """
        try:
            for member in members:
                self._receive(member)
            images = archive.by_name(map(self._root, archive.listed(self._lists)), name)
            for image, root in images.items():
                # Parts for other platforms may be missing, since pulls leave them out.
                if not self._complete(root.target):
                    what = f"{quote(image)} is not complete for {store.own_platform()}"
                    raise ArchiveError(f"{what}: blobs are missing")
        except PycrictlError as exc:
            # A bare StreamError means that the archive ends too early, others that it is wrong.
            if not isinstance(exc, _INTERRUPTIONS) and type(exc) is not StreamError:
                self.client.delete_lease(self._lease, sync=True)
            raise
        for image, root in images.items():
            self.client.name_image(image, root.target)
        for lease in self.client.leases():
            is_remains = is_abandoned(lease.id) and lease.labels[LOAD_LABEL] == self.title
            if lease.id == self._lease or is_remains:
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
        """The lease, created when it is first needed: the archive may have told names by then."""
        with suppress(ArchiveError):
            names = (name for image in archive.listed(self._lists) for name in image.names)
            self.title = next(names, self.title)
        return self.client.create_load(self.title)

    # The files of the archive

    def _receive(self, member: Member) -> None:
        name = member.name
        if len(self._blobs) >= _FILES_LIMIT:
            raise ArchiveError(f"the archive has more than {_FILES_LIMIT} files")
        if name in self._blobs or name in self._lists:
            raise ArchiveError(f"{quote(name)} is in the archive twice")
        if name not in archive.LISTS:
            self._blobs[name] = self._add(member)
        elif member.size_bytes <= store.DOCUMENT_LIMIT_BYTES:
            self._lists[name] = b"".join(member.pieces)
        else:
            raise ArchiveError(f"{name} is too large: {format_bytes(member.size_bytes)}")

    def _add(self, member: Member) -> Descriptor:
        """Make a file a blob, if it is none yet; archives of Docker may not tell its digest."""
        size_bytes, name = member.size_bytes, member.name.removeprefix("blobs/").replace("/", ":")
        expected = name if store.is_digest(name) else ""
        if expected and self._holds(expected, size_bytes):
            digest, phase = expected, Phase.PRESENT
        else:
            digest = self._write(member, name, expected)
            phase = Phase.WAITING if self.snapshotter else Phase.DONE
        is_small = size_bytes <= store.DOCUMENT_LIMIT_BYTES
        document = self._document(digest) if is_small else None
        if document is None:
            self._show(name, size_bytes, phase, size_bytes)
        else:
            self._layers.pop(name, None)  # it is no layer
        if isinstance(document, Manifest):
            self._keep(digest, (document.config, *document.layers))
            for layer in document.layers:  # shown before they arrive, also to watchers
                waiting = LayerState(name=layer.digest, total=layer.size_bytes)
                self._layers.setdefault(layer.digest, waiting)
        return Descriptor(digest, size_bytes, "")

    def _write(self, member: Member, name: str, expected: str) -> str:
        """Write a blob, and return its digest."""
        size_bytes, digest = member.size_bytes, expected
        with suppress(OSError):  # seen from a container, it is elsewhere
            if self.folder and size_bytes > (free_bytes := shutil.disk_usage(self.folder).free):
                sizes = format_bytes(size_bytes), format_bytes(free_bytes)
                raise ArchiveError(f"{quote(name)} has {sizes[0]}, but only {sizes[1]} are free")
        request = partial(content_pb2.WriteContentRequest, ref=f"layer-{name}", total=size_bytes)
        failures: list[Exception] = []
        try:
            offset = self._begin(request(expected=expected))

            def requests() -> Iterator[content_pb2.WriteContentRequest]:
                at = skipped = offset
                try:
                    for piece in member.pieces:
                        data, skipped = bytes(piece[skipped:]), max(skipped - len(piece), 0)
                        if data:
                            yield request(action=content_pb2.WRITE, offset=at, data=data)
                        at += len(data)
                    yield request(action=content_pb2.COMMIT, offset=at, expected=expected)
                except Exception as exc:  # gRPC, which reads in another thread, would hide it
                    failures.append(exc)

            for answer in self.client.write(requests(), lease=self._lease):
                digest = answer.digest
                self._show(name, size_bytes, Phase.DOWNLOADING, answer.offset)
        except FailedPrecondition as exc:
            raise ArchiveError(f"{quote(name)} is damaged: its digest does not match") from exc
        except AlreadyExists:
            # It had no name, or somebody else has written it meanwhile.
            self._holds(digest, size_bytes)
        if failures:
            raise failures[0]
        return digest

    def _begin(self, status: content_pb2.WriteContentRequest) -> int:
        """Return where an ingest goes on, once nobody else writes it, such as a pull."""
        while True:
            try:
                answer, *_ = self.client.write(iter((status,)), lease=self._lease)
            except Unavailable as exc:
                if "locked" not in exc.details:
                    raise
                time.sleep(0.2)
            else:
                # Without a digest, it may be what is left of another file.
                is_ours = bool(status.expected) and answer.offset <= status.total
                return answer.offset if is_ours else 0

    def _holds(self, digest: str, size_bytes: int) -> bool:
        """Return whether a blob is present; the lease then keeps it."""
        info = self.client.infos([digest]).get(digest)
        if info is None:
            return False
        # Not earlier: watchers take what a lease holds for complete.
        resource = {"id": digest, "type": "content"}
        self.client.call("Leases.AddResource", id=self._lease, resource=resource)
        if info.size != size_bytes:
            raise ArchiveError(f"{digest} has {info.size} bytes, not {size_bytes} as is claimed")
        return True

    # The images

    def _root(self, image: Root | DockerImage) -> Root:
        """Return an image with a manifest; Docker's format lacks it, so it is written."""
        if isinstance(image, Root):
            return image
        config = self._blob(image.config)._replace(media_type=archive.CONFIG)
        layers = list(map(self._blob, image.layers))
        for n, diff_id in enumerate(self._diff_ids(config, layers)):
            head = self.client.read(layers[n].digest, size_bytes=2) or b""
            kind = "" if layers[n].digest == diff_id else _COMPRESSED.get(head)
            if kind is None:
                raise ArchiveError(f"the layers are not those that {quote(image.config)} names")
            layers[n] = layers[n]._replace(media_type=archive.LAYER + kind)
        data = archive.manifest(Manifest(config, tuple(layers)))
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        written = self._add(Member(archive.path_of(digest), len(data), iter((data,))))
        return Root(written._replace(media_type=archive.MANIFEST), image.names)

    def _blob(self, name: str) -> Descriptor:
        if name not in self._blobs:
            raise ArchiveError(f"{quote(name)} is missing from the archive")
        return self._blobs[name]

    def _complete(self, target: Descriptor, depth: int = 0) -> bool:
        """Return whether all that this node needs of an image is here; have containerd keep it."""
        if depth >= _DEPTH_LIMIT:
            raise ArchiveError("the indexes of the archive are nested too deeply")
        if not self._holds(target.digest, target.size_bytes):
            return False
        document = self._document(target.digest)
        if isinstance(document, Index):
            are_complete = [self._complete(child, depth + 1) for child in document.manifests]
            self._keep(target.digest, document.manifests)
            return any(are_complete)
        if not isinstance(document, Manifest):
            raise ArchiveError(f"{target.digest} is neither a manifest nor an index")
        children = (document.config, *document.layers)
        are_here = [self._holds(child.digest, child.size_bytes) for child in children]
        is_ours = all(are_here) and store.runs_on(target.platform, store.own_platform())
        if is_ours and self.snapshotter:
            self._unpack(document)
        return is_ours

    def _keep(self, digest: str, children: Sequence[Descriptor]) -> None:
        """Have containerd keep what a document refers to, as long as the document."""
        self._label(digest, {f"content.{n}": child.digest for n, child in enumerate(children)})

    def _document(self, digest: str) -> store.Document | None:
        data = self.client.read(digest, size_bytes=store.DOCUMENT_LIMIT_BYTES + 1) or b""
        if len(data) > store.DOCUMENT_LIMIT_BYTES:
            raise ArchiveError(f"{digest} is too large for an image document")
        return store.parse_document(data)

    def _diff_ids(self, config: Descriptor, layers: Sequence[Descriptor]) -> Sequence[str]:
        document = self._document(config.digest)
        diff_ids = document.diff_ids if isinstance(document, store.ImageConfig) else ()
        if len(diff_ids) != len(layers):
            raise ArchiveError(f"the config names {len(diff_ids)} layers, not {len(layers)}")
        return diff_ids

    def _label(self, digest: str, references: dict[str, str]) -> None:
        """Add references to a blob that containerd's garbage collector follows."""
        labels = {f"containerd.io/gc.ref.{key}": value for key, value in references.items()}
        info = {"digest": digest, "labels": labels}
        paths = [f"labels.{key}" for key in labels]
        self.client.call("Content.Update", info=info, update_mask={"paths": paths})

    # Unpacking

    def _unpack(self, manifest: Manifest) -> None:
        diff_ids, parent = self._diff_ids(manifest.config, manifest.layers), ""
        names = store.chain_ids(diff_ids)
        for layer, diff_id, name in zip(manifest.layers, diff_ids, names, strict=True):
            size_bytes = layer.size_bytes
            self._show(layer.digest, size_bytes, Phase.EXTRACTING, size_bytes)
            if not self.client.snapshots(self.snapshotter, [name]):
                self._apply(layer, diff_id, name, parent)
            self._show(layer.digest, size_bytes, Phase.DONE, size_bytes)
            parent = name
        self._label(manifest.config.digest, {f"snapshot.{self.snapshotter}": parent})

    def _apply(self, layer: Descriptor, diff_id: str, name: str, parent: str) -> None:
        call, lease = self.client.call, self._lease
        key = f"extract-{time.time_ns() % 10**9}-{secrets.token_hex(4)} {name}"
        target: dict[str, Any] = {"snapshotter": self.snapshotter, "key": key}
        mounts = call("Snapshots.Prepare", lease=lease, parent=parent, **target).mounts
        answer = call("Diff.Apply", has_limit=False, diff=as_message(layer), mounts=mounts)
        if answer.applied.digest != diff_id:
            raise ArchiveError(f"{layer.digest} is not the layer that the config names")
        with suppress(AlreadyExists):  # somebody else has unpacked it meanwhile
            call("Snapshots.Commit", lease=lease, name=name, **target)
