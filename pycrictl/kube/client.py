"""A small client of the API server: JSON over HTTPS with a deadline for each call as a whole.

Enough for what a node asks and reports: lists, single objects, events. No watches.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

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
from pycrictl.tls import client_context
from pycrictl.units import escape, format_duration, quote

if TYPE_CHECKING:
    import socket
    from urllib.parse import SplitResult

    from pycrictl.kube.credential import Credential

TIMEOUT_S: Final = 1.0
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024

MERGE_PATCH: Final = "application/merge-patch+json"

_TEXT_LIMIT: Final = 300
_FAULTS: Final[dict[int, type[RuntimeFault]]] = {
    401: Denied,
    403: Denied,
    404: NotFound,
    409: AlreadyExists,
}


class KubeClient:
    """Asks the API server as the kubelet of this node.

    Each call makes a connection of its own. All methods raise

    * ConnectError: no connection, or neither side trusts the other's certificate;
    * DeadlineExceeded: no whole answer in time;
    * Denied, NotFound, AlreadyExists, RuntimeFault: the server refused, in its own words;
    * RemoteProtocolError: the answer is not JSON.

    Args:
        credential: who asks, and whom; a ConnectError if its server's address is not one.
        timeout_s: limit of each call, name resolution included.
    """

    def __init__(self, credential: Credential, *, timeout_s: float = TIMEOUT_S) -> None:
        self.node = credential.node
        self._credential = credential
        self._timeout_s = timeout_s
        self._url = parse_server(credential.server)
        self._made: ssl.SSLContext | None = None

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """Return the object or list at a path, such as ``/api/v1/pods``."""
        return self._call("GET", path, query)

    def post(self, path: str, document: Mapping[str, Any]) -> Any:
        """Create an object; return it as the server has it."""
        return self._call("POST", path, document=document, content_type="application/json")

    def patch(
        self, path: str, document: Mapping[str, Any], *, content_type: str = MERGE_PATCH
    ) -> Any:
        """Change an object; return it as the server has it."""
        return self._call("PATCH", path, document=document, content_type=content_type)

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        document: Mapping[str, Any] | None = None,
        content_type: str = "",
    ) -> Any:
        """Make a call in a thread that is left behind at the deadline.

        A socket's timeout limits one step, and the resolver takes none at all.
        """
        exchange = _Exchange(self, method, path, query, document, content_type)
        exchange.start()
        exchange.join(self._timeout_s)
        if exchange.is_alive():
            exchange.abandon()
            raise self._too_late()
        if exchange.error is not None:
            raise exchange.error
        return exchange.answer

    def _too_late(self) -> DeadlineExceeded:
        limit = format_duration(self._timeout_s)
        return DeadlineExceeded(f"the API server did not answer within {limit}")

    def _context(self) -> ssl.SSLContext:
        if self._made is None:
            self._made = tls_context(self._credential)
        return self._made


class _Exchange(threading.Thread):
    """One request and its answer."""

    def __init__(
        self,
        client: KubeClient,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        document: Mapping[str, Any] | None,
        content_type: str,
    ) -> None:
        super().__init__(name="kube", daemon=True)
        self.answer: Any = None
        self.error: PycrictlError | None = None
        self._client = client
        self._request = method, path, query, document, content_type
        self._socket: socket.socket | None = None

    def abandon(self) -> None:
        """Let the thread end soon, if it has got as far as a connection."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(2)

    def run(self) -> None:
        """Make the call and keep its outcome."""
        server = escape(self._client._credential.server)
        try:
            self.answer = self._ask()
        except PycrictlError as exc:
            self.error = exc
        except TimeoutError:
            self.error = self._client._too_late()
        except ssl.SSLCertVerificationError as exc:
            reason = escape(exc.verify_message)
            self.error = ConnectError(f"the certificate of {server} is not good: {reason}")
        except (OSError, HTTPException) as exc:
            reason = escape(getattr(exc, "strerror", None) or str(exc) or type(exc).__name__)
            self.error = ConnectError(f"cannot reach the API server at {server}: {reason.lower()}")
        except ValueError:
            self.error = RemoteProtocolError(f"the answer of {server} is not valid")

    def _ask(self) -> Any:
        method, path, query, document, content_type = self._request
        url, token = self._client._url, self._client._credential.token
        headers = {"Accept": "application/json", "User-Agent": "pycrictl", "Connection": "close"}
        headers |= {"Content-Type": content_type} if content_type else {}
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        target = url.path.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
        connection = HTTPConnection(url.hostname or "", url.port or 443)
        try:
            connection.sock = self._dial()
            body = None if document is None else json.dumps(document).encode()
            connection.request(method, target, body, headers)
            with connection.getresponse() as response:
                content = response.read(MAX_ANSWER_BYTES + 1)
        finally:
            connection.close()
        if len(content) > MAX_ANSWER_BYTES:
            raise RemoteProtocolError("the API server's answer is too long")
        if response.status >= 300:
            raise refusal(response.status, response.reason, content)
        return parse(content)

    def _dial(self) -> ssl.SSLSocket:
        client = self._client
        host, name = client._url.hostname or "", client._credential.server_name
        context = client._context()
        self._socket = socket.create_connection(
            (host, client._url.port or 443), timeout=client._timeout_s
        )
        try:
            return context.wrap_socket(self._socket, server_hostname=name or host)
        except BaseException:
            self._socket.close()
            raise


def refusal(status: int, reason: str, content: bytes) -> RuntimeFault:
    """Return the error of an answer that is not the object; its body may be a ``v1 Status``."""
    message = text(parsed(content).get("message"))
    line = escape(" ".join((message or reason or "no reason").split())[:_TEXT_LIMIT])
    fault = _FAULTS.get(status, RuntimeFault)
    return fault(f"the API server answered {status}: {line}", code=str(status), details=message)


def parse_server(server: str) -> SplitResult:
    """Return the address of an API server in its parts; a ConnectError if it is not one."""
    try:
        url = urlsplit(server)
        if url.hostname and (url.port or 443):  # a bad port raises when it is looked at
            return url
    except ValueError:
        pass
    raise ConnectError(f"the kubeconfig's server {quote(server)} is not a valid address")


def tls_context(credential: Credential) -> ssl.SSLContext:
    """Return the TLS settings of a client; its key never touches a disk.

    Raises:
        ConnectError: the credential cannot be used.
    """
    try:
        context = client_context(
            verifies=not credential.is_unverified, ca_data=credential.authority or None
        )
        if credential.certificate:
            # The library reads a certificate from a file only: from one that is in memory.
            with os.fdopen(os.memfd_create("credential"), "w") as file:
                file.write(f"{credential.certificate}\n{credential.key}\n")
                file.flush()
                context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        reason = escape(getattr(exc, "reason", None) or str(exc)).lower()
        raise ConnectError(f"the kubelet's credential cannot be used: {reason}") from None
    return context
