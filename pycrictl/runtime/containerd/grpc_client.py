"""containerd's own gRPC API, on the CRI's socket.

Every call is synchronous and names its namespace (kubelet's images live in ``k8s.io``).
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from pycrictl._proto.containerd import (
    content_pb2,
    diff_pb2,
    images_pb2,
    leases_pb2,
    snapshots_pb2,
    types_pb2,
    version_pb2,
)
from pycrictl.base.errors import (
    AlreadyExists,
    Invalid,
    NotFound,
    RemoteProtocolError,
    Unimplemented,
)
from pycrictl.base.processes import start_ticks
from pycrictl.runtime.containerd.store import (
    DOCUMENT_LIMIT_BYTES,
    Descriptor,
    Document,
    parse_document,
    unpacked_estimate,
)
from pycrictl.runtime.cri.calls.channel import GrpcCall, GrpcChannel
from pycrictl.runtime.cri.calls.client import Method, method_of
from pycrictl.runtime.cri.calls.errmap import to_error

EXPIRY_LABEL: Final = "containerd.io/gc.expire"
LOAD_LABEL: Final = "pycrictl.io/load"
"""A label on the lease of an image load: the load's title, for programs that show its progress."""

_LOAD_PREFIX: Final = "pycrictl-load-"
_KEPT: Final = 256
_IMAGE_LABELS: Final = {"io.cri-containerd.image": "managed"}
_PART_BYTES: Final = 512 * 1024
"""With 1 MiB, saving an image takes 5 MiB more memory, and a fifth less processor time."""

_TRAILER_BYTES: Final = 4
_SERVICES: Final = {
    name: service
    for module in (
        content_pb2, diff_pb2, images_pb2, leases_pb2, snapshots_pb2, version_pb2,
    )
    for name, service in module.DESCRIPTOR.services_by_name.items()
}  # fmt: skip


@cache
def _method(name: str) -> Method:
    """Return a call by ``SERVICE.METHOD``."""
    service, _, call = name.partition(".")
    return method_of(_SERVICES[service], call)


def as_message(blob: Descriptor) -> types_pb2.Descriptor:
    return types_pb2.Descriptor(
        media_type=blob.media_type, digest=blob.digest, size=blob.size_bytes
    )


def seconds(timestamp: Timestamp) -> float:
    return timestamp.ToNanoseconds() / 1e9


class ContainerdClient:
    """Calls of a containerd; works again after a restart of containerd."""

    def __init__(self, path: str, *, timeout_s: float = 2.0) -> None:
        self.endpoint = f"unix://{path}"
        self._path = path
        self._channel: GrpcChannel | None = None
        self._timeout_s = timeout_s

    def close(self) -> None:
        """End all calls, those of other threads included."""
        if self._channel is not None:
            self._channel.close()

    # The daemon

    def version(self) -> str:
        """Return containerd's version; raise ``Unimplemented`` for another runtime."""
        try:
            version: str = self.call("Version.Version").version
        except Unimplemented as exc:
            raise Unimplemented(
                f'the runtime at "{self.endpoint}" is not containerd, which this command needs',
                code=exc.code,
                details=exc.details,
            ) from None
        return version

    # Content

    def statuses(self) -> Sequence[content_pb2.Status]:
        """Return the unfinished blobs, including those that a killed daemon left behind."""
        statuses: Sequence[content_pb2.Status] = self.call("Content.ListStatuses").statuses
        return statuses

    def infos(self, digests: Iterable[str]) -> dict[str, content_pb2.Info]:
        """Return size, labels and times of the complete blobs among ``digests``."""
        filters = [f"digest=={digest}" for digest in digests]
        if not filters:  # containerd would list every blob on the node
            return {}
        answers = self.stream("Content.List", filters=filters)
        return {info.digest: info for answer in answers for info in answer.info}

    def read(self, digest: str, *, size_bytes: int, offset: int = 0) -> bytes | None:
        """Read part of a complete blob, less at its end; None if there is no such blob."""
        answers = self.stream("Content.Read", digest=digest, offset=offset, size=size_bytes)
        try:
            return b"".join(answer.data for answer in answers)[:size_bytes]
        except NotFound:
            return None

    def pieces(self, digest: str, size_bytes: int) -> Iterator[bytes]:
        """Yield a complete blob, part by part; raise ``NotFound`` without one.

        Each part is read completely before it is yielded: no call can run out of time while the
        caller writes.
        """
        for offset in range(0, size_bytes, _PART_BYTES):
            part = self.read(
                digest, offset=offset, size_bytes=min(_PART_BYTES, size_bytes - offset)
            )
            if part is None:
                raise NotFound(f"containerd has no content {digest}")
            yield part

    def write(
        self, requests: Iterator[content_pb2.WriteContentRequest], *, lease: str
    ) -> Generator[content_pb2.WriteContentResponse, None, None]:
        """Write an ingest (``Content.Write``); yield its state after each request.

        ``requests`` runs in another thread and must not raise.
        """
        messages = (request.SerializeToString() for request in requests)
        return self._begin("Content.Write", messages, lease, has_limit=False)

    # Images

    def images(self, *filters: str) -> Sequence[images_pb2.Image]:
        """Return the image records that match any filter, such as ``target.digest==sha256:…``."""
        images: Sequence[images_pb2.Image] = self.call("Images.List", filters=filters).images
        return images

    def name_image(self, name: str, target: Descriptor) -> None:
        """Let a canonical name point to a manifest or index, whatever it has pointed to before."""
        image = {"name": name, "labels": _IMAGE_LABELS, "target": as_message(target)}
        try:
            self.call("Images.Create", image=image)
        except AlreadyExists:
            self.call("Images.Update", image=image, update_mask={"paths": ["target"]})

    # Leases

    def leases(self) -> Sequence[leases_pb2.Lease]:
        leases: Sequence[leases_pb2.Lease] = self.call("Leases.List").leases
        return leases

    def resources(self, lease_ids: Iterable[str]) -> dict[str, Sequence[leases_pb2.Resource]]:
        """Return what leases protect from garbage collection, without leases that are gone."""
        # All at once: gRPC starts a thread whenever a call begins while there is no other.
        calls = {
            lease_id: self.stream("Leases.ListResources", id=lease_id) for lease_id in lease_ids
        }
        by_lease: dict[str, Sequence[leases_pb2.Resource]] = {}
        for lease_id, answers in calls.items():
            with suppress(NotFound):
                by_lease[lease_id] = next(answers).resources
        return by_lease

    def create_load(self, title: str) -> str:
        """Create the lease of a load of this process, and return its ID.

        What the lease holds is kept until the lease is deleted. The ID names the process, so that
        leases of killed processes can be recognized; containerd removes them after a day.
        """
        name = f"{_LOAD_PREFIX}{os.getpid()}-{start_ticks(os.getpid())}"
        expiry = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.call("Leases.Create", id=name, labels={EXPIRY_LABEL: expiry, LOAD_LABEL: title})
        return name

    def delete_lease(self, name: str, *, sync: bool = False) -> None:
        """Delete a lease; with ``sync``, return once what it alone held has been collected."""
        with suppress(NotFound):
            self.call("Leases.Delete", id=name, sync=sync)

    # Snapshots

    def snapshots(self, snapshotter: str, names: Iterable[str]) -> dict[str, snapshots_pb2.Info]:
        filters = [f"name=={name}" for name in names]
        if not filters:
            return {}
        answers = self.stream("Snapshots.List", snapshotter=snapshotter, filters=filters)
        return {info.name: info for answer in answers for info in answer.info}

    def usage(self, snapshotter: str, key: str) -> int | None:
        """Return a snapshot's bytes on disk, counted by walking all its files; None without one."""
        size_bytes: int | None = None
        with suppress(NotFound):
            size_bytes = self.call("Snapshots.Usage", snapshotter=snapshotter, key=key).size
        return size_bytes

    # The calls

    def call(self, method: str, *, lease: str = "", has_limit: bool = True, **fields: Any) -> Any:
        """Make a unary call, ``SERVICE.METHOD``, with the fields of its request.

        Args:
            lease: the lease that protects what the call creates; empty for none.
            has_limit: whether the client's time limit applies.
        """
        message = _method(method).request_type(**fields).SerializeToString()
        (answer,) = self._begin(method, message, lease, has_limit=has_limit)
        return answer

    def stream(self, method: str, **fields: Any) -> Generator[Any, None, None]:
        """Begin a call, like ``call``, and return its answers, which may be read later."""
        message = _method(method).request_type(**fields).SerializeToString()
        return self._begin(method, message, "", has_limit=True)

    def _begin(
        self, method: str, message: bytes | Iterator[bytes], lease: str, *, has_limit: bool
    ) -> Generator[Any, None, None]:
        if self._channel is None:
            self._channel = GrpcChannel(self._path)
        _, path, _, response_type, is_stream = _method(method)
        namespace = (("containerd-namespace", "k8s.io"),)
        call = GrpcCall(
            self._channel,
            path,
            message,
            metadata=(*namespace, ("containerd-lease", lease)) if lease else namespace,
            timeout_s=self._timeout_s if has_limit else None,
            is_stream=is_stream,
        )
        action = f"asking containerd for {method}"

        def answers() -> Generator[Any, None, None]:
            try:
                yield from map(response_type.FromString, call.messages())
            except DecodeError:
                raise RemoteProtocolError(f"{action}: the answer is not valid") from None
            if call.failure is not None:
                raise to_error(call.failure, action=action, endpoint=self.endpoint)

        return answers()


class Documents:
    def __init__(self, client: ContainerdClient) -> None:
        self._client = client
        self._read: dict[str, Document] = {}

    def get(self, digest: str) -> Document | None:
        """Return a document; None if the blob does not exist yet or is not a document."""
        document = self._read.get(digest)
        if document is None:
            # One byte over the limit shows that a blob is too large for a document.
            data = self._client.read(digest, size_bytes=DOCUMENT_LIMIT_BYTES + 1)
            document = parse_document(data) if data is not None else None
            if document is None:
                return None
            if len(self._read) >= _KEPT:
                self._read.clear()
            self._read[digest] = document
        return document

    def unpacked_bytes(self, digest: str, compressed_bytes: int) -> int:
        """Estimate the unpacked size of a gzip layer from its last bytes; 0 if unknown."""
        offset = max(0, compressed_bytes - _TRAILER_BYTES)
        try:
            trailer = self._client.read(digest, offset=offset, size_bytes=_TRAILER_BYTES)
        except Invalid:  # out of range: the blob is shorter than in its manifest
            return 0
        return unpacked_estimate(trailer or b"", compressed_bytes) or 0


def is_abandoned(lease_id: str) -> bool:
    """Return whether a lease is that of a load whose process has ended."""
    if not lease_id.startswith(_LOAD_PREFIX):
        return False
    pid, _, ticks = lease_id.removeprefix(_LOAD_PREFIX).partition("-")
    return pid.isdecimal() and str(start_ticks(int(pid))) != ticks
