"""A registry behind a slow and unreliable network, which is switched while pulls run."""

from __future__ import annotations

import base64
import io
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from tests.serving import Handler, QuietServer

from .images import Image, Layout

_TLS: Final = b"\x16"
"""How a handshake of TLS begins."""

_RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")
_CHUNKS_PER_S: Final = 20
_MAX_CHUNK_BYTES: Final = 256 * 1024


@dataclass(frozen=True)
class Fault:
    """What happens to requests whose path `pattern` (a regular expression) is found in.

    With `status` the request is answered so. Otherwise no byte of the
    file from `after_bytes` on is sent, also not to a request that resumes with a Range: the answer
    stands still there, or the connection is cut.
    """

    pattern: str
    status: int | None = None
    after_bytes: int = 0
    stall: bool = False


@dataclass(frozen=True)
class _Content:
    """A file of the registry; for a manifest, its media type."""

    path: Path
    digest: str
    media_type: str = "application/octet-stream"


class Throttle:
    """A registry on a loopback port. Thread-safe. Images are pulled from `host`."""

    def __init__(self) -> None:
        self._contents: dict[str, _Content] = {}
        self._changed = threading.Condition()
        self._rate_bytes_per_s: float | None = None
        self._next_byte_at = 0.0
        self._faults: tuple[Fault, ...] = ()
        self._authorization: str | None = None
        self._closing = False
        self._sent_bytes = 0
        self._requests: list[tuple[str, str, int]] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.throttle = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    # Images

    def push(self, layout: Layout, image: Image) -> None:
        repository, _, tag = image.name.rpartition(":")
        self.add(layout.blob, repository, image.digest, tag)

    def add(self, blob: Callable[[str], Path], repository: str, digest: str, tag: str = "") -> None:
        """Serves a manifest, also by a tag, and all that it refers to."""
        root, path = f"/v2/{repository}", blob(digest)
        manifest = json.loads(path.read_bytes())
        for name in filter(None, (digest, tag)):
            content = _Content(path, digest, manifest["mediaType"])
            self._contents[f"{root}/manifests/{name}"] = content
        for one in manifest.get("manifests", ()):
            self.add(blob, repository, one["digest"])
        for one in (*manifest.get("layers", ()), *filter(None, [manifest.get("config")])):
            self._contents[f"{root}/blobs/{one['digest']}"] = _Content(
                blob(one["digest"]), one["digest"]
            )

    def content(self, path: str) -> _Content | None:
        return self._contents.get(path)

    def tags(self, repository: str) -> list[str]:
        start = f"/v2/{repository}/manifests/"
        names = [path.removeprefix(start) for path in self._contents if path.startswith(start)]
        return [name for name in names if ":" not in name]

    # Switches

    def limit(self, bytes_per_s: float | None) -> None:
        """Limits the bodies of all connections together; None is no limit, 0 lets nothing pass."""
        with self._changed:
            self._rate_bytes_per_s = bytes_per_s
            self._next_byte_at = time.monotonic()
            self._changed.notify_all()

    def answer(self, pattern: str, status: int) -> None:
        self._add(Fault(pattern, status=status))

    def cut(self, pattern: str, *, after_bytes: int = 0) -> None:
        self._add(Fault(pattern, after_bytes=after_bytes))

    def stall(self, pattern: str, *, after_bytes: int = 0) -> None:
        self._add(Fault(pattern, after_bytes=after_bytes, stall=True))

    def require_login(self, username: str, password: str) -> None:
        token = base64.b64encode(f"{username}:{password}".encode()).decode()
        with self._changed:
            self._authorization = f"Basic {token}"

    def heal(self) -> None:
        """Removes all faults and the login; what stalled goes on. The rate limit stays."""
        with self._changed:
            self._faults = ()
            self._authorization = None
            self._changed.notify_all()

    # What happened

    @property
    def sent_bytes(self) -> int:
        with self._changed:
            return self._sent_bytes

    @property
    def requests(self) -> list[tuple[str, str, int]]:
        with self._changed:
            return list(self._requests)

    # For the connections

    def fault(self, path: str) -> Fault | None:
        faults = self._faults
        return next((fault for fault in reversed(faults) if re.search(fault.pattern, path)), None)

    def authorized(self, authorization: str | None) -> bool:
        return self._authorization is None or authorization == self._authorization

    def note(self, method: str, path: str, status: int) -> None:
        with self._changed:
            self._requests.append((method, path, status))

    def chunk_bytes(self) -> int:
        """How much to read at once, so that a slow rate still flows smoothly."""
        rate = self._rate_bytes_per_s
        if rate is None:
            return _MAX_CHUNK_BYTES
        return int(min(max(rate / _CHUNKS_PER_S, 512), _MAX_CHUNK_BYTES))

    def wait_for_turn(self, size_bytes: int) -> None:
        """Returns when the limit lets the next `size_bytes` pass."""
        with self._changed:
            while (wait_s := self._wait_s()) is None or wait_s > 0:
                self._changed.wait(wait_s)
            if self._closing:
                raise ConnectionAbortedError
            if self._rate_bytes_per_s:
                now = time.monotonic()
                self._next_byte_at = max(self._next_byte_at, now) + (
                    size_bytes / self._rate_bytes_per_s
                )
            self._sent_bytes += size_bytes

    def wait_for_heal(self, fault: Fault) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or fault not in self._faults)
            if self._closing:
                raise ConnectionAbortedError

    def _wait_s(self) -> float | None:
        if self._closing or self._rate_bytes_per_s is None:
            return 0.0
        if self._rate_bytes_per_s == 0:
            return None
        return self._next_byte_at - time.monotonic()

    def _add(self, fault: Fault) -> None:
        with self._changed:
            self._faults += (fault,)


class _Server(QuietServer):
    throttle: Throttle


class _Handler(Handler):
    server: _Server

    def handle(self) -> None:
        """Answer TLS as Go's servers do; containerd 2 tries that first, then goes on without."""
        if self.connection.recv(1, socket.MSG_PEEK) == _TLS:
            self.connection.recv(65536)
            self.connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
        else:
            super().handle()

    def do_GET(self) -> None:
        throttle = self.server.throttle
        fault = throttle.fault(self.path)
        start, _ = self._range(0)
        left_bytes = max(fault.after_bytes - start, 0) if fault else 0
        if not throttle.authorized(self.headers["Authorization"]):
            self._refuse(401)
        elif fault and fault.status:
            self._refuse(fault.status)
        elif fault and not left_bytes and not fault.stall:
            self._hang_up()
        else:
            if fault and not left_bytes:
                throttle.wait_for_heal(fault)
                fault = None
            self._answer(throttle, fault, left_bytes)

    do_HEAD = do_GET

    def _answer(self, throttle: Throttle, fault: Fault | None, left_bytes: int) -> None:
        path = self.path.partition("?")[0]
        if path == "/v2/":
            self._send_document({})
        elif found := re.fullmatch("/v2/(.+)/tags/list", path):
            self._send_document({"name": found[1], "tags": throttle.tags(found[1])})
        elif (content := throttle.content(path)) is None:
            kind = "MANIFEST" if "/manifests/" in path else "BLOB"
            self._refuse(404, f"{kind}_UNKNOWN")
        else:
            with content.path.open("rb") as file:
                size_bytes = file.seek(0, io.SEEK_END)
                start, end = self._range(size_bytes)
                if start >= end > 0:
                    return self._refuse(416)
                status = 206 if self.headers["Range"] else 200
                throttle.note(self.command, self.path, status)
                self.send_response_only(status)
                self.send_header("Content-Type", content.media_type)
                self.send_header("Content-Length", str(end - start))
                self.send_header("Docker-Content-Digest", content.digest)
                if status == 206:
                    self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size_bytes}")
                self.end_headers()
                file.seek(start)
                if self.command != "HEAD":
                    self._send_body(throttle, file, end - start, fault, left_bytes)

    def _send_body(
        self,
        throttle: Throttle,
        file: IO[bytes],
        size_bytes: int,
        fault: Fault | None,
        left_bytes: int,
    ) -> None:
        while size_bytes > 0:
            if fault and not left_bytes:
                if not fault.stall:
                    self.close_connection = True
                    return
                throttle.wait_for_heal(fault)
                fault = None
            size = min(throttle.chunk_bytes(), size_bytes)
            chunk = file.read(min(size, left_bytes) if fault else size)
            throttle.wait_for_turn(len(chunk))
            self.wfile.write(chunk)
            left_bytes -= len(chunk)
            size_bytes -= len(chunk)

    def _send_document(self, document: object) -> None:
        self.server.throttle.note(self.command, self.path, 200)
        self.send_document(200, document)

    def _range(self, size_bytes: int) -> tuple[int, int]:
        found = _RANGE.fullmatch(self.headers["Range"] or "bytes=0-")
        assert found is not None
        return int(found[1]), min(int(found[2] or size_bytes) + 1, size_bytes)

    def _refuse(self, status: int, code: str = "UNKNOWN") -> None:
        self.server.throttle.note(self.command, self.path, status)
        message = code.replace("_", " ").lower() if status == 404 else "refused on purpose"
        body = json.dumps({"errors": [{"code": code, "message": message}]}).encode()
        self.send_response_only(status)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="throttle"')
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _hang_up(self) -> None:
        self.server.throttle.note(self.command, self.path, 0)
        self.close_connection = True
