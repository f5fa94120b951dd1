"""An endpoint in memory that keeps the rules, or breaks the one that it is told to.

Pods and containers are names and folders; images are really pulled, from the suite's own registry.
"""

from __future__ import annotations

import gzip
import http.client
import io
import json
import secrets
import socket
import tarfile
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import Message
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from pycrictl._proto import cri_pb2
from tests import fakecri

from .streams import CHANNELS, END, FROM, OUTCOME, PIECE_BYTES

FAULTS: Final = {
    "a call without an ID is answered": "P3",
    "an unknown pod is an internal error": "P4",
    "an unknown container is an internal error": "P5",
    "a container need not belong to the pod": "P6",
    "tokens are counted": "P8",
    "a URL may be used again": "P9",
    "an error is null": "P14",
    "progress falls": "P18",
    "totals are too large": "P19",
    "the stream ends with 1001": "P20",
    "a present image is downloaded": "P26",
    "a failure has no error": "P29",
    "pods see each other": "P30",
    "nothing is an error": "P31",
    "a relative path is taken": "C2",
    "the checksum is another": "C8",
    "modes are lost": "C19",
    "the checksum is not looked at": "C25",
    "files show early": "C26",
    "two archives are one": "C29",
    "copies are not counted": "C31",
    "size counts one way only": "C33",
    "the last comes first": "L2",
    "a present image takes a slot": "L4",
    "places begin at 0": "L8",
    "the error has another name": "L9",
    "equal pulls share an answer": "L11",
}
"""What is broken, and the rule that says so."""

LIMIT, COPIES_PER_POD, SIZE_LIMIT, TRIES, TRY_S = 2, 2, 1 << 20, 3, 0.1
PACE, PAUSE_S = 0.1, 0.01
BEGIN_S: Final = 0.5
"""How long a pull may take to begin after a stream of its pod has."""

CODES: Final = grpc.StatusCode
GIVEN_UP: Final = "given up"
Report = dict[str, Any]


def _larger(report: Report) -> Report:
    is_whole = report["progress"] == report["total"]
    return {**report, "total": report["total"] + 1, "progress": report["progress"] + is_whole}


REPORTS: Final[dict[str, Callable[[Report], Report]]] = {
    "an error is null": lambda report: {**report, "error": None} if _watched(report) else report,
    "totals are too large": lambda report: _larger(report) if _watched(report) else report,
    "a failure has no error": lambda report: {
        name: value for name, value in report.items() if name != "error" or value == GIVEN_UP
    },
    "places begin at 0": lambda report: (
        {**report, "queue_position": report["queue_position"] - 1}
        if "queue_position" in report
        else report
    ),
}
"""Faults of single messages of a progress stream."""


def _watched(report: Report) -> bool:
    """Whether it is about a layer of the one pull that is watched from its beginning to its end."""
    return "/watched-" in report["image"] and "layer" in report


class Refusal(Exception):
    """A call that is answered with an error."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Pull:
    """One PullImage call: layers as `[progress, total]` by digest, and how it stands."""

    pod: str
    image: str
    layers: dict[str, list[int]] = field(default_factory=dict)
    is_present: bool = False
    waits: bool = False
    is_over: bool = False
    ended_at: float = 0.0
    error: str = ""

    def end(self) -> None:
        self.is_over, self.ended_at = True, time.monotonic()

    def fail(self, error: str, code: grpc.StatusCode = CODES.CANCELLED) -> Refusal:
        self.error = error
        return Refusal(code, error)


@dataclass
class Container:
    pod: str
    image: str
    root: Path
    mounts: dict[str, str]
    is_running: bool = False

    def host(self, path: str) -> Path:
        """The path on this machine of a path in the container."""
        for inside, outside in self.mounts.items():
            if path == inside or path.startswith(inside + "/"):
                return Path(outside + path.removeprefix(inside))
        return self.root / path.lstrip("/")


class Planted:
    """The calls of the CRI that the suite makes.

    Args:
        folder: for the containers.
        fault: one of `FAULTS`; empty for none.
        is_strict: it lets nobody wait, and has one slot.
    """

    def __init__(self, folder: Path, fault: str, *, is_strict: bool) -> None:
        self.folder = folder
        self.fault = fault
        self.is_strict = is_strict
        self.lock = threading.Condition()
        self.pods: dict[str, cri_pb2.PodSandboxConfig] = {}
        self.containers: dict[str, Container] = {}
        self.images: dict[str, list[bytes]] = {}
        self.pulls: list[Pull] = []
        self.running: list[str] = []
        self.line: list[object] = []
        self.tokens: dict[str, tuple[Callable[[ServerConnection], None], str]] = {}
        self.copies: list[str] = []
        self._served: dict[int, Callable[[ServerConnection], None]] = {}
        self.port = 0

    def offer_to(self, fake: fakecri.FakeServer) -> None:
        for name in ("StopPodSandbox", "RemovePodSandbox"):
            fake.offer(name, None)
        for name in filter(lambda name: name.startswith("on_"), dir(self)):
            fake.offer(name.removeprefix("on_"), partial(self._answer, getattr(self, name)))

    @staticmethod
    def _answer(answer: fakecri.Maker, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return answer(request, context)
        except Refusal as exc:
            return fakecri.Status(exc.code, str(exc))

    def check(
        self, is_good: object, code: grpc.StatusCode, text: str, unless: str | None = None
    ) -> None:
        """Refuse a call that is not good, unless the fault is that such calls are taken."""
        if not is_good and self.fault != unless:
            raise Refusal(code, text)

    def check_known(self, is_known: object, what: str) -> None:
        is_broken = self.fault == f"an unknown {what} is an internal error"
        self.check(is_known, CODES.INTERNAL if is_broken else CODES.NOT_FOUND, f"no such {what}")

    # Pods, containers, images

    def on_RunPodSandbox(self, request: Any, _: Any) -> Message:
        options = request.config.linux.security_context.namespace_options
        has_users = options.HasField("userns_options")
        self.check(not has_users, CODES.INVALID_ARGUMENT, "no user namespaces")
        made = uuid.uuid4().hex * 2
        self.pods[made] = request.config
        return cri_pb2.RunPodSandboxResponse(pod_sandbox_id=made)

    def on_CreateContainer(self, request: Any, _: Any) -> Message:
        made, image = uuid.uuid4().hex * 2, request.config.image.image
        root = self.folder / made
        for name in ("tmp", "srv", "data"):
            (root / name).mkdir(parents=True)
        for layer in self.images[image]:
            with tarfile.open(fileobj=io.BytesIO(gzip.decompress(layer))) as archive:
                for one in [one for one in archive if one.name.startswith("srv/")]:
                    archive.extract(one, root)
        mounts = {one.container_path: one.host_path for one in request.config.mounts}
        self.containers[made] = Container(request.pod_sandbox_id, image, root, mounts)
        return cri_pb2.CreateContainerResponse(container_id=made)

    def on_StartContainer(self, request: Any, _: Any) -> None:
        self.containers[request.container_id].is_running = True

    def on_StopContainer(self, request: Any, _: Any) -> None:
        self.containers[request.container_id].is_running = False

    def on_RemoveImage(self, request: Any, _: Any) -> None:
        self.images.pop(request.image.image, None)

    # Pulls

    def on_PullImage(self, request: Any, context: grpc.ServicerContext) -> Message:
        image, pod = request.image.image, request.sandbox_config.metadata.uid
        pull = Pull(pod, image, is_present=image in self.images)
        takes_slot = not pull.is_present or self.fault == "a present image takes a slot"
        with self.lock:
            if self.fault == "equal pulls share an answer" and image in self.running:
                self.lock.wait_for(lambda: image not in self.running)
                return cri_pb2.PullImageResponse(image_ref=image)
            self.pulls.append(pull)
            if takes_slot:
                self._wait(pull, context)
                self.running.append(image)
        try:
            with ExitStack() as connections:
                self._fetch(connections, pull, context)
        except (OSError, http.client.HTTPException):
            raise pull.fail(GIVEN_UP) from None
        finally:
            with self.lock:
                pull.end()
                if takes_slot:
                    self.running.remove(image)
                self.lock.notify_all()
        return cri_pb2.PullImageResponse(image_ref=image)

    def _is_full(self, image: str) -> bool:
        taken = set(self.running)
        return image not in taken and len(taken) >= (1 if self.is_strict else LIMIT)

    def _wait(self, pull: Pull, context: grpc.ServicerContext) -> None:
        """Wait for a slot; the lock is held."""
        if self.is_strict:
            for _ in range(TRIES):
                if self._is_full(pull.image):
                    self.lock.wait_for(lambda: False, TRY_S)
            is_odd = self.fault == "the error has another name"
            word = "TooMany" if is_odd else "TooManyPullingInParallelErr"
            is_free = not self._is_full(pull.image)
            self.check(is_free, CODES.RESOURCE_EXHAUSTED, f"{word}: one image is being pulled")
            return
        place = object()
        self.line.append(place)
        pull.waits = True
        first = -1 if self.fault == "the last comes first" else 0
        try:
            while self._is_full(pull.image) or (
                self.line[first] is not place and pull.image not in self.running
            ):
                self.lock.wait(PAUSE_S)
                if not context.is_active():
                    pull.end()
                    raise pull.fail(GIVEN_UP)
        finally:
            self.line.remove(place)
            pull.waits = False

    def _fetch(self, connections: ExitStack, pull: Pull, context: grpc.ServicerContext) -> None:
        host, _, rest = pull.image.partition("/")
        repository, _, tag = rest.rpartition(":")

        def get(path: str) -> http.client.HTTPResponse:
            connection = http.client.HTTPConnection(host, timeout=60)
            connections.callback(connection.close)
            accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
            connection.request("GET", f"/v2/{repository}/{path}", headers=accept)
            context.add_callback(partial(_shut_down, connection.sock))  # a client that leaves
            answer = connection.getresponse()
            if answer.status != 200:
                raise pull.fail(f"{path}: {answer.status}", CODES.NOT_FOUND)
            return answer

        manifest = json.loads(get(f"manifests/{tag}").read())
        if pull.is_present:
            return
        pull.layers = {layer["digest"]: [0, layer["size"]] for layer in manifest["layers"]}
        found = []
        for digest, numbers in pull.layers.items():
            data = bytearray()
            answer = get(f"blobs/{digest}")
            while piece := answer.read1(PIECE_BYTES):
                data += piece
                numbers[0] = len(data)
            if len(data) != numbers[1]:
                raise pull.fail(GIVEN_UP)
            found.append(bytes(data))
        self.images[pull.image] = found

    # Progress

    def on_ImagePullProgress(self, request: Any, _: Any) -> Message:
        pod, id = request.pod_sandbox_id, request.container_id
        unless, text = "a call without an ID is answered", "neither a pod nor a container is named"
        self.check(pod or id, CODES.INVALID_ARGUMENT, text, unless)
        self.check_known(not pod or pod in self.pods, "pod")
        container = self.containers.get(id)
        self.check_known(not id or container, "container")
        if container:
            unless = "a container need not belong to the pod"
            text = "no such container in that pod"
            self.check(pod in ("", container.pod), CODES.NOT_FOUND, text, unless)
            pod = container.pod
        uid = self.pods[pod].metadata.uid if pod else ""
        image = container.image if container else ""
        show = partial(self._show, uid, image, time.monotonic())
        return cri_pb2.ImagePullProgressResponse(url=self._url(show))

    def _url(self, serves: Callable[[ServerConnection], None], *, counts: str = "") -> str:
        token = secrets.token_urlsafe(24)
        if self.fault == "tokens are counted":
            token = f"stream{len(self.tokens)}"
        self.tokens[token] = (serves, counts)
        return f"http://127.0.0.1:{self.port}/streams/{token}"

    def _show(self, uid: str, image: str, began: float, connection: ServerConnection) -> None:
        """Send what changes until no pull is left."""
        sent: dict[tuple[str, str], str] = {}
        seen: list[Pull] = []
        falls = self.fault == "progress falls"
        end_at = time.monotonic() + BEGIN_S
        is_over = False
        while not (is_over and (seen or time.monotonic() > end_at)):
            time.sleep(PAUSE_S)
            with self.lock:
                for pull in self.pulls:
                    is_mine = pull.pod == uid or self.fault == "pods see each other"
                    is_recent = not pull.is_over or pull.ended_at > began
                    if is_mine and is_recent and image in ("", pull.image) and pull not in seen:
                        seen.append(pull)
                is_over = all(pull.is_over for pull in seen)
                reports = [one for pull in seen for one in self._reports(pull)]
            for report in map(REPORTS.get(self.fault, dict), reports):
                key, text = (report["image"], report.get("layer", "")), json.dumps(report)
                if sent.get(key) != text:
                    sent[key] = text
                    connection.send(text)
                    if falls and report["progress"] > 100_000:
                        falls = False
                        connection.send(json.dumps({**report, "progress": 1}))
                        connection.send(text)
        if self.fault == "nothing is an error" and all(pull.pod != uid for pull in self.pulls):
            connection.send(json.dumps({"progress": 0, "total": 0, "error": "nothing to pull"}))
        is_odd = any(map(_watched, reports)) and self.fault == "the stream ends with 1001"
        connection.close(1001 if is_odd else 1000)

    def _reports(self, pull: Pull) -> list[Report]:
        common = {"image": pull.image, **({"error": pull.error} if pull.error else {})}
        if pull.layers:
            return [
                {**common, "layer": digest, "progress": progress, "total": total}
                for digest, (progress, total) in pull.layers.items()
            ]
        is_odd = pull.is_present and self.fault == "a present image is downloaded"
        found: Report = {**common, "progress": int(is_odd), "total": 2 * is_odd}
        if pull.waits:
            found["queue_position"] = 1 + [one for one in self.pulls if one.waits].index(pull)
        return [found]

    # Copies

    def _container(self, id: str, path: str) -> Container:
        self.check_known(container := self.containers.get(id), "container to copy with")
        assert container is not None
        bad, full = CODES.INVALID_ARGUMENT, CODES.RESOURCE_EXHAUSTED
        self.check(container.is_running, CODES.FAILED_PRECONDITION, "the container does not run")
        self.check(path.startswith("/"), bad, "it is not absolute", "a relative path is taken")
        self.check(".." not in path.split("/"), bad, "the path has an element ..")
        has_place = self.copies.count(container.pod) < COPIES_PER_POD
        self.check(has_place, full, "too many copies; try again later", "copies are not counted")
        return container

    def on_CopyFromContainer(self, request: Any, _: Any) -> Message:
        container, path = self._container(request.container_id, request.path), request.path
        top = container.host(path.removesuffix("/.").rstrip("/") or "/")
        self.check(top.exists() or top.is_symlink(), CODES.NOT_FOUND, "there is no such file")
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for one in sorted(top.iterdir()) if path.endswith("/.") else [top]:
                archive.add(one, one.name)
        data = made.getvalue()
        full, unless = CODES.RESOURCE_EXHAUSTED, "size counts one way only"
        self.check(len(data) <= SIZE_LIMIT, full, "larger than the limit", unless)

        def serves(connection: ServerConnection) -> None:
            for start in range(0, len(data), PIECE_BYTES):
                connection.send(bytes((FROM,)) + data[start : start + PIECE_BYTES])
            connection.send(bytes((OUTCOME,)) + b'{"status": "Success"}')

        return cri_pb2.CopyFromContainerResponse(
            url=self._counted(container.pod, serves),
            size=len(data),
            checksum=zlib.crc32(data) ^ (self.fault == "the checksum is another"),
        )

    def on_CopyToContainer(self, request: Any, _: Any) -> Message:
        container = self._container(request.container_id, request.path)
        fits = request.size <= SIZE_LIMIT
        self.check(fits, CODES.RESOURCE_EXHAUSTED, "larger than the limit")
        serves = partial(self._receive, request, container)
        return cri_pb2.CopyToContainerResponse(url=self._counted(container.pod, serves))

    def _counted(self, pod: str, serves: Callable[[ServerConnection], None]) -> str:
        def counted(connection: ServerConnection) -> None:
            try:
                serves(connection)
            finally:
                self.copies.remove(pod)

        return self._url(counted, counts=pod)

    def _receive(self, request: Any, container: Container, connection: ServerConnection) -> None:
        data = bytearray()
        early = container.host(request.path) / "early"
        try:
            while True:
                message = connection.recv()
                assert isinstance(message, bytes)
                if message[0] == END:
                    break
                data += message[1:]
                if self.fault == "files show early" and len(data) > 2 * PIECE_BYTES:
                    early.touch()
        finally:
            with suppress(NotADirectoryError):
                early.unlink(missing_ok=True)
        try:
            if len(data) != request.size:
                raise ValueError("another size than announced")
            is_lax = self.fault == "the checksum is not looked at"
            if zlib.crc32(data) != request.checksum and not is_lax:
                raise ValueError("another checksum than announced")
            if not container.is_running:
                raise ValueError("the container has ended")
            self._unpack(bytes(data), container.host(request.path))
            outcome = {"status": "Success"}
        except (ValueError, OSError, tarfile.TarError) as exc:
            outcome = {"status": "Failure", "message": str(exc) or "it cannot be read"}
        connection.send(bytes((OUTCOME,)) + json.dumps(outcome).encode())

    def _unpack(self, data: bytes, to: Path) -> None:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            entries = archive.getmembers()
            if data[archive.offset :].strip(b"\0") and self.fault != "two archives are one":
                raise ValueError("something follows the end")
            names = {one.name.rstrip("/"): one for one in entries}
            for one in entries:
                self._judge(one, names)
            is_folder = to.is_dir()
            if not is_folder and (not to.parent.is_dir() or len(entries) != 1):
                raise ValueError("the destination is not there")
            entries = [one for one in entries if not one.isdev()]
            for one in entries:
                place = to / one.name if is_folder else to
                if place.exists() and place.is_dir() != one.isdir():
                    raise ValueError("a directory and a file do not go over each other")
            for one in entries:
                if not is_folder:
                    one.name = to.name
                if self.fault == "modes are lost":
                    one.mode = 0o644
                archive.extract(one, to if is_folder else to.parent)

    @staticmethod
    def _judge(one: tarfile.TarInfo, names: dict[str, tarfile.TarInfo]) -> None:
        parts = one.name.split("/")
        above = ["/".join(parts[:n]) for n in range(1, len(parts))]
        if ".." in parts or "\0" in one.name or one.name.startswith("/"):
            raise ValueError("a name leads out, or cannot be one")
        if any(name in names and names[name].issym() for name in above):
            raise ValueError("a file below a link")
        if one.islnk() and one.linkname not in names:
            raise ValueError("a hard link to nothing")
        if one.size < 0 or "size" in one.pax_headers:
            raise ValueError("a size that cannot be")

    # The stream server

    @contextmanager
    def serving_streams(self) -> Iterator[None]:
        with serve(
            self._connected,
            "127.0.0.1",
            0,
            subprotocols=[CHANNELS],
            select_subprotocol=lambda _, offered: CHANNELS if CHANNELS in offered else None,
            process_request=self._request,
            compression=None,
            max_size=None,
        ) as server:
            self.port = server.socket.getsockname()[1]
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield

    def _request(self, connection: ServerConnection, request: Request) -> Response | None:
        token = request.path.rpartition("/")[2]
        if token not in self.tokens:
            return Response(404, "Not Found", Headers({"Content-Length": "0"}), b"")
        serves, counts = self.tokens[token]
        if self.fault != "a URL may be used again":
            del self.tokens[token]
        if request.headers.get("Upgrade"):
            self._served[id(connection)] = serves
            if counts:
                self.copies.append(counts)
            return None
        # Without an upgrade: all lines at once, when there are no more.
        lines: list[str] = []

        class Plain:
            send = staticmethod(lines.append)
            close = staticmethod(lambda _: None)

        serves(Plain)  # type: ignore[arg-type]  # as far as it is used
        body = "".join(f"{line}\n" for line in lines).encode()
        headers = Headers(
            {"Content-Length": str(len(body)), "Content-Type": "application/x-ndjson"}
        )
        return Response(200, "OK", headers, body)

    def _connected(self, connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            self._served.pop(id(connection))(connection)


def _shut_down(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


@contextmanager
def serving_endpoint(folder: Path, fault: str) -> Iterator[dict[str, str]]:
    """Two endpoints with a fault, or with none; what the suite is to know of them."""
    with ExitStack() as stack:
        for name in ("wait", "strict"):
            planted = Planted(folder / "roots", fault, is_strict=name == "strict")
            stack.enter_context(planted.serving_streams())
            planted.offer_to(stack.enter_context(fakecri.serve(str(folder / name), threads=64)))
        yield {
            "CONFORMANCE_ENDPOINT": f"unix://{folder / 'wait'}",
            "CONFORMANCE_RETRY_ENDPOINT": f"unix://{folder / 'strict'}",
            "CONFORMANCE_RETRY_S": str(TRIES * TRY_S),
            "CONFORMANCE_LIMIT": str(LIMIT),
            "CONFORMANCE_COPIES_PER_POD": str(COPIES_PER_POD),
            "CONFORMANCE_COPY_SIZE_LIMIT": str(SIZE_LIMIT),
            "CONFORMANCE_URL_S": "0",
            "CONFORMANCE_PACE": str(PACE),
        }
