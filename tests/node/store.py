"""containerd's own view of pulls in namespace k8s.io: leases, blobs, ingests and snapshots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from pycrictl._proto.containerd import content_pb2, leases_pb2, snapshots_pb2

_METADATA: Final = (("containerd-namespace", "k8s.io"),)
_LEASES: Final = "/containerd.services.leases.v1.Leases/"
_CONTENT: Final = "/containerd.services.content.v1.Content/"
_SNAPSHOTS: Final = "/containerd.services.snapshots.v1.Snapshots/"
M = TypeVar("M", bound=Message)


class Store:
    """Reads (and clears) what containerd keeps, through raw calls on an open channel."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def leases(self) -> list[str]:
        answer = self._call(_LEASES + "List", leases_pb2.ListRequest(), leases_pb2.ListResponse)
        return [lease.id for lease in answer.leases]

    def blobs(self) -> dict[str, int]:
        answers = self._list(
            _CONTENT + "List", content_pb2.ListContentRequest(), content_pb2.ListContentResponse
        )
        return {info.digest: info.size for answer in answers for info in answer.info}

    def ingests(self) -> dict[str, tuple[int, int]]:
        answer = self._call(
            _CONTENT + "ListStatuses",
            content_pb2.ListStatusesRequest(),
            content_pb2.ListStatusesResponse,
        )
        return {status.ref: (status.offset, status.total) for status in answer.statuses}

    def snapshots(self) -> list[str]:
        """The keys of all snapshots: chain IDs, `extract-…` while unpacking, container IDs."""
        answers = self._list(
            _SNAPSHOTS + "List",
            snapshots_pb2.ListSnapshotsRequest(snapshotter="overlayfs"),
            snapshots_pb2.ListSnapshotsResponse,
        )
        return [info.name for answer in answers for info in answer.info]

    def clear_unfinished(self) -> None:
        """Drops the leases and ingests that a killed containerd left behind."""
        for ref in self.ingests():
            self._remove(_CONTENT + "Abort", content_pb2.AbortRequest(ref=ref))
        for lease in self.leases():
            self._remove(_LEASES + "Delete", leases_pb2.DeleteRequest(id=lease, sync=True))

    def _remove(self, path: str, request: Message) -> None:
        try:
            self._call(path, request, Empty)
        except grpc.RpcError as exc:
            if not isinstance(exc, grpc.Call) or exc.code() is not grpc.StatusCode.NOT_FOUND:
                raise

    def collect_garbage(self) -> None:
        """Returns after containerd has removed every blob and snapshot that nothing refers to."""
        created = self._call(
            _LEASES + "Create",
            leases_pb2.CreateRequest(id="collect-garbage"),
            leases_pb2.CreateResponse,
        )
        # Deleting a lease with `sync` is the API's way to wait for a whole collection.
        request = leases_pb2.DeleteRequest(id=created.lease.id, sync=True)
        self._call(_LEASES + "Delete", request, Empty)

    def _call(self, path: str, request: Message, response_type: type[M]) -> M:
        method: grpc.UnaryUnaryMultiCallable[Message, M] = self._channel.unary_unary(
            path,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response_type.FromString,
        )
        answer: M = method(request, timeout=100, metadata=_METADATA)
        return answer

    def _list(self, path: str, request: Message, response_type: type[M]) -> Iterable[M]:
        method: grpc.UnaryStreamMultiCallable[Message, M] = self._channel.unary_stream(
            path,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response_type.FromString,
        )
        return method(request, timeout=100, metadata=_METADATA)
