"""containerd's own view of pulls in namespace k8s.io: leases, blobs, ingests and snapshots."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from pycrictl._proto.containerd import content_pb2, leases_pb2, snapshots_pb2
from tests.waiting import wait_until

_METADATA: Final = (("containerd-namespace", "k8s.io"),)
_LEASES: Final = "/containerd.services.leases.v1.Leases/"
_CONTENT: Final = "/containerd.services.content.v1.Content/"
_SNAPSHOTS: Final = "/containerd.services.snapshots.v1.Snapshots/"


class Store:
    """Reads (and clears) what containerd keeps, through raw calls on an open channel."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def leases(self) -> list[str]:
        answer = self._call(_LEASES + "List", leases_pb2.ListRequest(), leases_pb2.ListResponse)
        return [lease.id for lease in answer.leases]

    def blobs(self) -> dict[str, int]:
        request, answer = content_pb2.ListContentRequest(), content_pb2.ListContentResponse
        answers = self._call(_CONTENT + "List", request, answer, streams=True)
        return {info.digest: info.size for answer in answers for info in answer.info}

    def ingests(self) -> dict[str, tuple[int, int]]:
        request, answer = content_pb2.ListStatusesRequest(), content_pb2.ListStatusesResponse
        statuses = self._call(_CONTENT + "ListStatuses", request, answer).statuses
        return {status.ref: (status.offset, status.total) for status in statuses}

    def snapshots(self) -> list[str]:
        """The keys of all snapshots: chain IDs, `extract-…` while unpacking, container IDs."""
        request = snapshots_pb2.ListSnapshotsRequest(snapshotter="overlayfs")
        answer = snapshots_pb2.ListSnapshotsResponse
        answers = self._call(_SNAPSHOTS + "List", request, answer, streams=True)
        return [info.name for answer in answers for info in answer.info]

    def clear_unfinished(self) -> None:
        """Delete the leases and ingests that a killed containerd left behind."""

        def is_clear() -> bool:
            for ref in self.ingests():
                # A pull that has just been cancelled may still write its file, or end it.
                with suppress(grpc.RpcError):
                    self._call(_CONTENT + "Abort", content_pb2.AbortRequest(ref=ref), Empty)
            return not self.ingests()

        wait_until(is_clear)
        for lease in self.leases():
            try:
                request = leases_pb2.DeleteRequest(id=lease, sync=True)
                self._call(_LEASES + "Delete", request, Empty)
            except grpc.RpcError as exc:
                if not isinstance(exc, grpc.Call) or exc.code() is not grpc.StatusCode.NOT_FOUND:
                    raise

    def collect_garbage(self) -> None:
        """Make containerd remove all blobs and snapshots that nothing refers to; wait for it."""
        name = "collect-garbage"
        self._call(_LEASES + "Create", leases_pb2.CreateRequest(id=name), leases_pb2.CreateResponse)
        # Deleting a lease with `sync` is the API's way to wait for a whole collection.
        self._call(_LEASES + "Delete", leases_pb2.DeleteRequest(id=name, sync=True), Empty)

    def _call(
        self, path: str, request: Message, answer: type[Message], *, streams: bool = False
    ) -> Any:
        """Return the response, or an iterator of the responses of a stream."""
        make: Any = self._channel.unary_stream if streams else self._channel.unary_unary
        method = make(path, type(request).SerializeToString, answer.FromString)
        return method(request, timeout=100, metadata=_METADATA)
