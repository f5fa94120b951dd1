"""A slow and unreliable network in front of a registry, adjustable while pulls run."""

from __future__ import annotations

import base64
import http.client
import re
import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Self

from tests.serving import Handler, serving

_TLS: Final = b"\x16"
"""The first byte of a TLS handshake."""

_HOP_HEADERS: Final = {"connection", "keep-alive", "transfer-encoding"}
_CHUNKS_PER_S: Final = 20
_MAX_CHUNK_BYTES: Final = 256 * 1024


@dataclass(frozen=True)
class Fault:
    """A fault of requests in whose path `pattern`, a regular expression, is found.

    With `status` the response has that status, without a request to the registry. Otherwise no byte
    of the file from `after_bytes` on is sent, not even to a request that resumes with a Range: the
    response stalls there, or the connection is cut.
    """

    pattern: str
    status: int | None = None
    after_bytes: int = 0
    stall: bool = False


class Throttle:
    """A context manager: an HTTP proxy at `host` for `127.0.0.1:upstream_port`. Thread-safe.

    Only GET and HEAD pass: pushes go directly to the registry.
    """

    def __init__(self) -> None:
        self.upstream_port = 0
        self.host = ""
        self._changed = threading.Condition()
        self._rate_bytes_per_s: float | None = None
        self._limited = re.compile("")
        self._next_byte_at = 0.0
        self._faults: tuple[Fault, ...] = ()
        self._authorization: str | None = None
        self._closing = False
        self._sent_bytes = 0
        self._requests: list[tuple[str, str, int]] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            port = stack.enter_context(serving(type("Bound", (_Handler,), {"throttle": self})))
            self.host = f"127.0.0.1:{port}"
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._stack.close()

    # Switches

    def limit(self, bytes_per_s: float | None, pattern: str = "") -> None:
        """Limit the bodies of all requests together in whose path `pattern` is found.

        None is no limit, 0 blocks them.
        """
        with self._changed:
            self._rate_bytes_per_s = bytes_per_s
            self._limited = re.compile(pattern)
            self._next_byte_at = time.monotonic()
            self._changed.notify_all()

    def answer(self, pattern: str, status: int) -> None:
        self._add(Fault(pattern, status=status))

    def cut(self, pattern: str, *, after_bytes: int = 0) -> None:
        """Cut the connection after `after_bytes` of the file; before the head if none is left."""
        self._add(Fault(pattern, after_bytes=after_bytes))

    def stall(self, pattern: str, *, after_bytes: int = 0) -> None:
        """Stall after `after_bytes` of the file; before the head if none is left."""
        self._add(Fault(pattern, after_bytes=after_bytes, stall=True))

    def require_login(self, username: str, password: str) -> None:
        token = base64.b64encode(f"{username}:{password}".encode()).decode()
        with self._changed:
            self._authorization = f"Basic {token}"

    def heal(self) -> None:
        """Remove all faults and the login; stalled responses continue. The rate limit stays."""
        with self._changed:
            self._faults = ()
            self._authorization = None
            self._changed.notify_all()

    # What happened

    @property
    def sent_bytes(self) -> int:
        """The total size of the bodies passed on so far."""
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

    def note(self, method: str, path: str, status: int) -> None:
        with self._changed:
            self._requests.append((method, path, status))

    def chunk_bytes(self, path: str) -> int:
        """How much to read at once, so that a slow rate still flows smoothly."""
        rate = self._rate_for(path)
        if rate is None:
            return _MAX_CHUNK_BYTES
        return int(min(max(rate / _CHUNKS_PER_S, 512), _MAX_CHUNK_BYTES))

    def wait_for_turn(self, path: str, size_bytes: int) -> None:
        """Wait until the limit lets the next `size_bytes` of a path pass.

        Raises:
            ConnectionAbortedError: The throttle was stopped meanwhile.
        """
        with self._changed:
            while (wait_s := self._wait_s(path)) is None or wait_s > 0:
                self._changed.wait(wait_s)
            if self._closing:
                raise ConnectionAbortedError
            if rate := self._rate_for(path):
                now = time.monotonic()
                self._next_byte_at = max(self._next_byte_at, now) + size_bytes / rate
            self._sent_bytes += size_bytes

    def wait_for_heal(self, fault: Fault) -> None:
        """Wait while `fault` is active; raise ConnectionAbortedError as above."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or fault not in self._faults)
            if self._closing:
                raise ConnectionAbortedError

    def _rate_for(self, path: str) -> float | None:
        return self._rate_bytes_per_s if self._limited.search(path) else None

    def _wait_s(self, path: str) -> float | None:
        rate = self._rate_for(path)
        if self._closing or rate is None:
            return 0.0
        if rate == 0:
            return None
        return self._next_byte_at - time.monotonic()

    def _add(self, fault: Fault) -> None:
        with self._changed:
            self._faults += (fault,)


class _Handler(Handler):
    throttle: Throttle

    def handle(self) -> None:
        """Answer TLS as Go's servers do; containerd 2 tries it first and then plain HTTP."""
        if self.connection.recv(1, socket.MSG_PEEK) == _TLS:
            self.connection.recv(65536)
            self.connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
        else:
            super().handle()

    def do_GET(self) -> None:
        throttle = self.throttle
        fault = throttle.fault(self.path)
        left_bytes = max(fault.after_bytes - self._range_start(), 0) if fault else 0
        if not throttle.authorized(self.headers["Authorization"]):
            self._refuse(401, WWW_Authenticate='Basic realm="throttle"')
        elif fault and fault.status:
            self._refuse(fault.status)
        elif fault and not left_bytes and not fault.stall:
            self._hang_up()
        else:
            if fault and not left_bytes:
                throttle.wait_for_heal(fault)
                fault = None
            self._pass_on(fault, left_bytes)

    do_HEAD = do_GET

    def _pass_on(self, fault: Fault | None, left_bytes: int) -> None:
        upstream = http.client.HTTPConnection("127.0.0.1", self.throttle.upstream_port, timeout=30)
        try:
            # The Host header is kept, because the registry's own links must lead back here.
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP_HEADERS:
                    upstream.putheader(name, value)
            upstream.endheaders()
            answer = upstream.getresponse()
            self.throttle.note(self.command, self.path, answer.status)
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP_HEADERS:
                    self.send_header(name, value)
            self.end_headers()
            self._copy_body(answer, fault, left_bytes)
        finally:
            upstream.close()

    def _copy_body(
        self, answer: http.client.HTTPResponse, fault: Fault | None, left_bytes: int
    ) -> None:
        while True:
            if fault and not left_bytes:
                if not fault.stall:
                    self.close_connection = True
                    return
                self.throttle.wait_for_heal(fault)
                fault = None
            size = self.throttle.chunk_bytes(self.path)
            chunk = answer.read(min(size, left_bytes) if fault else size)
            if not chunk:
                return
            self.throttle.wait_for_turn(self.path, len(chunk))
            self.wfile.write(chunk)
            left_bytes -= len(chunk)

    def _range_start(self) -> int:
        match = re.match(r"bytes=(\d+)-", self.headers["Range"] or "")
        return int(match[1]) if match else 0

    def _refuse(self, status: int, **headers: str) -> None:
        self.throttle.note(self.command, self.path, status)
        body = b'{"errors": [{"code": "UNKNOWN", "message": "refused on purpose"}]}'
        self.send(status, body if self.command == "GET" else b"", **headers)

    def _hang_up(self) -> None:
        self.throttle.note(self.command, self.path, 0)
        self.close_connection = True
