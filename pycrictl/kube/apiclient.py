"""A client of the API server for commands and threads: JSON over HTTPS, with urllib3.

The agent's client (``asyncapi``) shares the credential and the errors. Each request has its own
connection and thread, since neither the resolver nor TLS has a deadline: at the deadline the
caller returns and abandons the thread.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from pycrictl.base.errors import (
    AlreadyExists,
    ConnectError,
    DeadlineExceeded,
    Denied,
    NotFound,
    PycrictlError,
    RemoteProtocolError,
    RuntimeFault,
    reason_of,
)
from pycrictl.base.foreign import mapping, parse, parsed, text
from pycrictl.base.threads import call_in_thread
from pycrictl.base.tls import client_context, load_pair, os_error_of
from pycrictl.base.units import TEXT_LIMIT, escape, format_duration, quote
from pycrictl.kube.credential import Credential

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
"""The limit for one event of a watch; an object has up to 1.5 MiB."""

_KUBELET: Final = "system:node:"
_FAULTS: Final[dict[int, type[RuntimeFault]]] = {
    401: Denied,
    403: Denied,
    404: NotFound,
    409: AlreadyExists,
}


class Expired(PycrictlError):
    """A watch cannot resume from its resource version; the objects must be listed again."""


class ApiServer:
    """The API server, and the credential for it, which may rotate.

    The clients' calls raise

    * ConnectError: no connection, or one side does not trust the other's certificate;
    * DeadlineExceeded: no whole answer in time;
    * Denied, NotFound, AlreadyExists, Expired, RuntimeFault: refused, with the server's message;
    * RemoteProtocolError: the answer is not JSON;
    * any error of ``load``.

    Args:
        load: reads the credential, which may have been renewed.
        reread_s: the age at which the credential is read again. Tokens are valid for an hour or
            more, and are renewed after four fifths of that.
    """

    def __init__(self, load: Callable[[], Credential], *, reread_s: float = 30.0) -> None:
        self._reread_s = reread_s
        self._load = load
        self._lock = threading.Lock()
        self._current: tuple[Credential, ssl.SSLContext] | None = None
        self._read_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the credential has to be read again, which may take a while."""
        return self._current is None or time.monotonic() - self._read_at >= self._reread_s

    def current(self) -> tuple[Credential, ssl.SSLContext]:
        """Return the credential and its TLS settings, which change only with the credential."""
        with self._lock:
            if self._current is None or self.is_due:
                try:
                    fresh = self._load()
                    _check_server(fresh.server)
                    if self._current is None or fresh != self._current[0]:
                        self._current = fresh, _tls_context(fresh)
                except PycrictlError:
                    if self._current is None:
                        raise
                    # It is being replaced right now: keep the current one.
                self._read_at = time.monotonic()
            return self._current

    def refusal(self, status: int, reason: str, content: bytes) -> PycrictlError:
        """Return the error for an unsuccessful response; its body may be a ``v1 Status``."""
        if status == 401:
            self._read_at = 0.0  # reload it: it may have been renewed
        if status == 410:
            return Expired("the resource version is too old")
        message = text(parsed(content).get("message"))
        line = escape(" ".join((message or reason or "no reason").split())[:TEXT_LIMIT])
        fault = _FAULTS.get(status, RuntimeFault)
        return fault(f"the API server answered {status}: {line}", code=str(status), details=message)

    def unreached(self, exc: OSError) -> ConnectError:
        """Return the error for a request without a response."""
        known = f" at {escape(self._current[0].server)}" if self._current is not None else ""
        if isinstance(exc, ssl.SSLCertVerificationError):
            reason = escape(exc.verify_message)
            return ConnectError(f"the certificate of the API server{known} is not valid: {reason}")
        reason = escape(reason_of(exc) or type(exc).__name__)[:TEXT_LIMIT]
        return ConnectError(f"cannot reach the API server{known}: {reason}")


class ApiClient:
    """Calls to the API server; errors as in ``ApiServer``.

    Args:
        timeout_s: limit of each call, name resolution included.
    """

    def __init__(self, load: Callable[[], Credential], *, timeout_s: float = 1.0) -> None:
        self._server = ApiServer(load)
        self._timeout_s = timeout_s

    @cached_property
    def node(self) -> str:
        """The node's name, from its kubelet's user name; for others, or before 1.28, the host's."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        review_of_self: Any = {}
        with suppress(Denied, NotFound):
            review_of_self = self.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
        user = text(mapping(review_of_self, "status", "userInfo").get("username"))
        is_kubelet = user.startswith(_KUBELET)
        return user.removeprefix(_KUBELET) if is_kubelet else self._server.current()[0].node

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        return self._call("GET", f"{path}?{urlencode(query)}" if query else path)

    def post(self, path: str, document: Mapping[str, Any]) -> Any:
        return self._call("POST", path, document)

    def patch(self, path: str, document: Mapping[str, Any]) -> Any:
        return self._call("PATCH", path, document)

    def _call(self, method: str, target: str, document: Mapping[str, Any] | None = None) -> Any:
        outcome = call_in_thread(partial(self._ask, method, target, document))
        try:
            return outcome.result(self._timeout_s)
        except TimeoutError:
            raise late(self._timeout_s) from None

    def _ask(self, method: str, target: str, document: Mapping[str, Any] | None) -> Any:
        import urllib3  # noqa: PLC0415 - the import takes 50 ms

        credential, context = self._server.current()
        headers = headers_for(credential, method, has_body=document is not None)
        try:
            timeout = urllib3.Timeout(total=self._timeout_s)
            with urllib3.PoolManager(ssl_context=context, timeout=timeout) as pool:
                answer = pool.request(
                    method,
                    credential.server.rstrip("/") + target,
                    headers=headers,
                    body=None if document is None else json.dumps(document).encode(),
                    preload_content=False,
                    redirect=False,
                    retries=False,
                )
                content = answer.read(MAX_ANSWER_BYTES + 1)
        except urllib3.exceptions.HTTPError as exc:
            error = os_error_of(exc)
            if isinstance(error, TimeoutError) and error.errno is None:  # ours, not ETIMEDOUT
                raise late(self._timeout_s) from None
            raise self._server.unreached(error) from None
        if answer.status >= 300:
            raise self._server.refusal(answer.status, answer.reason or "", content)
        return read_document(content)


def headers_for(credential: Credential, method: str, *, has_body: bool) -> dict[str, str]:
    headers = {"Accept": "application/json", "User-Agent": "pycrictl"}
    if has_body:
        kind = "merge-patch+json" if method == "PATCH" else "json"
        headers["Content-Type"] = f"application/{kind}"
    if credential.token:
        headers["Authorization"] = f"Bearer {credential.token}"
    return headers


def late(limit_s: float) -> DeadlineExceeded:
    limit = format_duration(limit_s)
    return DeadlineExceeded(f"the API server did not answer within {limit}")


def read_document(content: bytes | bytearray) -> Any:
    if len(content) > MAX_ANSWER_BYTES:
        raise RemoteProtocolError("the API server's answer is too long")
    try:
        return parse(content)
    except ValueError:
        raise RemoteProtocolError("the answer of the API server is not valid JSON") from None


async def events_of(body: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """Iterate over the events in the body of a watch; an incomplete last line is dropped.

    Raises:
        Expired: the watch cannot continue; the objects must be listed again.
        RuntimeFault: the server ends the watch for another reason.
        RemoteProtocolError: a line is too long, or is not an event.
    """
    rest = b""
    async for data in body:
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > MAX_EVENT_BYTES:
            raise RemoteProtocolError("a line of the API server's watch is too long")
        for line in filter(bytes.strip, lines):
            yield _event(line)


def _event(line: bytes) -> dict[str, Any]:
    event = parsed(line)
    if not isinstance(event.get("object"), dict):
        raise RemoteProtocolError("the API server's watch sent a line that is not an event")
    if event.get("type") != "ERROR":
        return event
    status = event["object"]
    if status.get("code") == 410:
        raise Expired("the resource version is too old")
    raise RuntimeFault(escape(text(status.get("message"), TEXT_LIMIT) or "the watch failed"))


def _check_server(server: str) -> None:
    try:
        url = urlsplit(server)
        if url.hostname and (url.port or 443):  # reading a bad port raises
            return
    except ValueError:
        pass
    raise ConnectError(f"the kubeconfig's server {quote(server)} is not a valid address")


def _tls_context(credential: Credential) -> ssl.SSLContext:
    try:
        context = client_context(ca_data=credential.authority or None)
        if credential.certificate:
            load_pair(context, credential.certificate.encode(), credential.key.encode())
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        reason = escape(getattr(exc, "reason", None) or str(exc)).lower()
        raise ConnectError(f"the kubelet's credential cannot be used: {reason}") from None
    return context
