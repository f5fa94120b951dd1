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
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.message import Message
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from pycrictl._proto import cri_pb2

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


class Refusal(Exception):
    """A call that is answered with an error."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def refuse(code: grpc.StatusCode, message: str) -> NoReturn:
    """Answer with an error."""
    raise Refusal(code, message)


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


@dataclass
class Container:
    """A folder, and the pod that it is in."""

    id: str
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


class Planted(grpc.GenericRpcHandler):
    """The calls of the CRI that the suite makes.

    Args:
        folder: for the containers.
        fault: one of `FAULTS`; empty for none.
        is_strict: it lets nobody wait, and has one slot.
        images: of another endpoint of the same runtime.
    """

    def __init__(self, folder: Path, fault: str, *, is_strict: bool = False) -> None:
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

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Find the function that answers a call."""
        name = details.method.rpartition("/")[2]
        answer = getattr(self, f"on_{name}", None)
        if answer is None:
            return None
        request = getattr(cri_pb2, f"{name}Request")

        def call(message: Message, context: grpc.ServicerContext) -> Any:
            try:
                return answer(message, context)
            except Refusal as exc:
                context.abort(exc.code, str(exc))

        return grpc.unary_unary_rpc_method_handler(
            call, request.FromString, lambda message: message.SerializeToString()
        )

    # Pods, containers, images

    def on_RunPodSandbox(self, request: Any, _: Any) -> Message:
        if request.config.linux.security_context.namespace_options.HasField("userns_options"):
            refuse(CODES.INVALID_ARGUMENT, "no user namespaces")
        made = uuid.uuid4().hex * 2
        self.pods[made] = request.config
        return cri_pb2.RunPodSandboxResponse(pod_sandbox_id=made)

    def on_StopPodSandbox(self, request: Any, _: Any) -> Message:
        return cri_pb2.StopPodSandboxResponse()

    def on_RemovePodSandbox(self, request: Any, _: Any) -> Message:
        self.pods.pop(request.pod_sandbox_id, None)
        return cri_pb2.RemovePodSandboxResponse()

    def on_CreateContainer(self, request: Any, _: Any) -> Message:
        made = uuid.uuid4().hex * 2
        root = self.folder / made
        for name in ("tmp", "srv", "data"):
            (root / name).mkdir(parents=True)
        for layer in self.images[request.config.image.image]:
            with tarfile.open(fileobj=io.BytesIO(gzip.decompress(layer))) as archive:
                wanted = [one for one in archive if one.name.startswith("srv/")]
                for one in wanted:
                    archive.extract(one, root)
        mounts = {one.container_path: one.host_path for one in request.config.mounts}
        image = request.config.image.image
        self.containers[made] = Container(made, request.pod_sandbox_id, image, root, mounts)
        return cri_pb2.CreateContainerResponse(container_id=made)

    def on_StartContainer(self, request: Any, _: Any) -> Message:
        self.containers[request.container_id].is_running = True
        return cri_pb2.StartContainerResponse()

    def on_StopContainer(self, request: Any, _: Any) -> Message:
        self.containers[request.container_id].is_running = False
        return cri_pb2.StopContainerResponse()

    def on_ImageStatus(self, request: Any, _: Any) -> Message:
        found = cri_pb2.ImageStatusResponse()
        if request.image.image in self.images:
            found.image.id = request.image.image
        return found

    def on_RemoveImage(self, request: Any, _: Any) -> Message:
        self.images.pop(request.image.image, None)
        return cri_pb2.RemoveImageResponse()

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
            self._fetch(pull, context)
            return cri_pb2.PullImageResponse(image_ref=image)
        finally:
            with self.lock:
                pull.is_over, pull.ended_at = True, time.monotonic()
                if takes_slot:
                    self.running.remove(image)
                self.lock.notify_all()

    def _is_full(self, image: str) -> bool:
        taken = set(self.running)
        return image not in taken and len(taken) >= (1 if self.is_strict else LIMIT)

    def _wait(self, pull: Pull, context: grpc.ServicerContext) -> None:
        """Wait for a slot; the lock is held."""
        if self.is_strict:
            for _ in range(TRIES):
                if self._is_full(pull.image):
                    self.lock.wait_for(lambda: False, TRY_S)
            if self._is_full(pull.image):
                word = "TooManyPullingInParallelErr"
                if self.fault == "the error has another name":
                    word = "TooMany"
                refuse(CODES.RESOURCE_EXHAUSTED, f"{word}: one image is being pulled")
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
                    pull.error, pull.is_over = "given up", True
                    pull.ended_at = time.monotonic()
                    refuse(CODES.CANCELLED, "given up")
        finally:
            self.line.remove(place)
            pull.waits = False

    def _fetch(self, pull: Pull, context: grpc.ServicerContext) -> None:
        with ExitStack() as connections:
            try:
                self._fetch_by(connections, pull, context)
            except (OSError, http.client.HTTPException):
                pull.error = "given up"
                refuse(CODES.CANCELLED, pull.error)

    def _fetch_by(self, connections: ExitStack, pull: Pull, context: grpc.ServicerContext) -> None:
        host, _, rest = pull.image.partition("/")
        repository, _, tag = rest.rpartition(":")

        def get(path: str) -> http.client.HTTPResponse:
            connection = http.client.HTTPConnection(host, timeout=60)
            connections.callback(connection.close)
            accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
            connection.request("GET", f"/v2/{repository}/{path}", headers=accept)
            sock = connection.sock
            context.add_callback(lambda: _shut_down(sock))  # a client that leaves
            answer = connection.getresponse()
            if answer.status != 200:
                pull.error = f"{path}: {answer.status}"
                refuse(CODES.NOT_FOUND, pull.error)
            return answer

        manifest = json.loads(get(f"manifests/{tag}").read())
        if pull.is_present:
            return
        sizes = {layer["digest"]: layer["size"] for layer in manifest["layers"]}
        pull.layers = {digest: [0, size] for digest, size in sizes.items()}
        found = []
        for digest in sizes:
            data = bytearray()
            answer = get(f"blobs/{digest}")
            while piece := answer.read1(PIECE_BYTES):
                data += piece
                pull.layers[digest][0] = len(data)
            if len(data) != sizes[digest]:
                pull.error = "given up"
                refuse(CODES.CANCELLED, pull.error)
            found.append(bytes(data))
        self.images[pull.image] = found

    # Progress

    def on_ImagePullProgress(self, request: Any, _: Any) -> Message:
        pod, image = request.pod_sandbox_id, ""
        if not (pod or request.container_id) and self.fault != "a call without an ID is answered":
            refuse(CODES.INVALID_ARGUMENT, "neither a pod nor a container is named")
        if pod and pod not in self.pods:
            is_broken = self.fault == "an unknown pod is an internal error"
            refuse(CODES.INTERNAL if is_broken else CODES.NOT_FOUND, "no such pod")
        if request.container_id:
            container = self.containers.get(request.container_id)
            if container is None:
                is_broken = self.fault == "an unknown container is an internal error"
                refuse(CODES.INTERNAL if is_broken else CODES.NOT_FOUND, "no such container")
            is_lax = self.fault == "a container need not belong to the pod"
            if pod not in ("", container.pod) and not is_lax:
                refuse(CODES.NOT_FOUND, "no such container in that pod")
            pod, image = container.pod, container.image
        uid = self.pods[pod].metadata.uid if pod else ""
        began = time.monotonic()
        return cri_pb2.ImagePullProgressResponse(
            url=self._url(lambda connection: self._show(connection, uid, image, began))
        )

    def _url(self, serves: Callable[[ServerConnection], None], *, counts: str = "") -> str:
        token = secrets.token_urlsafe(24)
        if self.fault == "tokens are counted":
            token = f"stream{len(self.tokens)}"
        self.tokens[token] = (serves, counts)
        return f"http://127.0.0.1:{self.port}/streams/{token}"

    def _messages(self, uid: str, image: str, began: float, send: Callable[[str], None]) -> bool:
        """Send what changes until no pull is left; return whether one of four layers was there."""
        sent: dict[tuple[str, str], str] = {}
        seen: list[Pull] = []
        falls = self.fault == "progress falls"
        end_at = time.monotonic() + BEGIN_S
        while True:
            with self.lock:
                for pull in self.pulls:
                    is_mine = pull.pod == uid or self.fault == "pods see each other"
                    is_recent = not pull.is_over or pull.ended_at > began
                    if is_mine and is_recent and image in ("", pull.image) and pull not in seen:
                        seen.append(pull)
                is_over = all(pull.is_over for pull in seen)
                reports = [one for pull in seen for one in self._reports(pull)]
            for report in reports:
                key = report.get("image", ""), report.get("layer", "")
                text = json.dumps(report)
                if sent.get(key) != text:
                    sent[key] = text
                    send(text)
                    if falls and report["progress"] > 100_000:
                        falls = False
                        send(json.dumps({**report, "progress": 1}))
                        send(text)
            if is_over and (seen or time.monotonic() > end_at):
                has_any = any(pull.pod == uid for pull in self.pulls)
                if not has_any and self.fault == "nothing is an error":
                    send(json.dumps({"progress": 0, "total": 0, "error": "nothing to pull"}))
                return any(len(pull.layers) > 3 for pull in seen)
            time.sleep(PAUSE_S)

    def _reports(self, pull: Pull) -> list[dict[str, Any]]:
        error: dict[str, Any] = {"error": pull.error} if pull.error else {}
        if self.fault == "a failure has no error" and pull.error != "given up":
            error = {}
        if self.fault == "an error is null" and len(pull.layers) > 3:
            error = {"error": None}
        more = 1 if self.fault == "totals are too large" and len(pull.layers) > 3 else 0
        if not pull.layers:
            found: dict[str, Any] = {"image": pull.image, "progress": 0, "total": 0, **error}
            if pull.is_present and self.fault == "a present image is downloaded":
                found |= {"progress": 1, "total": 2}
            waiting = [one for one in self.pulls if one.waits]
            if pull.waits:
                first = 0 if self.fault == "places begin at 0" else 1
                found["queue_position"] = first + waiting.index(pull)
            return [found]
        return [
            {
                "image": pull.image,
                "layer": digest,
                "progress": progress + (more if progress == total else 0),
                "total": total + more,
                **error,
            }
            for digest, (progress, total) in pull.layers.items()
        ]

    def _show(self, connection: ServerConnection, uid: str, image: str, began: float) -> None:
        has_many = self._messages(uid, image, began, connection.send)
        is_odd = has_many and self.fault == "the stream ends with 1001"
        connection.close(1001 if is_odd else 1000)

    # Copies

    def _container(self, id: str, path: str) -> Container:
        container = self.containers.get(id)
        if container is None:
            refuse(CODES.NOT_FOUND, "no such container")
        if not container.is_running:
            refuse(CODES.FAILED_PRECONDITION, "the container does not run")
        if not path.startswith("/") and self.fault != "a relative path is taken":
            refuse(CODES.INVALID_ARGUMENT, "the path is not absolute")
        if ".." in path.split("/"):
            refuse(CODES.INVALID_ARGUMENT, "the path has an element ..")
        if self.copies.count(container.pod) >= COPIES_PER_POD:
            if self.fault != "copies are not counted":
                refuse(CODES.RESOURCE_EXHAUSTED, "too many copies of the pod; try again later")
        return container

    def on_CopyFromContainer(self, request: Any, _: Any) -> Message:
        container = self._container(request.container_id, request.path)
        path = request.path
        wants_contents = path.endswith("/.")
        top = container.host(path.removesuffix("/.").rstrip("/") or "/")
        if not top.exists() and not top.is_symlink():
            refuse(CODES.NOT_FOUND, "there is no such file")
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for one in sorted(top.iterdir()) if wants_contents else [top]:
                archive.add(one, one.name)
        data = made.getvalue()
        if len(data) > SIZE_LIMIT and self.fault != "size counts one way only":
            refuse(CODES.RESOURCE_EXHAUSTED, "larger than the limit")
        wrong = 1 if self.fault == "the checksum is another" else 0

        def serves(connection: ServerConnection) -> None:
            for start in range(0, len(data), PIECE_BYTES):
                connection.send(bytes((FROM,)) + data[start : start + PIECE_BYTES])
            connection.send(bytes((OUTCOME,)) + b'{"status": "Success"}')

        return cri_pb2.CopyFromContainerResponse(
            url=self._counted(container.pod, serves),
            size=len(data),
            checksum=zlib.crc32(data) ^ wrong,
        )

    def on_CopyToContainer(self, request: Any, _: Any) -> Message:
        container = self._container(request.container_id, request.path)
        if request.size > SIZE_LIMIT:
            refuse(CODES.RESOURCE_EXHAUSTED, "larger than the limit")
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
        """Serve the URLs, in threads."""
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


def _stop(server: grpc.Server) -> None:
    server.stop(None).wait()


@contextmanager
def serving_endpoint(folder: Path, fault: str) -> Iterator[dict[str, str]]:
    """Two endpoints with a fault, or with none; what the suite is to know of them.

    Args:
        folder: an existing one with a short path.
        fault: one of `FAULTS`.
    """
    with ExitStack() as stack:
        for name in ("wait", "strict"):
            planted = Planted(folder / "roots", fault, is_strict=name == "strict")
            stack.enter_context(planted.serving_streams())
            server = grpc.server(ThreadPoolExecutor(64))
            server.add_generic_rpc_handlers((planted,))
            server.add_insecure_port(f"unix:{folder / name}")
            server.start()
            stack.callback(partial(_stop, server))
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
