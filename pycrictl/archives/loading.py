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

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from google.protobuf.empty_pb2 import Empty
from google.protobuf.field_mask_pb2 import FieldMask

from pycrictl._proto.containerd import content_pb2, diff_pb2, leases_pb2, snapshots_pb2
from pycrictl.archives import documents
from pycrictl.archives.documents import Descriptor, DockerImage, Root
from pycrictl.archives.members import Member
from pycrictl.archives.records import as_message, write_record
from pycrictl.containerd import own_leases
from pycrictl.containerd.grpc_client import ContainerdClient
from pycrictl.containerd.store import DOCUMENT_LIMIT_BYTES, chain_ids, is_digest
from pycrictl.errors import (
    AlreadyExists,
    ArchiveError,
    ConnectError,
    FailedPrecondition,
    PycrictlError,
    RuntimeFault,
    StreamError,
    Unavailable,
)
from pycrictl.pulls.state import LayerState, Phase, PullState
from pycrictl.units import format_bytes, quote

PREFIX: Final = own_leases.LOAD_PREFIX

_CHILD_LABEL: Final = "containerd.io/gc.ref.content."
_SNAPSHOT_LABEL: Final = "containerd.io/gc.ref.snapshot."
_LOCKED_PAUSE_S: Final = 0.2
_FILES_LIMIT: Final = 20_000
"""A hundred images with as many layers as overlayfs can mount have fewer."""

_WINDOW: Final = 8
"""How many requests of a MiB may be on their way to containerd."""

_DEPTH_LIMIT: Final = 3
"""An index of indexes of manifests; nothing known nests them deeper."""

_INTERRUPTIONS: Final = (KeyboardInterrupt, ConnectError, Unavailable)


class Blob(NamedTuple):
    """A file of the archive in the content store; ``head`` is its beginning."""

    digest: str
    size_bytes: int
    head: bytes = b""


class Load:
    """Loads the images of one archive.

    Args:
        title: names the load to those who watch it.
        snapshotter: where to unpack the images; if empty, that is left to containerd.
        free_bytes: returns how much space there is for images, None if unknown.
    """

    def __init__(
        self,
        client: ContainerdClient,
        *,
        title: str,
        snapshotter: str = "",
        free_bytes: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._client = client
        self._title = title
        self._snapshotter = snapshotter
        self._free_bytes = free_bytes
        self._lease = ""  # until something is to be written
        self._documents: dict[str, bytes] = {}
        self._blobs: dict[str, Blob] = {}
        self._links: dict[str, str] = {}
        self._begun: set[str] = set()
        self._layers: dict[str, LayerState] = {}
        self._began_s = time.time()

    def run(self, members: Iterable[Member], *, name: str = "") -> Mapping[str, Root]:
        """Load all images of an archive; return them by canonical name.

        Args:
            name: names the only image without a name.

        Raises:
            ArchiveError: something in the archive is missing, invalid, or not what it claims to be.
        """
        try:
            for member in members:
                self._receive(member)
            if not self._lease:  # all that it names may be here already
                self._create_lease()
            images = documents.by_name(self._roots(), name)
            for image, root in images.items():
                self._require(image, root.target)
            for image, root in images.items():
                write_record(self._client, image, root.target)
        except BaseException as exc:
            # A bare StreamError means that the archive ends too early, others that it is wrong.
            if not isinstance(exc, _INTERRUPTIONS) and type(exc) is not StreamError:
                self._abandon()
            raise
        self._finish()
        return images

    def state(self) -> PullState:
        """Return how far the load is, from any thread."""
        layers = tuple(self._layers.values())
        return PullState(image=self._title, layers=layers, began_s=self._began_s)

    def _show(self, name: str, size_bytes: int, phase: Phase, progress: int) -> None:
        self._layers[name] = LayerState(
            name=name,
            phase=phase,
            progress=progress,
            total=size_bytes,
            is_unpacked=bool(self._snapshotter) and phase is not Phase.PRESENT,
        )

    # The files of the archive

    def _receive(self, member: Member) -> None:
        name = member.name
        if len(self._blobs) + len(self._links) >= _FILES_LIMIT:
            raise ArchiveError(f"the archive has more than {_FILES_LIMIT} files")
        if name in self._documents or name in self._blobs or name in self._links:
            raise ArchiveError(f"{quote(name)} is in the archive twice")
        if member.link:
            self._links[name] = member.link
        elif name in documents.LISTS:
            if member.size_bytes > DOCUMENT_LIMIT_BYTES:
                raise ArchiveError(f"{name} has {format_bytes(member.size_bytes)}")
            self._documents[name] = b"".join(member.pieces())
        elif name.startswith("blobs/"):
            digest = name.removeprefix("blobs/").replace("/", ":")
            if not is_digest(digest):
                raise ArchiveError(f"{quote(name)} in the archive is not named by a digest")
            self._blobs[name] = self._write(member, digest)
        elif name.endswith((".json", ".tar")):
            self._blobs[name] = self._write(member)

    def _create_lease(self) -> None:
        """Create the lease, named by the images if the archive has told them by now."""
        with suppress(ArchiveError):
            listed = documents.docker_images(self._documents.get("manifest.json", b"[]"))
            roots = documents.roots_of_index(self._documents.get("index.json", b"{}"))
            names = [name for root in roots for name in root.names]
            names += [name for image in listed for name in image.names]
            first, *others = dict.fromkeys(names) or (self._title,)
            self._title = f"{first} and {len(others)} more" if others else first
        self._lease = own_leases.create(self._client, PREFIX, {own_leases.LOAD_LABEL: self._title})

    def _write(self, member: Member, digest: str = "") -> Blob:
        if not self._lease:
            self._create_lease()
        size_bytes, title = member.size_bytes, digest or quote(member.name)
        if digest and self._holds(digest, size_bytes):
            if digest in self._layers or size_bytes > DOCUMENT_LIMIT_BYTES:
                self._show(digest, size_bytes, Phase.PRESENT, size_bytes)
            return Blob(digest, size_bytes)
        free_bytes = self._free_bytes()
        if free_bytes is not None and size_bytes > free_bytes:
            sizes = format_bytes(size_bytes), format_bytes(free_bytes)
            raise ArchiveError(f"{title} has {sizes[0]}, but only {sizes[1]} are free")
        ref = f"layer-{digest or documents.described(title.encode(), '')['digest']}"
        self._begun.add(ref)
        failures: list[PycrictlError] = []
        head, written = b"", ""
        window = threading.Semaphore(_WINDOW)  # gRPC would take in all of it at once

        def requests(offset: int) -> Iterator[content_pb2.WriteContentRequest]:
            nonlocal head
            at = 0
            try:
                for piece in member.pieces():
                    head = head or bytes(piece[:4])
                    at += len(piece)
                    if at > offset:
                        window.acquire()
                        data = bytes(piece[max(offset - at + len(piece), 0) :])
                        yield content_pb2.WriteContentRequest(
                            action=content_pb2.WRITE,
                            ref=ref,
                            total=size_bytes,
                            offset=at - len(data),
                            data=data,
                        )
            except PycrictlError as exc:  # in a thread of gRPC's, and without a commit
                failures.append(exc)
                return
            yield content_pb2.WriteContentRequest(
                action=content_pb2.COMMIT,
                ref=ref,
                total=size_bytes,
                offset=size_bytes,
                expected=digest,
            )

        try:
            for answer in self._client.write(
                requests(self._open(ref, size_bytes, digest)), lease=self._lease
            ):
                written = answer.digest
                window.release()
                if title in self._layers or not head.startswith(b"{"):
                    self._show(title, size_bytes, Phase.DOWNLOADING, answer.offset)
        except RuntimeFault as exc:
            if failures:
                raise failures[0] from None
            if isinstance(exc, FailedPrecondition):
                raise ArchiveError(f"{title} is damaged: its content has another digest") from exc
            if not isinstance(exc, AlreadyExists):
                raise
            # Without its digest, or since somebody else has written it meanwhile.
            self._abort(ref)
            self._holds(digest or written, size_bytes)
        finally:
            window.release(_WINDOW)
        if failures:
            raise failures[0]
        self._begun.discard(ref)
        if title in self._layers:
            phase = Phase.WAITING if self._snapshotter else Phase.DONE
            self._show(title, size_bytes, phase, size_bytes)
        elif size_bytes <= DOCUMENT_LIMIT_BYTES:
            self._announce(written)
        return Blob(digest or written, size_bytes, head)

    def _announce(self, digest: str) -> None:
        """Show the layers of a manifest before they arrive."""
        with suppress(ArchiveError):
            children, is_index = documents.children(self._document(digest))
            if children:
                self._keep(digest, children)
            for layer in [] if is_index else children[1:]:
                if layer["digest"] not in self._layers:
                    self._show(layer["digest"], layer["size"], Phase.WAITING, 0)

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
                time.sleep(_LOCKED_PAUSE_S)
                continue
            # Without a digest, it may be what is left of another file.
            return answer.offset if digest and answer.offset <= size_bytes else 0

    def _holds(self, digest: str, size_bytes: int) -> bool:
        """Return whether a blob is present; the lease then keeps it."""
        info = self._client.infos([digest]).get(digest)
        if info is not None:
            resource = leases_pb2.Resource(id=digest, type="content")
            request = leases_pb2.AddResourceRequest(id=self._lease, resource=resource)
            self._client.call("leases.v1.Leases/AddResource", request, Empty)
            info = self._client.infos([digest]).get(digest)  # it may have been collected meanwhile
        if info is not None and info.size != size_bytes:
            raise ArchiveError(f"{digest} has {info.size} bytes, not {size_bytes} as is claimed")
        return info is not None

    # The images

    def _roots(self) -> list[Root]:
        """Return the images of the archive; write the manifests that Docker's format lacks."""
        if "index.json" in self._documents:
            roots = documents.roots_of_index(self._documents["index.json"])
        else:
            listed = documents.docker_images(self._documents.get("manifest.json", b"[]"))
            roots = [self._docker_root(image) for image in listed]
        if not roots:
            raise ArchiveError("no image is in the archive")
        return roots

    def _docker_root(self, image: DockerImage) -> Root:
        config, layers = self._blob(image.config), [self._blob(name) for name in image.layers]
        diff_ids = documents.diff_ids(self._document(config.digest))
        entries = [_described(layer, documents.layer_type(layer.head)) for layer in layers]
        if len(diff_ids) != len(layers) or any(
            entry["mediaType"] == documents.LAYER and entry["digest"] != diff_id
            for entry, diff_id in zip(entries, diff_ids, strict=False)
        ):
            raise ArchiveError(f"the layers are not those that {quote(image.config)} names")
        data = documents.manifest(_described(config, documents.CONFIG), entries)
        target = documents.described(data, documents.MANIFEST)
        self._write(Member("manifest", len(data), lambda: iter((data,))), target["digest"])
        return Root(target, image.names)

    def _blob(self, name: str) -> Blob:
        name = self._links.get(name, name)
        if name not in self._blobs:
            raise ArchiveError(f"{quote(name)} is missing from the archive")
        return self._blobs[name]

    def _require(self, image: str, target: Descriptor) -> None:
        """Have containerd keep all that an image needs on this node; raise if some is missing.

        Parts for other platforms may be missing, since pulls leave them out.
        """
        if not self._complete(target):
            own = documents.own_platform()
            raise ArchiveError(f"{quote(image)} is not complete for {own}: blobs are missing")

    def _complete(self, target: Descriptor, depth: int = 0) -> bool:
        if depth >= _DEPTH_LIMIT:
            raise ArchiveError("the indexes of the archive are nested too deeply")
        digest = target["digest"]
        if not self._holds(digest, target["size"]):
            return False
        children, is_index = documents.children(self._document(digest))
        if not children:
            raise ArchiveError(f"{digest} is neither a manifest nor an index")
        are_complete = [
            self._complete(child, depth + 1) if is_index else self._holds_child(child)
            for child in children
        ]
        self._keep(digest, children)
        if is_index:
            return any(are_complete)
        is_ours = all(are_complete) and documents.runs_on(target, documents.own_platform())
        if is_ours and self._snapshotter:
            self._unpack(*children)
        return is_ours

    def _keep(self, digest: str, children: Sequence[Descriptor]) -> None:
        """Have containerd keep what a document refers to, as long as the document."""
        labels = {f"{_CHILD_LABEL}{n}": child["digest"] for n, child in enumerate(children)}
        self._label(digest, labels)

    def _holds_child(self, child: Descriptor) -> bool:
        return self._holds(child["digest"], child["size"])

    def _document(self, digest: str) -> bytes:
        data = self._client.read(digest, size_bytes=DOCUMENT_LIMIT_BYTES + 1) or b""
        if len(data) > DOCUMENT_LIMIT_BYTES:
            raise ArchiveError(f"{digest} is too large for a document of an image")
        return data

    def _label(self, digest: str, labels: dict[str, str]) -> None:
        request = content_pb2.UpdateRequest(
            info=content_pb2.Info(digest=digest, labels=labels),
            update_mask=FieldMask(paths=[f"labels.{key}" for key in labels]),
        )
        self._client.call("content.v1.Content/Update", request, content_pb2.UpdateResponse)

    # Unpacking

    def _unpack(self, config: Descriptor, *layers: Descriptor) -> None:
        diff_ids, parent = documents.diff_ids(self._document(config["digest"])), ""
        if len(diff_ids) != len(layers):
            raise ArchiveError(f"the config names {len(diff_ids)} layers, not {len(layers)}")
        for layer, diff_id, name in zip(layers, diff_ids, chain_ids(diff_ids), strict=True):
            digest, size_bytes = layer["digest"], layer["size"]
            self._show(digest, size_bytes, Phase.EXTRACTING, size_bytes)
            if not self._client.snapshots(self._snapshotter, [name]):
                self._apply(layer, diff_id, name, parent)
            self._show(digest, size_bytes, Phase.DONE, size_bytes)
            parent = name
        self._label(config["digest"], {f"{_SNAPSHOT_LABEL}{self._snapshotter}": parent})

    def _apply(self, layer: Descriptor, diff_id: str, name: str, parent: str) -> None:
        call, where, lease = self._client.call, self._snapshotter, self._lease
        key = f"extract-{time.time_ns() % 10**9}-{secrets.token_hex(4)} {name}"
        mounts = call(
            "snapshots.v1.Snapshots/Prepare",
            snapshots_pb2.PrepareSnapshotRequest(snapshotter=where, key=key, parent=parent),
            snapshots_pb2.PrepareSnapshotResponse,
            lease=lease,
        ).mounts
        request = diff_pb2.ApplyRequest(diff=as_message(layer), mounts=mounts)
        answer = call("diff.v1.Diff/Apply", request, diff_pb2.ApplyResponse, has_limit=False)
        if answer.applied.digest != diff_id:
            raise ArchiveError(f"{layer['digest']} is not the layer that the config names")
        commit = snapshots_pb2.CommitSnapshotRequest(snapshotter=where, name=name, key=key)
        with suppress(AlreadyExists):  # somebody else has unpacked it meanwhile
            call("snapshots.v1.Snapshots/Commit", commit, Empty, lease=lease)

    # The end

    def _abandon(self) -> None:
        """Remove all that this load has written."""
        for ref in self._begun:
            self._abort(ref)
        if not self._lease:
            return
        with suppress(PycrictlError):
            own_leases.delete(self._client, self._lease, sync=True)

    def _abort(self, ref: str) -> None:
        with suppress(PycrictlError):
            self._client.call("content.v1.Content/Abort", content_pb2.AbortRequest(ref=ref), Empty)

    def _finish(self) -> None:
        """Delete the lease, and those of interrupted loads which this one has completed."""
        own = self._held(self._lease)
        for lease in self._client.leases():
            if own_leases.is_abandoned(lease.id, PREFIX) and own & self._held(lease.id):
                own_leases.delete(self._client, lease.id)
        own_leases.delete(self._client, self._lease)

    def _held(self, lease: str) -> set[str]:
        return {resource.id for resource in self._client.resources(lease) or ()}


def _described(blob: Blob, media_type: str) -> Descriptor:
    return {"mediaType": media_type, "digest": blob.digest, "size": blob.size_bytes}
