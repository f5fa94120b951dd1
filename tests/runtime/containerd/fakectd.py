"""A small containerd: a real gRPC server on a unix socket that answers from tables in memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from pycrictl._proto.containerd import (
    content_pb2,
    images_pb2,
    leases_pb2,
    snapshots_pb2,
    version_pb2,
)

EXPIRES: Final = {"containerd.io/gc.expire": "2030-01-01T00:00:00Z"}


@dataclass
class Lease:
    created_s: float
    holds: list[tuple[str, str]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=lambda: dict(EXPIRES))


@dataclass
class Ingest:
    offset: int
    total: int
    updated_s: float


@dataclass
class Blob:
    size: int
    created_s: float
    labels: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    """The readable bytes: the whole blob, or its end if they are fewer than ``size``."""


@dataclass
class Snapshot:
    kind: str
    created_s: float
    usage: int = 0
    labels: dict[str, str] = field(default_factory=dict)


class FakeContainerd:
    """Tables that tests fill, and the server that reads them.

    Attributes:
        calls: how often each method was called, by its short name.
        failures: statuses to answer with, by short name, until they are removed.

    Args:
        folder: where the socket is.
        others: further services on the same socket.
    """

    def __init__(self, folder: Path, *others: grpc.GenericRpcHandler) -> None:
        self.leases: dict[str, Lease] = {}
        self.ingests: dict[str, Ingest] = {}
        self.blobs: dict[str, Blob] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.images: dict[str, str] = {}
        self.snapshotter = "overlayfs"
        self.calls: Counter[str] = Counter()
        self.failures: dict[str, tuple[grpc.StatusCode, str]] = {}
        self.release = "1.6.20~fake"
        self.path = str(folder / "ctd.sock")
        self.endpoint = f"unix://{self.path}"
        self._server = grpc.server(ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers((_Router(self), *others))
        self._server.add_insecure_port(self.endpoint)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    def put_document(
        self, digest: str, document: object, created_s: float, labels: dict[str, str] | None = None
    ) -> None:
        """Store a JSON document as a complete blob."""
        data = json.dumps(document).encode()
        self.blobs[digest] = Blob(len(data), created_s, labels or {}, data)

    # Methods, by short name

    def version(self, _: Message, context: grpc.ServicerContext) -> Message:
        _require(not context.invocation_metadata() or _namespace(context) == "k8s.io", context)
        return version_pb2.VersionResponse(version=self.release)

    def list_leases(self, _: Message, __: grpc.ServicerContext) -> Message:
        answer = leases_pb2.ListResponse()
        for key, lease in list(self.leases.items()):
            answer.leases.add(id=key, created_at=stamp(lease.created_s), labels=lease.labels)
        return answer

    def list_resources(
        self, request: leases_pb2.ListResourcesRequest, context: grpc.ServicerContext
    ) -> Message:
        _require(request.id in self.leases, context)
        answer = leases_pb2.ListResourcesResponse()
        for kind, key in self.leases[request.id].holds:
            answer.resources.add(type=kind, id=key)
        return answer

    def list_statuses(self, _: Message, __: grpc.ServicerContext) -> Message:
        answer = content_pb2.ListStatusesResponse()
        for ref, ingest in list(self.ingests.items()):
            updated_at = stamp(ingest.updated_s)
            answer.statuses.add(
                ref=ref, offset=ingest.offset, total=ingest.total, updated_at=updated_at
            )
        return answer

    def list_content(
        self, request: content_pb2.ListContentRequest, _: grpc.ServicerContext
    ) -> Iterator[Message]:
        answer = content_pb2.ListContentResponse()
        for digest, blob in list(self.blobs.items()):
            if f"digest=={digest}" in request.filters or not request.filters:
                at = stamp(blob.created_s)
                answer.info.add(digest=digest, size=blob.size, created_at=at, labels=blob.labels)
        yield answer

    def read(
        self, request: content_pb2.ReadContentRequest, context: grpc.ServicerContext
    ) -> Iterator[Message]:
        _require(request.digest in self.blobs, context)
        blob = self.blobs[request.digest]
        if request.offset > blob.size:
            context.abort(grpc.StatusCode.OUT_OF_RANGE, "read past object length")
        first = max(0, request.offset - (blob.size - len(blob.data)))
        end = min(first + (request.size or len(blob.data)), len(blob.data))
        for start in range(first, end, 100_000):
            chunk = blob.data[start : min(start + 100_000, end)]
            yield content_pb2.ReadContentResponse(offset=start, data=chunk)

    def list_snapshots(
        self, request: snapshots_pb2.ListSnapshotsRequest, context: grpc.ServicerContext
    ) -> Iterator[Message]:
        self._require_snapshotter(request.snapshotter, context)
        answer = snapshots_pb2.ListSnapshotsResponse()
        for name, snapshot in list(self.snapshots.items()):
            if f"name=={name}" in request.filters or not request.filters:
                kind, at = snapshots_pb2.Kind.Value(snapshot.kind), stamp(snapshot.created_s)
                answer.info.add(name=name, kind=kind, created_at=at, labels=snapshot.labels)
        yield answer

    def usage(
        self, request: snapshots_pb2.UsageRequest, context: grpc.ServicerContext
    ) -> snapshots_pb2.UsageResponse:
        self._require_snapshotter(request.snapshotter, context)
        _require(request.key in self.snapshots, context)
        return snapshots_pb2.UsageResponse(size=self.snapshots[request.key].usage, inodes=1)

    def list_images(
        self, request: images_pb2.ListImagesRequest, _: grpc.ServicerContext
    ) -> Message:
        answer = images_pb2.ListImagesResponse()
        for name, target in list(self.images.items()):
            mine = {f"target.digest=={target}", f"name=={name}"}
            if mine & set(request.filters) or not request.filters:
                answer.images.add(name=name).target.digest = target
        return answer

    def _require_snapshotter(self, name: str, context: grpc.ServicerContext) -> None:
        if name != self.snapshotter:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"snapshotter not loaded: {name}")


_METHODS: Final[dict[str, tuple[str, type[Message], bool]]] = {
    "version.v1.Version/Version": ("version", Empty, False),
    "leases.v1.Leases/List": ("list_leases", leases_pb2.ListRequest, False),
    "leases.v1.Leases/ListResources": ("list_resources", leases_pb2.ListResourcesRequest, False),
    "content.v1.Content/ListStatuses": ("list_statuses", content_pb2.ListStatusesRequest, False),
    "content.v1.Content/List": ("list_content", content_pb2.ListContentRequest, True),
    "content.v1.Content/Read": ("read", content_pb2.ReadContentRequest, True),
    "snapshots.v1.Snapshots/List": ("list_snapshots", snapshots_pb2.ListSnapshotsRequest, True),
    "snapshots.v1.Snapshots/Usage": ("usage", snapshots_pb2.UsageRequest, False),
    "images.v1.Images/List": ("list_images", images_pb2.ListImagesRequest, False),
}


class _Router(grpc.GenericRpcHandler):
    def __init__(self, fake: FakeContainerd) -> None:
        self._fake = fake

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        known = _METHODS.get(details.method.removeprefix("/containerd.services."))
        if known is None:
            return None
        name, request_type, is_stream = known
        make = (
            grpc.unary_stream_rpc_method_handler
            if is_stream
            else grpc.unary_unary_rpc_method_handler
        )
        return make(
            self._counted(name, is_stream=is_stream),
            request_deserializer=request_type.FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )

    def _counted(self, name: str, *, is_stream: bool) -> Callable[..., Any]:
        method = getattr(self._fake, name)

        def behaviour(request: Message, context: grpc.ServicerContext) -> Any:
            self._fake.calls[name] += 1
            if failure := self._fake.failures.get(name):
                context.abort(*failure)
            if name != "version":
                assert _namespace(context) == "k8s.io", "a call without its namespace"
            return method(request, context)

        return behaviour


class Replay:
    """A recorded pull that ``advance`` plays into a fake step by step.

    The first line of the file holds the documents and the wall time of the start; each other line
    is a change of a table at ``t`` seconds.
    """

    def __init__(self, fake: FakeContainerd, path: Path) -> None:
        lines = path.read_text().splitlines()
        header = json.loads(lines[0])
        self.began_s = datetime.fromisoformat(header["began"]).timestamp()
        self._fake = fake
        self._documents: dict[str, Any] = header["documents"]
        self._changes = [json.loads(line) for line in lines[1:]]
        self.end = self._changes[-1]["t"]

    def advance(self, to_s: float) -> float:
        """Apply all changes up to ``to_s``; return the corresponding wall time.

        The changes that the recorder saw at once, such as that of a lease and of its image, are up
        to 5 ms apart.
        """
        while self._changes and self._changes[0]["t"] <= to_s + 0.005:
            change = self._changes.pop(0)
            self._apply(change["what"], change["key"], change.get("value"), change["t"])
        return self.began_s + to_s

    def _apply(self, what: str, key: str, value: dict[str, Any] | None, at_s: float) -> None:
        wall_s = self.began_s + at_s
        table: dict[str, Any] = getattr(self._fake, f"{what}s")
        if value is None:
            del table[key]
        elif what == "lease":
            holds = [tuple(resource.split(" ", 1)) for resource in value["holds"]]
            table[key] = Lease(datetime.fromisoformat(value["created"]).timestamp(), holds)
        elif what == "ingest":
            table[key] = Ingest(value["offset"], value["total"], wall_s)
        elif what == "blob":
            created_s = table[key].created_s if key in table else wall_s
            data = json.dumps(self._documents[key]).encode() if key in self._documents else b""
            table[key] = Blob(len(data) or value["size"], created_s, value["labels"], data)
        elif what == "snapshot":
            created_s = table[key].created_s if key in table else wall_s
            table[key] = Snapshot(value["kind"], created_s, value.get("usage", 0))
        else:
            table[key] = value["target"]


def stamp(wall_s: float) -> Timestamp:
    answer = Timestamp()
    answer.FromNanoseconds(int(wall_s * 1e9))
    return answer


def _namespace(context: grpc.ServicerContext) -> str | bytes:
    return dict(context.invocation_metadata()).get("containerd-namespace", "")


def _require(is_there: bool, context: grpc.ServicerContext) -> None:
    if not is_there:
        context.abort(grpc.StatusCode.NOT_FOUND, "not found")
