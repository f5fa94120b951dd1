"""A registry on the loopback, and the slow and unreliable network in front of it."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, NamedTuple, Self

from tests.serving import Handler, serving

from .images import Image, Layout

_TLS: Final = b"\x16"
"""How a handshake of TLS begins."""

_CHUNKS_PER_S: Final = 20
_MAX_CHUNK_BYTES: Final = 256 * 1024


@dataclass(frozen=True)
class Fault:
    """What happens to requests whose path `pattern` (a regular expression) is found in.

    With `status` the request is answered so. Otherwise no byte of the file from `after_bytes` on is
    sent, also not to a request that resumes with a Range: the answer stands still there, or the
    connection is cut.
    """

    pattern: str
    status: int | None = None
    after_bytes: int = 0
    stall: bool = False


class _Found(NamedTuple):
    file: IO[bytes]
    media_type: str
    digest: str = ""


class Registry:
    """A context manager that serves what was pushed, below `host`. Thread-safe.

    Its switches may be used while images are pulled.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tags: dict[str, dict[str, str]] = {}
        self._blobs: list[Path] = []
        self._rate_bytes_per_s: float | None = None
        self._next_byte_at = 0.0
        self._faults: tuple[Fault, ...] = ()
        self._authorization: str | None = None
        self._closing = False
        self._sent_bytes = 0
        self._requests: list[tuple[str, str, int]] = []
        self.host = ""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            port = stack.enter_context(serving(type("Bound", (_Handler,), {"registry": self})))
            self.host = f"127.0.0.1:{port}"
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._stack.close()

    # Images

    def push(self, layout: Layout, image: Image) -> None:
        self.add(layout.blobs, image.name, image.digest)

    def add(self, blobs: Path, name: str, digest: str) -> None:
        """Serve `repository:tag`, a manifest or an index in a folder of blobs."""
        repository, _, tag = name.rpartition(":")
        if blobs not in self._blobs:
            self._blobs.append(blobs)
        self._tags.setdefault(repository, {})[tag] = digest

    # Switches

    def limit(self, bytes_per_s: float | None) -> None:
        """Limits the bodies of all connections together; None is no limit, 0 lets nothing pass."""
        with self._changed:
            self._rate_bytes_per_s = bytes_per_s
            self._next_byte_at = time.monotonic()
            self._changed.notify_all()

    def answer(self, pattern: str, status: int) -> None:
        self._add_fault(Fault(pattern, status=status))

    def cut(self, pattern: str, *, after_bytes: int = 0) -> None:
        """Cuts the connection after so many bytes of the file; before the head if none is left."""
        self._add_fault(Fault(pattern, after_bytes=after_bytes))

    def stall(self, pattern: str, *, after_bytes: int = 0) -> None:
        """Stands still after so many bytes of the file (before the head if none is left)."""
        self._add_fault(Fault(pattern, after_bytes=after_bytes, stall=True))

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
        """The bytes of all bodies sent so far."""
        with self._changed:
            return self._sent_bytes

    @property
    def requests(self) -> list[tuple[str, str, int]]:
        """(method, path, status) of every request so far; status 0 where no head was sent."""
        with self._changed:
            return list(self._requests)

    # For the connections

    def fault(self, path: str) -> Fault | None:
        """The fault for a path; the latest added wins."""
        faults = self._faults
        return next((fault for fault in reversed(faults) if re.search(fault.pattern, path)), None)

    def authorized(self, authorization: str | None) -> bool:
        return self._authorization is None or authorization == self._authorization

    def find(self, path: str) -> _Found | None:
        """What is below a path of the registry's API, open; None if there is nothing."""
        if path == "/v2/":
            return _Found(io.BytesIO(b"{}"), "application/json")
        parts = re.fullmatch(r"/v2/(.+)/(tags|manifests|blobs)/([^/]+)", path)
        tags = self._tags.get(parts[1]) if parts else None
        if parts is None or tags is None:
            return None
        if parts[2] == "tags":
            document = json.dumps({"name": parts[1], "tags": sorted(tags)})
            return _Found(io.BytesIO(document.encode()), "application/json")
        digest = tags.get(parts[3], parts[3])
        name = digest.removeprefix("sha256:")
        file = next((blobs / name for blobs in self._blobs if (blobs / name).exists()), None)
        if file is None:
            return None
        if parts[2] == "blobs":
            return _Found(file.open("rb"), "application/octet-stream", digest)
        return _Found(file.open("rb"), json.loads(file.read_bytes())["mediaType"], digest)

    def note(self, method: str, path: str, status: int) -> None:
        with self._changed:
            self._requests.append((method, path, status))

    def chunk_bytes(self) -> int:
        """How much to send at once, so that a slow rate still flows smoothly."""
        rate = self._rate_bytes_per_s
        if rate is None:
            return _MAX_CHUNK_BYTES
        return int(min(max(rate / _CHUNKS_PER_S, 512), _MAX_CHUNK_BYTES))

    def wait_for_turn(self, size_bytes: int) -> None:
        """Returns when the limit lets the next `size_bytes` pass.

        Raises:
            ConnectionAbortedError: The registry is closed meanwhile.
        """
        with self._changed:
            while (wait_s := self._wait_s()) is None or wait_s > 0:
                self._changed.wait(wait_s)
            if self._closing:
                raise ConnectionAbortedError
            if self._rate_bytes_per_s:
                begin_at = max(self._next_byte_at, time.monotonic())
                self._next_byte_at = begin_at + size_bytes / self._rate_bytes_per_s
            self._sent_bytes += size_bytes

    def wait_for_heal(self, fault: Fault) -> None:
        """Stands still while `fault` is switched on; ConnectionAbortedError as above."""
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

    def _add_fault(self, fault: Fault) -> None:
        with self._changed:
            self._faults += (fault,)


class _Handler(Handler):
    registry: Registry

    def handle(self) -> None:
        """Answer TLS as Go's servers do; containerd 2 tries that first, then goes on without."""
        if self.connection.recv(1, socket.MSG_PEEK) == _TLS:
            self.connection.recv(65536)
            self.connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
        else:
            super().handle()

    def do_GET(self) -> None:
        registry, fault = self.registry, self.registry.fault(self.path)
        start, end = self._range()
        left_bytes = max(fault.after_bytes - start, 0) if fault else 0
        if not registry.authorized(self.headers["Authorization"]):
            return self._refuse(401, WWW_Authenticate='Basic realm="test"')
        if fault and fault.status:
            return self._refuse(fault.status)
        if fault and not left_bytes:
            if not fault.stall:
                return self._hang_up()
            registry.wait_for_heal(fault)
            fault = None
        if (found := registry.find(self.path.partition("?")[0])) is None:
            return self._refuse(404)
        with found.file as file:
            size_bytes = file.seek(0, os.SEEK_END)
            end = min(end, size_bytes)
            self._send_head(found, start, end, size_bytes)
            if self.command == "GET":
                file.seek(start)
                self._send_body(file, end - start, fault, left_bytes)

    do_HEAD = do_GET

    def _send_head(self, found: _Found, start: int, end: int, size_bytes: int) -> None:
        status = 206 if self.headers["Range"] else 200
        self.registry.note(self.command, self.path, status)
        self.send_response(status)
        self.send_header("Content-Type", found.media_type)
        self.send_header("Content-Length", str(end - start))
        if found.digest:
            self.send_header("Docker-Content-Digest", found.digest)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size_bytes}")
        self.end_headers()

    def _send_body(
        self, file: IO[bytes], size_bytes: int, fault: Fault | None, left_bytes: int
    ) -> None:
        while size_bytes:
            if fault and not left_bytes:
                if not fault.stall:
                    self.close_connection = True
                    return
                self.registry.wait_for_heal(fault)
                fault = None
            most_bytes = min(self.registry.chunk_bytes(), size_bytes)
            chunk = file.read(min(most_bytes, left_bytes) if fault else most_bytes)
            self.registry.wait_for_turn(len(chunk))
            self.wfile.write(chunk)
            size_bytes -= len(chunk)
            left_bytes -= len(chunk)

    def _range(self) -> tuple[int, int]:
        found = re.match(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "bytes=0-")
        assert found
        return int(found[1]), int(found[2]) + 1 if found[2] else 1 << 62

    def _refuse(self, status: int, **headers: str) -> None:
        self.registry.note(self.command, self.path, status)
        body = b'{"errors": [{"code": "UNKNOWN", "message": "refused on purpose"}]}'
        self.send(status, body if self.command == "GET" else b"", **headers)

    def _hang_up(self) -> None:
        self.registry.note(self.command, self.path, 0)
        self.close_connection = True
