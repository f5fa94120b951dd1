"""An in-memory endpoint that follows all rules, or breaks a chosen one.

Pods and containers are names and folders; images are really pulled, from the suite's own registry,
and archives are unpacked with pycrictl's code.
"""

from __future__ import annotations

import io
import json
import secrets
import tarfile
import threading
import time
import urllib.request
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from urllib.error import HTTPError

import grpc
from google.protobuf.message import Message
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import PycrictlError
from tests import fakecri
from tests.copy.trees import Archive, put_at
from tests.e2e.node.images import MANIFEST_TYPE

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
"""Each fault, with the rule that it breaks."""

LIMIT, COPIES_PER_POD, SIZE_LIMIT, TRIES, TRY_S = 2, 2, 1 << 20, 3, 0.1
PACE, PAUSE_S = 0.1, 0.01
BEGIN_S: Final = 0.5
"""How long the stream of a pod waits for a first pull."""

CODES: Final = grpc.StatusCode
GIVEN_UP: Final = "given up"
Context = grpc.ServicerContext
Serves = Callable[[ServerConnection], None]


@dataclass(eq=False)
class Pull:
    """The state of one PullImage call; layers are `[progress, total]` by digest."""

    pod: str
    image: str
    is_present: bool
    layers: dict[str, list[int]] = field(default_factory=dict)
    waits: bool = False
    ended_at: float | None = None
    error: str = ""


@dataclass
class Container:
    pod: str
    image: str
    root: Path
    is_running: bool = False

    def host(self, path: str) -> Path:
        """Return the host's path of a path in the container."""
        return self.root / path.lstrip("/")


@dataclass
class Planted:
    """Implements the CRI calls that the suite makes.

    Attributes:
        folder: for the root directories of containers.
        fault: one of `FAULTS`; empty for none.
        is_strict: it has one slot, and refuses pulls instead of queueing them.
    """

    folder: Path
    fault: str
    is_strict: bool
    port: int = 0
    lock: threading.Condition = field(default_factory=threading.Condition)
    pods: dict[str, cri_pb2.PodSandboxConfig] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)
    images: dict[str, list[bytes]] = field(default_factory=dict)
    pulls: list[Pull] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    line: list[Pull] = field(default_factory=list)
    streams: dict[str, tuple[Serves, str]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    copies: Counter[str] = field(default_factory=Counter)

    def offer_to(self, fake: fakecri.FakeServer) -> None:
        for name in ("StopPodSandbox", "RemovePodSandbox"):
            fake.offer(name, None)
        for name in filter(lambda name: name.startswith("on_"), dir(self)):
            fake.offer(name.removeprefix("on_"), getattr(self, name))

    def check(
        self,
        is_good: object,
        context: Context,
        code: grpc.StatusCode,
        text: str,
        unless: str | None = None,
    ) -> None:
        """Refuse a call that is not good, unless ``unless`` is the planted fault."""
        if not is_good and self.fault != unless:
            context.abort(code, text)

    def check_known(self, is_known: object, context: Context, what: str) -> None:
        is_broken = self.fault == f"an unknown {what} is an internal error"
        code = CODES.INTERNAL if is_broken else CODES.NOT_FOUND
        self.check(is_known, context, code, f"no such {what}")

    # Pods, containers, images

    def on_RunPodSandbox(self, request: Any, context: Context) -> Message:
        options = request.config.linux.security_context.namespace_options
        has_users = options.HasField("userns_options")
        self.check(not has_users, context, CODES.INVALID_ARGUMENT, "no user namespaces")
        made = uuid.uuid4().hex * 2
        self.pods[made] = request.config
        return cri_pb2.RunPodSandboxResponse(pod_sandbox_id=made)

    def on_CreateContainer(self, request: Any, _: Context) -> Message:
        made, image = uuid.uuid4().hex * 2, request.config.image.image
        root = self.folder / made
        for name in ("tmp", "srv", "data"):
            (root / name).mkdir(parents=True)
        for mount in request.config.mounts:
            (root / mount.container_path.lstrip("/")).symlink_to(mount.host_path)
        for layer in self.images[image]:
            with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
                shown = [one for one in archive if one.name.startswith("srv/")]
                archive.extraction_filter = lambda member, _: member  # Python 3.12 warns if unset
                archive.extractall(root, shown)
        self.containers[made] = Container(request.pod_sandbox_id, image, root)
        return cri_pb2.CreateContainerResponse(container_id=made)

    def on_StartContainer(self, request: Any, _: Context) -> None:
        self.containers[request.container_id].is_running = True

    def on_StopContainer(self, request: Any, _: Context) -> None:
        self.containers[request.container_id].is_running = False

    def on_RemoveImage(self, request: Any, _: Context) -> None:
        self.images.pop(request.image.image, None)

    # Pulls

    def on_PullImage(self, request: Any, context: Context) -> Message:
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
        # The registry may still delay the fetch after the client has left.
        fetching = threading.Thread(target=self._fetch, args=[pull], daemon=True)
        fetching.start()
        while fetching.is_alive() and context.is_active():
            fetching.join(PAUSE_S)
        with self.lock:
            pull.error = pull.error or (GIVEN_UP if fetching.is_alive() else "")
            pull.ended_at = time.monotonic()
            if takes_slot:
                self.running.remove(image)
            self.lock.notify_all()
        self.check(not pull.error, context, CODES.NOT_FOUND, pull.error)
        return cri_pb2.PullImageResponse(image_ref=image)

    def _is_full(self, image: str) -> bool:
        taken = set(self.running)
        return image not in taken and len(taken) >= (1 if self.is_strict else LIMIT)

    def _wait(self, pull: Pull, context: Context) -> None:
        """Wait for a slot; the lock is held."""
        if self.is_strict:
            for _ in range(TRIES):
                if self._is_full(pull.image):
                    self.lock.wait_for(lambda: False, TRY_S)
            is_odd = self.fault == "the error has another name"
            text = f"{'TooMany' if is_odd else 'TooManyPullingInParallelErr'}: one is being pulled"
            is_free = not self._is_full(pull.image)
            self.check(is_free, context, CODES.RESOURCE_EXHAUSTED, text)
            return
        self.line.append(pull)
        first = -1 if self.fault == "the last comes first" else 0
        while self._is_full(pull.image) or (
            self.line[first] is not pull and pull.image not in self.running
        ):
            self.lock.wait(PAUSE_S)
            if not context.is_active():
                pull.error, pull.ended_at = GIVEN_UP, time.monotonic()
                break
        self.line.remove(pull)
        self.check(not pull.error, context, CODES.CANCELLED, pull.error)

    def _fetch(self, pull: Pull) -> None:
        host, _, rest = pull.image.partition("/")
        repository, _, tag = rest.rpartition(":")
        base = f"http://{host}/v2/{repository}"
        accept = {"Accept": MANIFEST_TYPE}
        manifest = urllib.request.Request(f"{base}/manifests/{tag}", headers=accept)
        found = []
        try:
            with urllib.request.urlopen(manifest, timeout=60) as answer:
                layers = json.loads(answer.read())["layers"]
            if pull.is_present:
                return
            pull.layers = {layer["digest"]: [0, layer["size"]] for layer in layers}
            for digest, numbers in pull.layers.items():
                data = bytearray()
                with urllib.request.urlopen(f"{base}/blobs/{digest}", timeout=60) as answer:
                    while piece := answer.read1(PIECE_BYTES):
                        data += piece
                        numbers[0] = len(data)
                found.append(bytes(data))
        except OSError as exc:
            pull.error = str(exc)
            if isinstance(exc, HTTPError):
                exc.close()
        else:
            if not pull.error:
                self.images[pull.image] = found

    # Progress

    def on_ImagePullProgress(self, request: Any, context: Context) -> Message:
        pod, id = request.pod_sandbox_id, request.container_id
        unless, text = "a call without an ID is answered", "neither a pod nor a container is named"
        self.check(pod or id, context, CODES.INVALID_ARGUMENT, text, unless)
        self.check_known(not pod or pod in self.pods, context, "pod")
        container = self.containers.get(id)
        self.check_known(not id or container, context, "container")
        if container:
            unless = "a container need not belong to the pod"
            is_its = pod in ("", container.pod)
            self.check(is_its, context, CODES.NOT_FOUND, "no such container in that pod", unless)
            pod = container.pod
        uid = self.pods[pod].metadata.uid if pod else ""
        image = container.image if container else ""
        show = partial(self._show, uid, image, time.monotonic())
        return cri_pb2.ImagePullProgressResponse(url=self._url(show))

    def _url(self, serves: Serves, counts_for: str = "") -> str:
        is_odd = self.fault == "tokens are counted"
        token = f"stream{len(self.streams)}" if is_odd else secrets.token_urlsafe(24)
        self.streams[token] = serves, counts_for
        return f"http://127.0.0.1:{self.port}/streams/{token}"

    def _show(self, uid: str, image: str, began: float, connection: ServerConnection) -> None:
        """Send changed reports until no pull is left."""
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
                    is_recent = pull.ended_at is None or pull.ended_at > began
                    if is_mine and is_recent and image in ("", pull.image) and pull not in seen:
                        seen.append(pull)
                is_over = all(pull.ended_at for pull in seen)
                reports = [one for pull in seen for one in self._reports(pull)]
            for report in map(self._broken, reports):
                key, text = (report["image"], report.get("layer", "")), json.dumps(report)
                if sent.get(key) != text:
                    sent[key] = text
                    connection.send(text)
                    if falls and report["progress"] > 100_000:
                        falls = False
                        connection.send(json.dumps({**report, "progress": 1}))
                        connection.send(text)
        if self.fault == "nothing is an error" and not seen:
            connection.send(json.dumps({"progress": 0, "total": 0, "error": "nothing to pull"}))
        is_odd = any(map(_is_watched, reports)) and self.fault == "the stream ends with 1001"
        connection.close(1001 if is_odd else 1000)

    def _reports(self, pull: Pull) -> list[dict[str, Any]]:
        common = {"image": pull.image, **({"error": pull.error} if pull.error else {})}
        if pull.layers:
            return [
                {**common, "layer": digest, "progress": progress, "total": total}
                for digest, (progress, total) in pull.layers.items()
            ]
        is_odd = pull.is_present and self.fault == "a present image is downloaded"
        found = {**common, "progress": int(is_odd), "total": 2 * is_odd}
        if pull in self.line:
            found["queue_position"] = 1 + self.line.index(pull)
        return [found]

    def _broken(self, report: dict[str, Any]) -> dict[str, Any]:
        """Return a report of a progress stream with the fault applied."""
        match self.fault:
            case "an error is null" if _is_watched(report):
                return {**report, "error": None}
            case "totals are too large" if _is_watched(report):
                progress, total = report["progress"], report["total"]
                return {**report, "total": total + 1, "progress": progress + (progress == total)}
            case "a failure has no error" if report.get("error") != GIVEN_UP:
                return {name: value for name, value in report.items() if name != "error"}
            case "places begin at 0" if "queue_position" in report:
                return {**report, "queue_position": report["queue_position"] - 1}
        return report

    # Copies

    def _container(self, request: Any, context: Context) -> Container:
        container, path = self.containers.get(request.container_id), request.path
        self.check_known(container, context, "container to copy with")
        assert container is not None
        bad, full = CODES.INVALID_ARGUMENT, CODES.RESOURCE_EXHAUSTED
        is_absolute, unless = path.startswith("/"), "a relative path is taken"
        has_place = self.copies[container.pod] < COPIES_PER_POD
        self.check(container.is_running, context, CODES.FAILED_PRECONDITION, "it does not run")
        self.check(is_absolute, context, bad, "the path is not absolute", unless)
        self.check(".." not in path.split("/"), context, bad, "the path has an element ..")
        self.check(has_place, context, full, "too many; try again later", "copies are not counted")
        return container

    def on_CopyFromContainer(self, request: Any, context: Context) -> Message:
        container, path = self._container(request, context), request.path
        top = container.host(path.removesuffix("/.").rstrip("/") or "/")
        is_there = top.exists() or top.is_symlink()
        self.check(is_there, context, CODES.NOT_FOUND, "there is no such file")
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for one in sorted(top.iterdir()) if path.endswith("/.") else [top]:
                archive.add(one, one.name)
        data = made.getvalue()
        full, unless = CODES.RESOURCE_EXHAUSTED, "size counts one way only"
        self.check(len(data) <= SIZE_LIMIT, context, full, "larger than the limit", unless)

        def serves(connection: ServerConnection) -> None:
            for start in range(0, len(data), PIECE_BYTES):
                connection.send(bytes((FROM,)) + data[start : start + PIECE_BYTES])
            connection.send(bytes((OUTCOME,)) + b'{"status": "Success"}')

        return cri_pb2.CopyFromContainerResponse(
            url=self._url(serves, container.pod),
            size=len(data),
            checksum=zlib.crc32(data) ^ (self.fault == "the checksum is another"),
        )

    def on_CopyToContainer(self, request: Any, context: Context) -> Message:
        container = self._container(request, context)
        fits = request.size <= SIZE_LIMIT
        self.check(fits, context, CODES.RESOURCE_EXHAUSTED, "larger than the limit")
        serves = partial(self._receive, request, container)
        return cri_pb2.CopyToContainerResponse(url=self._url(serves, container.pod))

    def _receive(self, request: Any, container: Container, connection: ServerConnection) -> None:
        data, place = bytearray(), container.host(request.path)
        early = place / "early"
        try:
            while (message := connection.recv())[0] != END:
                assert isinstance(message, bytes)
                data += message[1:]
                if self.fault == "files show early" and len(data) > 2 * PIECE_BYTES:
                    early.touch()
        finally:
            if early.exists():
                early.unlink()
        is_lax = self.fault == "the checksum is not looked at"
        is_sound = is_lax or zlib.crc32(data) == request.checksum
        outcome = {"status": "Failure", "message": "not what was announced"}
        if len(data) == request.size and is_sound and container.is_running:
            try:
                self._unpack(bytes(data), place)
                outcome = {"status": "Success"}
            except (PycrictlError, tarfile.TarError) as exc:
                outcome["message"] = str(exc) or "it cannot be read"
        connection.send(bytes((OUTCOME,)) + json.dumps(outcome).encode())

    def _unpack(self, data: bytes, place: Path) -> None:
        if self.fault == "two archives are one":
            with tarfile.open(fileobj=io.BytesIO(data)) as first:
                first.getmembers()
                data = data[: first.offset] + bytes(1024)
        archive = Archive([data])
        archive.kind = None
        put_at(place, archive)
        if self.fault == "modes are lost":
            for path in place.iterdir() if place.is_dir() else ():
                path.chmod(0o755 if path.is_dir() else 0o644)

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
        if token not in self.streams or token in self.used:
            return connection.respond(HTTPStatus.NOT_FOUND, "")
        if self.fault != "a URL may be used again":
            self.used.add(token)
        serves, pod = self.streams[token]
        if request.headers.get("Upgrade"):
            self.copies[pod] += 1
            return None
        # Without an upgrade, all lines are sent together at the end.
        lines: list[str] = []
        plain: Any = SimpleNamespace(send=lines.append, close=lambda _: None)
        serves(plain)
        answer = connection.respond(HTTPStatus.OK, "".join(f"{line}\n" for line in lines))
        del answer.headers["Content-Type"]
        answer.headers["Content-Type"] = "application/x-ndjson"
        return answer

    def _connected(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        serves, pod = self.streams[connection.request.path.rpartition("/")[2]]
        with suppress(ConnectionClosed):
            serves(connection)
        self.copies[pod] -= 1


def _is_watched(report: dict[str, Any]) -> bool:
    """Return whether a report is about a layer of the pull in the `watched` fixture."""
    return "/watched-" in report["image"] and "layer" in report


@contextmanager
def serving_endpoint(folder: Path, fault: str) -> Iterator[dict[str, str]]:
    """Serve two endpoints with a fault, or with none; yield the suite's settings for them."""
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
