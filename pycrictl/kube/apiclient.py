"""A client of the API server: JSON over HTTPS, for blocking threads and for coroutines.

Each request has its own connection and thread, since neither the resolver nor TLS has a deadline:
at the deadline the caller returns and abandons the thread. So no request is ever sent on a
connection that the server has closed, or that was opened with an earlier credential.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urlencode, urlsplit

from pycrictl.errors import (
    AlreadyExists,
    ConnectError,
    DeadlineExceeded,
    Denied,
    NotFound,
    PycrictlError,
    RemoteProtocolError,
    RuntimeFault,
)
from pycrictl.foreign import parse, parsed, text
from pycrictl.kube.credential import Credential
from pycrictl.tls import client_context, load_pair
from pycrictl.units import escape, format_duration, quote

TIMEOUT_S: Final = 1.0

REREAD_S: Final = 30.0
"""The age at which the credential is read again. Tokens are valid for an hour or more, and are
renewed after four fifths of that."""

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
MAX_LINE_BYTES: Final = 8 * 1024 * 1024
"""The limit for one event of a watch; an object has up to 1.5 MiB."""

SILENT_S: Final = 45
"""How long TCP may receive nothing from the server, keepalives included; watches may be idle."""

_TEXT_LIMIT: Final = 300
_FAULTS: Final[dict[int, type[RuntimeFault]]] = {
    401: Denied,
    403: Denied,
    404: NotFound,
    409: AlreadyExists,
}


class Expired(PycrictlError):
    """A watch cannot resume from its resource version; the objects must be listed again."""


class ApiRequest(NamedTuple):
    method: str
    path: str
    query: Mapping[str, str] | None = None
    document: Mapping[str, Any] | None = None


class ApiBase:
    """Requests with a credential that may rotate.

    All calls raise

    * ConnectError: no connection, or neither side trusts the other's certificate;
    * DeadlineExceeded: no whole answer in time;
    * Denied, NotFound, AlreadyExists, Expired, RuntimeFault: refused, with the server's message;
    * RemoteProtocolError: the answer is not JSON;
    * any error of ``load``.

    Args:
        load: reads the credential, which may have been renewed.
        timeout_s: limit of each call, name resolution included, but not of watches.
    """

    user_agent = "pycrictl"
    timeout_s = TIMEOUT_S

    def __init__(self, load: Callable[[], Credential], *, timeout_s: float | None = None) -> None:
        self.calls = 0
        self.failures = 0
        self._load = load
        self._timeout_s = timeout_s or self.timeout_s
        self._lock = threading.Lock()
        self._current: tuple[Credential, ssl.SSLContext] | None = None
        self._read_at = 0.0

    def too_late(self) -> DeadlineExceeded:
        limit = format_duration(self._timeout_s)
        return DeadlineExceeded(f"the API server did not answer within {limit}")

    def _ready(self) -> tuple[Credential, ssl.SSLContext]:
        with self._lock:
            if self._current is None or time.monotonic() - self._read_at >= REREAD_S:
                try:
                    fresh = self._load()
                    _parse_server(fresh.server)
                    self._current = fresh, _tls_context(fresh)
                except PycrictlError:
                    if self._current is None:
                        raise
                    # It is being replaced right now: keep the current one.
                self._read_at = time.monotonic()
            return self._current


class ApiClient(ApiBase):
    @property
    def node(self) -> str:
        return self._ready()[0].node

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        return self._call(ApiRequest("GET", path, query))

    def post(self, path: str, document: Mapping[str, Any]) -> Any:
        return self._call(ApiRequest("POST", path, document=document))

    def patch(self, path: str, document: Mapping[str, Any]) -> Any:
        return self._call(ApiRequest("PATCH", path, document=document))

    def _call(self, request: ApiRequest) -> Any:
        exchange = ApiExchange(self, request, read_document, self._timeout_s)
        try:
            return exchange.outcome.result(self._timeout_s)
        except TimeoutError:
            raise self.too_late() from None
        finally:
            exchange.abandon()


class ApiExchange(threading.Thread):
    """One request, which starts at once, and its response.

    ``take`` reads a successful response; ``outcome`` has its result, or an error as in
    ``ApiBase``. The server may be silent for ``silence_s``.
    """

    def __init__(
        self,
        client: ApiBase,
        request: ApiRequest,
        take: Callable[[HTTPResponse], Any],
        silence_s: float,
    ) -> None:
        super().__init__(name="kube", daemon=True)
        self.outcome: Future[Any] = Future()
        self.outcome.set_running_or_notify_cancel()  # callers cannot cancel it
        self._client = client
        self._request = request
        self._take = take
        self._silence_s = silence_s
        self._socket: socket.socket | None = None
        self._is_abandoned = False
        client.calls += 1
        self.start()

    def abandon(self) -> None:
        self._is_abandoned = True
        if self._socket is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def run(self) -> None:
        client = self._client
        server = "the API server"
        try:
            credential, context = client._ready()
            server = f"the API server at {escape(credential.server)}"
            self.outcome.set_result(self._ask(credential, context))
            return
        except PycrictlError as exc:
            error = exc
        except ssl.SSLCertVerificationError as exc:
            reason = escape(exc.verify_message)
            error = ConnectError(f"the certificate of {server} is not valid: {reason}")
        except (OSError, HTTPException) as exc:
            reason = escape(getattr(exc, "strerror", None) or str(exc) or type(exc).__name__)
            error = ConnectError(f"cannot reach {server}: {reason.lower()[:_TEXT_LIMIT]}")
            if isinstance(exc, TimeoutError) and exc.errno is None:  # ours, not ETIMEDOUT
                error = client.too_late()
        except ValueError:
            error = RemoteProtocolError(f"the answer of {server} is not valid JSON")
        except BaseException as exc:
            self.outcome.set_exception(exc)
            return
        client.failures += 1
        self.outcome.set_exception(error)

    def _ask(self, credential: Credential, context: ssl.SSLContext) -> Any:
        method, path, query, document = self._request
        url = _parse_server(credential.server)
        headers = {
            "Accept": "application/json",
            "User-Agent": self._client.user_agent,
            "Connection": "close",
        }
        if document is not None:
            kind = "merge-patch+json" if method == "PATCH" else "json"
            headers["Content-Type"] = f"application/{kind}"
        if credential.token:
            headers["Authorization"] = f"Bearer {credential.token}"
        target = url.path.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
        host, port = url.hostname or "", url.port or 443
        with closing(HTTPConnection(host, port)) as connection:
            connection.sock = self._connected(host, port, credential.server_name, context)
            body = None if document is None else json.dumps(document).encode()
            connection.request(method, target, body, headers)
            with connection.getresponse() as response:
                if response.status >= 300:
                    if response.status == 401:
                        self._client._read_at = 0.0  # reload it: it may have been renewed
                    raise _refusal(response.status, response.reason, _content(response))
                return self._take(response)

    def _connected(self, host: str, port: int, name: str, context: ssl.SSLContext) -> socket.socket:
        plain = socket.create_connection((host, port), timeout=self._client._timeout_s)
        self._socket = plain
        try:
            _notice_silence(plain)
            self._socket = context.wrap_socket(
                plain, server_hostname=name or host, suppress_ragged_eofs=False
            )
            self._socket.settimeout(self._silence_s)
        except BaseException:
            self._socket.close()
            raise
        if self._is_abandoned:  # before the socket existed
            self.abandon()
        return self._socket


def _notice_silence(sock: socket.socket) -> None:
    """Make a socket fail if the other end is silent for ``SILENT_S`` (tcp(7))."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        sock.setsockopt(socket.IPPROTO_TCP, option, SILENT_S // 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_S * 1000)


def _content(response: HTTPResponse) -> bytes:
    content = response.read(MAX_ANSWER_BYTES + 1)
    if len(content) > MAX_ANSWER_BYTES:
        raise RemoteProtocolError("the API server's answer is too long")
    return content


def read_document(response: HTTPResponse) -> Any:
    return parse(_content(response))


def read_events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    while line := response.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise RemoteProtocolError("a line of the API server's watch is too long")
        if not line.strip():
            continue
        event = parse(line)
        if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
            raise RemoteProtocolError("the API server's watch sent no event")
        if event.get("type") == "ERROR":
            raise _of_status(event["object"])
        yield event


def _refusal(status: int, reason: str, content: bytes) -> PycrictlError:
    """Return the error for an unsuccessful response; its body may be a ``v1 Status``."""
    if status == 410:
        return Expired("the resource version is too old")
    message = text(parsed(content).get("message"))
    line = escape(" ".join((message or reason or "no reason").split())[:_TEXT_LIMIT])
    fault = _FAULTS.get(status, RuntimeFault)
    return fault(f"the API server answered {status}: {line}", code=str(status), details=message)


def _of_status(status: Mapping[str, Any]) -> PycrictlError:
    if status.get("code") == 410:
        return Expired("the resource version is too old")
    return RuntimeFault(escape(text(status.get("message"), _TEXT_LIMIT) or "the watch failed"))


def _parse_server(server: str) -> SplitResult:
    try:
        url = urlsplit(server)
        if url.hostname and (url.port or 443):  # reading a bad port raises
            return url
    except ValueError:
        pass
    raise ConnectError(f"the kubeconfig's server {quote(server)} is not a valid address")


def _tls_context(credential: Credential) -> ssl.SSLContext:
    try:
        context = client_context(
            verifies=not credential.is_unverified, ca_data=credential.authority or None
        )
        if credential.certificate:
            load_pair(context, credential.certificate.encode(), credential.key.encode())
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        reason = escape(getattr(exc, "reason", None) or str(exc)).lower()
        raise ConnectError(f"the kubelet's credential cannot be used: {reason}") from None
    return context
