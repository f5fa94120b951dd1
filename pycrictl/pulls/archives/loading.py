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
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from pycrictl._proto.containerd import content_pb2
from pycrictl.base.errors import (
    AlreadyExists,
    ArchiveError,
    Cancelled,
    ConnectError,
    FailedPrecondition,
    PycrictlError,
    StreamError,
    Unavailable,
)
from pycrictl.base.units import format_bytes, quote
from pycrictl.pulls.archives import archive
from pycrictl.pulls.archives.archive import DockerImage, Member, Root
from pycrictl.pulls.state import LayerState, Phase, PullState
from pycrictl.runtime.containerd.grpc_client import ContainerdClient, as_message, is_abandoned
from pycrictl.runtime.containerd.store import (
    DOCUMENT_LIMIT_BYTES,
    Descriptor,
    Document,
    ImageConfig,
    Index,
    Manifest,
    chain_ids,
    is_digest,
    own_platform,
    parse_document,
    runs_on,
)

_CHILD_LABEL: Final = "containerd.io/gc.ref.content."
_SNAPSHOT_LABEL: Final = "containerd.io/gc.ref.snapshot."
_FILES_LIMIT: Final = 20_000
"""A hundred images with as many layers as overlayfs can mount have fewer."""

_DEPTH_LIMIT: Final = 3
"""An index of indexes of manifests; nothing known nests them deeper."""

_INTERRUPTIONS: Final = (Cancelled, ConnectError, Unavailable)


class Load:
    """Loads the images of one archive.

    Args:
        title: names the load to those who watch it.
        snapshotter: where to unpack the images; if empty, that is left to containerd.
        folder: where images are stored, to check the space there; None if unknown.
    """

    def __init__(
        self,
        client: ContainerdClient,
        *,
        title: str,
        snapshotter: str = "",
        folder: Path | None = None,
    ) -> None:
        self._client = client
        self._title = title
        self._snapshotter = snapshotter
        self._folder = folder
        self._lists: dict[str, bytes] = {}
        self._blobs: dict[str, Descriptor] = {}
        self._links: dict[str, str] = {}
        self._names: set[str] = set()
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
            roots = [
                self._docker_root(image) if isinstance(image, DockerImage) else image
                for image in archive.listed(self._lists)
            ]
            images = archive.by_name(roots, name)
            for image, root in images.items():
                # Parts for other platforms may be missing, since pulls leave them out.
                if not self._complete(root.target):
                    what = f"{quote(image)} is not complete for {own_platform()}"
                    raise ArchiveError(f"{what}: blobs are missing")
            for image, root in images.items():
                self._client.name_image(image, root.target)
        except Exception as exc:
            # A bare StreamError means that the archive ends too early, others that it is wrong.
            if not isinstance(exc, _INTERRUPTIONS) and type(exc) is not StreamError:
                self._abandon()
            raise
        self._finish()
        return list(images)

    def state(self) -> PullState:
        """Return how far the load is, from any thread."""
        layers = tuple(self._layers.values())
        return PullState(image=self._title, layers=layers, began_s=self._began_s)

    def _show(self, name: str, size_bytes: int, phase: Phase, progress: int) -> None:
        """Show a blob that is too large for a document, or was announced as a layer."""
        if size_bytes > DOCUMENT_LIMIT_BYTES or name in self._layers:
            is_unpacked = bool(self._snapshotter) and phase is not Phase.PRESENT
            self._layers[name] = LayerState(
                name=name,
                phase=phase,
                progress=progress,
                total=size_bytes,
                is_unpacked=is_unpacked,
            )

    @cached_property
    def _lease(self) -> str:
        """The lease, created when it is first needed: the archive may have told names by then."""
        with suppress(ArchiveError):
            names = (name for image in archive.listed(self._lists) for name in image.names)
            self._title = next(names, self._title)
        return self._client.create_load(self._title)

    # The files of the archive

    def _receive(self, member: Member) -> None:
        name = member.name
        if len(self._names) >= _FILES_LIMIT:
            raise ArchiveError(f"the archive has more than {_FILES_LIMIT} files")
        if name in self._names:
            raise ArchiveError(f"{quote(name)} is in the archive twice")
        self._names.add(name)
        if member.link:
            self._links[name] = member.link
        elif name in archive.LISTS:
            if member.size_bytes > DOCUMENT_LIMIT_BYTES:
                raise ArchiveError(f"{name} has {format_bytes(member.size_bytes)}")
            self._lists[name] = b"".join(member.pieces)
        elif name.startswith("blobs/"):
            digest = name.removeprefix("blobs/").replace("/", ":")
            if not is_digest(digest):
                raise ArchiveError(f"{quote(name)} in the archive is not named by a digest")
            self._blobs[name] = self._write(member, digest)
        elif name != "oci-layout" and member.size_bytes:
            self._blobs[name] = self._write(member)

    def _write(self, member: Member, digest: str = "") -> Descriptor:
        """Write a file as a blob; ``digest`` is empty if the archive does not tell it."""
        size_bytes, title = member.size_bytes, digest or quote(member.name)
        if digest and self._holds(digest, size_bytes):
            self._show(title, size_bytes, Phase.PRESENT, size_bytes)
            return Descriptor(digest, size_bytes, "")
        with suppress(OSError):  # seen from a container, it is elsewhere
            if self._folder and size_bytes > (free_bytes := shutil.disk_usage(self._folder).free):
                sizes = format_bytes(size_bytes), format_bytes(free_bytes)
                raise ArchiveError(f"{title} has {sizes[0]}, but only {sizes[1]} are free")
        ref = f"layer-{digest or member.name}"
        offset = self._open(ref, size_bytes, digest)
        written = digest
        try:
            for answer in self._sent(member, ref, digest, offset):
                written = answer.digest
                self._show(title, size_bytes, Phase.DOWNLOADING, answer.offset)
        except FailedPrecondition as exc:
            raise ArchiveError(f"{title} is damaged: its content has another digest") from exc
        except AlreadyExists:
            # Without its digest, or since somebody else has written it meanwhile.
            self._holds(written, size_bytes)
        phase = Phase.WAITING if self._snapshotter else Phase.DONE
        self._show(title, size_bytes, phase, size_bytes)
        if size_bytes <= DOCUMENT_LIMIT_BYTES:
            self._announce(written)
        return Descriptor(written, size_bytes, "")

    def _sent(
        self, member: Member, ref: str, digest: str, offset: int
    ) -> Iterator[content_pb2.WriteContentResponse]:
        """Send a file from ``offset`` on, and yield containerd's answers meanwhile."""
        request = partial(content_pb2.WriteContentRequest, ref=ref, total=member.size_bytes)
        failures: list[Exception] = []

        def requests() -> Iterator[content_pb2.WriteContentRequest]:
            end = 0
            try:
                for piece in member.pieces:
                    begin, end = end, end + len(piece)
                    if end > offset:
                        data = bytes(piece[max(offset - begin, 0) :])
                        at = end - len(data)
                        yield request(action=content_pb2.WRITE, offset=at, data=data)
                yield request(action=content_pb2.COMMIT, offset=end, expected=digest)
            except Exception as exc:  # gRPC, which reads in another thread, would hide it
                failures.append(exc)

        yield from self._client.write(requests(), lease=self._lease)
        if failures:
            raise failures[0]

    def _announce(self, digest: str) -> None:
        """Show the layers of a manifest before they arrive."""
        if isinstance(document := self._document(digest), Manifest):
            self._keep(digest, (document.config, *document.layers))
            arrived = {blob.digest for blob in self._blobs.values()}
            for name, total, *_ in document.layers:
                if name not in arrived:
                    self._layers.setdefault(name, LayerState(name=name, total=total))

    def _open(self, ref: str, size_bytes: int, digest: str) -> int:
        """Begin or continue an ingest, and return where it goes on.

        Waits while somebody else writes it, such as a pull of an image with the same layer.
        """
        state = content_pb2.WriteContentRequest(ref=ref, total=size_bytes, expected=digest)
        while True:
            try:
                answer, *_ = self._client.write(iter((state,)), lease=self._lease)
            except Unavailable as exc:
                if "locked" not in exc.details:
                    raise
                time.sleep(0.2)
            else:
                # Without a digest, it may be what is left of another file.
                return answer.offset if digest and answer.offset <= size_bytes else 0

    def _holds(self, digest: str, size_bytes: int) -> bool:
        """Return whether a blob is present; the lease then keeps it."""
        info = self._client.infos([digest]).get(digest)
        if info is not None:  # watchers take what a lease holds for complete
            resource = {"id": digest, "type": "content"}
            self._client.call("Leases.AddResource", id=self._lease, resource=resource)
            info = self._client.infos([digest]).get(digest)  # it may have been collected meanwhile
        if info is not None and info.size != size_bytes:
            raise ArchiveError(f"{digest} has {info.size} bytes, not {size_bytes} as is claimed")
        return info is not None

    # The images

    def _docker_root(self, image: DockerImage) -> Root:
        """Write the manifest that Docker's format lacks."""
        config = self._blob(image.config)._replace(media_type=archive.CONFIG)
        layers = []
        for layer in map(self._blob, image.layers):
            head = self._client.read(layer.digest, size_bytes=4) or b""
            layers.append(layer._replace(media_type=archive.layer_type(head)))
        for layer, diff_id in zip(layers, self._diff_ids(config, layers), strict=True):
            if layer.media_type == archive.LAYER and layer.digest != diff_id:
                raise ArchiveError(f"the layers are not those that {quote(image.config)} names")
        data = archive.manifest(Manifest(config, tuple(layers)))
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        written = self._write(Member("manifest", len(data), iter((data,))), digest)
        return Root(written._replace(media_type=archive.MANIFEST), image.names)

    def _blob(self, name: str) -> Descriptor:
        name = self._links.get(name, name)
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
        self._keep(target.digest, children)
        is_ours = all(are_here) and runs_on(target.platform, own_platform())
        if is_ours and self._snapshotter:
            self._unpack(document)
        return is_ours

    def _keep(self, digest: str, children: Sequence[Descriptor]) -> None:
        """Have containerd keep what a document refers to, as long as the document."""
        labels = {f"{_CHILD_LABEL}{n}": child.digest for n, child in enumerate(children)}
        self._label(digest, labels)

    def _document(self, digest: str) -> Document | None:
        data = self._client.read(digest, size_bytes=DOCUMENT_LIMIT_BYTES + 1) or b""
        if len(data) > DOCUMENT_LIMIT_BYTES:
            raise ArchiveError(f"{digest} is too large for a document of an image")
        return parse_document(data)

    def _diff_ids(self, config: Descriptor, layers: Sequence[Descriptor]) -> Sequence[str]:
        document = self._document(config.digest)
        diff_ids = document.diff_ids if isinstance(document, ImageConfig) else ()
        if len(diff_ids) != len(layers):
            raise ArchiveError(f"the config names {len(diff_ids)} layers, not {len(layers)}")
        return diff_ids

    def _label(self, digest: str, labels: dict[str, str]) -> None:
        paths = [f"labels.{key}" for key in labels]
        info = {"digest": digest, "labels": labels}
        self._client.call("Content.Update", info=info, update_mask={"paths": paths})

    # Unpacking

    def _unpack(self, manifest: Manifest) -> None:
        diff_ids, parent = self._diff_ids(manifest.config, manifest.layers), ""
        names = chain_ids(diff_ids)
        for layer, diff_id, name in zip(manifest.layers, diff_ids, names, strict=True):
            size_bytes = layer.size_bytes
            self._show(layer.digest, size_bytes, Phase.EXTRACTING, size_bytes)
            if not self._client.snapshots(self._snapshotter, [name]):
                self._apply(layer, diff_id, name, parent)
            self._show(layer.digest, size_bytes, Phase.DONE, size_bytes)
            parent = name
        self._label(manifest.config.digest, {f"{_SNAPSHOT_LABEL}{self._snapshotter}": parent})

    def _apply(self, layer: Descriptor, diff_id: str, name: str, parent: str) -> None:
        call, where, lease = self._client.call, self._snapshotter, self._lease
        key = f"extract-{time.time_ns() % 10**9}-{secrets.token_hex(4)} {name}"
        target: dict[str, Any] = {"snapshotter": where, "key": key}
        mounts = call("Snapshots.Prepare", lease=lease, parent=parent, **target).mounts
        answer = call("Diff.Apply", has_limit=False, diff=as_message(layer), mounts=mounts)
        if answer.applied.digest != diff_id:
            raise ArchiveError(f"{layer.digest} is not the layer that the config names")
        with suppress(AlreadyExists):  # somebody else has unpacked it meanwhile
            call("Snapshots.Commit", lease=lease, name=name, **target)

    # The end

    def _abandon(self) -> None:
        """Have containerd collect all that this load has written."""
        with suppress(PycrictlError):
            self._client.delete_lease(self._lease, sync=True)

    def _finish(self) -> None:
        """Delete the lease, and those of interrupted loads which this one has completed."""
        leases = [lease.id for lease in self._client.leases()]
        abandoned = [name for name in leases if is_abandoned(name)]
        held = self._client.resources([self._lease, *abandoned])
        own = {resource.id for resource in held[self._lease]}
        for lease, resources in held.items():
            if lease == self._lease or not own.isdisjoint(blob.id for blob in resources):
                self._client.delete_lease(lease)
