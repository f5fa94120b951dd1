"""The calls of containerd's own gRPC API needed to watch pulls, on the CRI's socket.

Every call is synchronous and names its namespace (kubelet's images live in ``k8s.io``). Only
``views`` changes anything on the node.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from pycrictl._proto.containerd import (
    content_pb2,
    images_pb2,
    introspection_pb2,
    leases_pb2,
    snapshots_pb2,
    version_pb2,
)
from pycrictl.containerd.store import (
    DOCUMENT_LIMIT_BYTES,
    Document,
    parse_document,
    unpacked_estimate,
)
from pycrictl.cri.calls.channel import GrpcCall, GrpcChannel, unix
from pycrictl.cri.calls.errmap import to_error
from pycrictl.errors import Invalid, NotFound, RemoteProtocolError, Unimplemented

_KEPT: Final = 256
_PART_BYTES: Final = 4 * 1024 * 1024
_READ: Final = "content.v1.Content/Read"
_TRAILER_BYTES: Final = 4
_SERVICES: Final = "/containerd.services."
M = TypeVar("M", bound=Message)


def seconds(timestamp: Timestamp) -> float:
    return timestamp.ToNanoseconds() / 1e9


class ContainerdClient:
    """Reads a containerd's stores; works again once a restarted containerd is back."""

    def __init__(self, path: str, *, timeout_s: float = 2.0) -> None:
        self.endpoint = f"unix://{path}"
        self._path = path
        self._channel: GrpcChannel | None = None
        self._metadata = (("containerd-namespace", "k8s.io"),)
        self._timeout_s = timeout_s

    def close(self) -> None:
        """End all calls, those of other threads included."""
        if self._channel is not None:
            self._channel.close()

    # The daemon

    def version(self) -> str:
        """Return containerd's version; raise ``Unimplemented`` for another runtime."""
        try:
            answer = self.call("version.v1.Version/Version", Empty(), version_pb2.VersionResponse)
        except Unimplemented as exc:
            raise Unimplemented(
                f'the runtime at "{self.endpoint}" is not containerd,'
                " and its pulls cannot be seen from outside",
                code=exc.code,
                details=exc.details,
            ) from None
        return answer.version

    def server(self) -> introspection_pb2.ServerResponse:
        """Return the daemon's own data; ``pid`` and ``pidns`` are 0 before containerd 1.7."""
        return self.call(
            "introspection.v1.Introspection/Server", Empty(), introspection_pb2.ServerResponse
        )

    # Content

    def statuses(self) -> Sequence[content_pb2.Status]:
        """Return the unfinished blobs, including those that a killed daemon left behind."""
        return self.call(
            "content.v1.Content/ListStatuses",
            content_pb2.ListStatusesRequest(),
            content_pb2.ListStatusesResponse,
        ).statuses

    def infos(self, digests: Iterable[str]) -> dict[str, content_pb2.Info]:
        """Return size, labels and times of the complete blobs among ``digests``."""
        filters = [f"digest=={digest}" for digest in digests]
        if not filters:  # containerd would list every blob on the node
            return {}
        answers = self._stream(
            "content.v1.Content/List",
            content_pb2.ListContentRequest(filters=filters),
            content_pb2.ListContentResponse,
        )
        return {info.digest: info for answer in answers for info in answer.info}

    def read(self, digest: str, *, size_bytes: int, offset: int = 0) -> bytes | None:
        """Read part of a complete blob, less at its end; None if there is no such blob."""
        try:
            answers = self._stream(
                _READ,
                content_pb2.ReadContentRequest(digest=digest, offset=offset, size=size_bytes),
                content_pb2.ReadContentResponse,
            )
        except NotFound:
            return None
        return b"".join(answer.data for answer in answers)[:size_bytes]

    def pieces(self, digest: str, size_bytes: int) -> Iterator[bytes]:
        """Yield a complete blob as it arrives; raise ``NotFound`` without one."""
        answer_type = content_pb2.ReadContentResponse
        for offset in range(0, size_bytes, _PART_BYTES):  # gRPC takes in much at once
            part_bytes = min(_PART_BYTES, size_bytes - offset)
            request = content_pb2.ReadContentRequest(digest=digest, offset=offset, size=part_bytes)
            for answer in self._messages(_READ, request, answer_type, has_limit=False):
                yield answer.data

    def write(
        self, requests: Iterator[content_pb2.WriteContentRequest], *, lease: str
    ) -> Generator[content_pb2.WriteContentResponse, None, None]:
        """Write an ingest (``Content.Write``); yield its state after each request.

        ``requests`` runs in another thread and must not raise.
        """
        return self._messages(
            "content.v1.Content/Write",
            (request.SerializeToString() for request in requests),
            content_pb2.WriteContentResponse,
            lease=lease,
            has_limit=False,
        )

    # Images

    def images(self, *filters: str) -> Sequence[images_pb2.Image]:
        """Return the image records that match any filter, such as ``target.digest==sha256:…``."""
        return self.call(
            "images.v1.Images/List",
            images_pb2.ListImagesRequest(filters=filters),
            images_pb2.ListImagesResponse,
        ).images

    # Leases

    def leases(self) -> Sequence[leases_pb2.Lease]:
        return self.call(
            "leases.v1.Leases/List", leases_pb2.ListRequest(), leases_pb2.ListResponse
        ).leases

    def resources(self, lease_id: str) -> Sequence[leases_pb2.Resource] | None:
        """Return what a lease protects from garbage collection; None if the lease is gone."""
        try:
            return self.call(
                "leases.v1.Leases/ListResources",
                leases_pb2.ListResourcesRequest(id=lease_id),
                leases_pb2.ListResourcesResponse,
            ).resources
        except NotFound:
            return None

    # Snapshots

    def snapshots(self, snapshotter: str, names: Iterable[str]) -> dict[str, snapshots_pb2.Info]:
        filters = [f"name=={name}" for name in names]
        if not filters:
            return {}
        answers = self._stream(
            "snapshots.v1.Snapshots/List",
            snapshots_pb2.ListSnapshotsRequest(snapshotter=snapshotter, filters=filters),
            snapshots_pb2.ListSnapshotsResponse,
        )
        return {info.name: info for answer in answers for info in answer.info}

    def usage(self, snapshotter: str, key: str) -> int | None:
        """Return a snapshot's bytes on disk, counted by walking all its files; None without one."""
        try:
            return self.call(
                "snapshots.v1.Snapshots/Usage",
                snapshots_pb2.UsageRequest(snapshotter=snapshotter, key=key),
                snapshots_pb2.UsageResponse,
            ).size
        except NotFound:
            return None

    # The calls

    def call(
        self,
        method: str,
        request: Message,
        response_type: type[M],
        *,
        lease: str = "",
        has_limit: bool = True,
    ) -> M:
        """Make a unary call of ``SERVICE.v1.SERVICE/METHOD``; ``lease`` holds what it creates."""
        (answer,) = self._messages(
            method, request, response_type, is_stream=False, lease=lease, has_limit=has_limit
        )
        return answer

    def _stream(self, method: str, request: Message, response_type: type[M]) -> list[M]:
        return list(self._messages(method, request, response_type))

    def _messages(
        self,
        method: str,
        request: Message | Iterator[bytes],
        response_type: type[M],
        *,
        is_stream: bool = True,
        lease: str = "",
        has_limit: bool = True,
    ) -> Generator[M, None, None]:
        if self._channel is None:
            self._channel = unix(self._path)
        call = GrpcCall(
            self._channel,
            _SERVICES + method,
            request.SerializeToString() if isinstance(request, Message) else request,
            metadata=(*self._metadata, *((("containerd-lease", lease),) if lease else ())),
            timeout_s=self._timeout_s if has_limit else None,
            is_stream=is_stream,
        )
        what = f"asking containerd for {method.rpartition('.')[2].replace('/', '.')}"
        try:
            yield from map(response_type.FromString, call.messages())
        except DecodeError:
            raise RemoteProtocolError(f"{what}: the answer is not valid") from None
        if call.failure is not None:
            raise to_error(call.failure, what=what, endpoint=self.endpoint)


class Documents:
    def __init__(self, client: ContainerdClient) -> None:
        self._client = client
        self._read: OrderedDict[str, Document] = OrderedDict()

    def get(self, digest: str) -> Document | None:
        """Return a document; None if the blob does not exist yet or is not a document."""
        document = self._read.get(digest)
        if document is None:
            # One byte over the limit shows that a blob is too large for a document.
            data = self._client.read(digest, size_bytes=DOCUMENT_LIMIT_BYTES + 1)
            document = parse_document(data) if data is not None else None
            if document is None:
                return None
            self._read[digest] = document
            if len(self._read) > _KEPT:
                self._read.popitem(last=False)
        self._read.move_to_end(digest)
        return document

    def unpacked_bytes(self, digest: str, compressed_bytes: int) -> int:
        """Estimate the unpacked size of a gzip layer from its last bytes; 0 if unknown."""
        offset = max(0, compressed_bytes - _TRAILER_BYTES)
        try:
            trailer = self._client.read(digest, offset=offset, size_bytes=_TRAILER_BYTES)
        except Invalid:  # out of range: the blob is shorter than in its manifest
            return 0
        return unpacked_estimate(trailer or b"", compressed_bytes) or 0
