"""Tests the connection from this node to a registry; each request takes at most two seconds.

The steps are DNS, TCP, TLS, then HTTP by the OCI distribution specification: access, time to the
first byte, and the speed of one bounded range. HTTP proxies are not used.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from pycrictl import noderoot
from pycrictl.foreign import count, mappings, parsed, text, texts
from pycrictl.progress import registries
from pycrictl.tls import client_context
from pycrictl.units import format_bytes, format_duration

if TYPE_CHECKING:
    from pycrictl.containerd.config_toml import Site

STEP_S: Final = 2.0
NO_ANSWER: Final = "no answer in time"
RANGE_BYTES: Final = 1 << 20

_ANSWER_BYTES: Final = 4 << 20
_EXPIRED: Final = 10  # X509_V_ERR_CERT_HAS_EXPIRED


class Step(NamedTuple):
    """One step of a test; ``is_good`` is False if it failed, None if it was left out."""

    name: str
    is_good: bool | None
    text: str


class Route(NamedTuple):
    """The steps to a server, up to the first failure; this clock is ahead by ``skew_s``."""

    registry: str
    url: str
    is_mirror: bool
    steps: tuple[Step, ...]
    skew_s: float | None = None

    @property
    def trouble(self) -> Step | None:
        return next((step for step in self.steps if step.is_good is False), None)


class Trial:
    def __init__(self, site: Site, registry: str, repository: str = "") -> None:
        self._site = site
        self._registry = registry
        self._repository = repository
        parts = urlsplit(site.url)
        self._is_tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._is_tls else 80)
        self._authorization = ""
        self._tags: list[str] = []
        self._skew_s: float | None = None
        self._steps: list[Step] = []
        self._current = "dns"

    def run(self) -> None:
        """Run the steps; another thread may call ``route`` meanwhile."""
        steps = {
            "dns": self._dns,
            "tcp": self._tcp,
            "tls": self._tls,
            "auth": self._auth,
            "first byte": self._first_byte,
            "speed": self._speed,
        }
        for self._current, make in steps.items():
            began = time.monotonic()
            try:
                is_good, text = make()
            except (OSError, ValueError) as exc:
                is_good, text = False, _reason(exc)
            took = format_duration(max(round(time.monotonic() - began, 3), 0.001))
            self._steps.append(
                Step(self._current, is_good, f"{text} ({took})" if is_good else text)
            )
            if is_good is False:
                break
        self._current = ""

    def route(self) -> Route:
        steps, site = tuple(self._steps), self._site
        if self._current:
            steps += (Step(self._current, None, "there was no time left for it"),)
        return Route(self._registry, site.url, site.is_mirror, steps, self._skew_s)

    def _dns(self) -> tuple[bool | None, str]:
        found: list[str] = []
        failure: list[OSError] = []

        def resolve() -> None:
            try:
                answers = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
                found.extend(dict.fromkeys(str(answer[4][0]) for answer in answers))
            except OSError as exc:
                failure.append(exc)

        thread = threading.Thread(target=resolve, daemon=True)  # nothing can interrupt it
        thread.start()
        thread.join(STEP_S)
        if failure:
            raise failure[0]
        if not found:
            return False, NO_ANSWER
        return True, ", ".join(found[:3])

    def _tcp(self) -> tuple[bool | None, str]:
        with self._connect() as connection:
            return True, f"{connection.getpeername()[0]} port {self._port}"

    def _tls(self) -> tuple[bool | None, str]:
        if not self._is_tls:
            return None, "plain HTTP"
        with (
            self._connect() as connection,
            self._context().wrap_socket(connection, server_hostname=self._host) as secured,
        ):
            certificate: Any = secured.getpeercert() or {}
            until = certificate.get("notAfter", "")
            what = f"valid until {until}" if until else "certificate not checked (skip_verify)"
            return True, f"{secured.version()}, {what}"

    def _auth(self) -> tuple[bool | None, str]:
        status, headers, _ = self._get("/v2/")
        with suppress(TypeError, ValueError):
            self._skew_s = time.time() - parsedate_to_datetime(headers.get("Date", "")).timestamp()
        if status == 200:
            return True, "no login needed"
        if status != 401:
            return (
                False,
                f"/v2/ is answered with {status}: this is no registry, or it is out of order",
            )
        challenge = registries.Challenge(headers.get("WWW-Authenticate", ""))
        if challenge.kind != "bearer":
            return None, "a login is needed: what follows is left out"
        scope = f"repository:{self._repository}:pull" if self._repository else ""
        realm = challenge.realm
        status, _, body = self._get(f"{realm}?{urlencode(challenge.query(scope))}")
        if status != 200:
            return None, f"a login is needed: {urlsplit(realm).netloc} answers with {status}"
        self._authorization = challenge.authorization(body)
        return True, f"{urlsplit(realm).netloc} gives a token without a login"

    def _first_byte(self) -> tuple[bool | None, str]:
        path = f"/v2/{self._repository}/tags/list" if self._repository else "/v2/"
        status, _, body = self._get(path)
        self._tags = texts(parsed(body).get("tags"))
        if status in (401, 403):
            return None, "a login is needed"
        if status == 404:
            return False, f"no repository {self._repository}"
        return status < 500, f"status {status}"

    def _speed(self) -> tuple[bool | None, str]:
        if not self._repository:
            return None, "name a repository to have it tested: --registry HOST/REPO"
        base = f"/v2/{self._repository}"
        if not self._tags:
            return None, "the repository shows no tags"
        layer = self._layer(base, self._tags[-1])
        if not layer:
            return None, "no layer was found"
        began = time.monotonic()
        status, _, content = self._get(f"{base}/blobs/{layer}", limit=RANGE_BYTES)
        if status not in (200, 206):
            return False, f"the layers are answered with {status}"
        took_s = max(time.monotonic() - began, 1e-6)
        return True, f"{format_bytes(len(content) / took_s)}/s over {format_bytes(len(content))}"

    def _layer(self, base: str, reference: str) -> str:
        for _ in range(2):  # an index, and then one of its manifests
            status, _, body = self._get(f"{base}/manifests/{reference}")
            document = parsed(body) if status == 200 else {}
            if layers := mappings(document.get("layers")):
                largest = max(layers, key=lambda one: count(one.get("size")))
                return text(largest.get("digest"))
            if not (manifests := mappings(document.get("manifests"))):
                break
            reference = text(manifests[0].get("digest"))
        return ""

    def _get(self, target: str, *, limit: int = _ANSWER_BYTES) -> registries.RegistryAnswer:
        import urllib3  # noqa: PLC0415 - only for requests to a registry

        try:
            return registries.request(
                target if "://" in target else f"{self._site.url}{target}",
                until=time.monotonic() + STEP_S,
                context=self._context(),
                authorization=self._authorization,
                most=limit,
                is_range=limit == RANGE_BYTES,
            )
        except urllib3.exceptions.HTTPError as exc:
            reason = getattr(exc, "reason", None) or exc
            if isinstance(reason, urllib3.exceptions.TimeoutError):
                raise TimeoutError from None
            raise OSError(f"no HTTP answer: {reason}") from None

    def _connect(self) -> socket.socket:
        return socket.create_connection((self._host, self._port), timeout=STEP_S)

    def _context(self) -> ssl.SSLContext:
        named = noderoot.read_named(self._site.ca).decode() if self._site.ca else None
        return client_context(verifies=self._site.verifies, ca_data=named)


def _reason(exc: Exception) -> str:
    if isinstance(exc, TimeoutError):
        return NO_ANSWER
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"x509: {exc.verify_message}"
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror.lower()
    return str(exc)


def expiry_s(port: int) -> float | None:
    """Return the expiry time of the certificate on a loopback port; None without one."""
    address, context = ("127.0.0.1", port), client_context(verifies=False)
    try:
        with socket.create_connection(address, STEP_S) as sock, context.wrap_socket(sock) as tls:
            found = tls.getpeercert(binary_form=True)
    except OSError:
        return None
    if found is None:
        return None
    # The fields are available only for a verified certificate: verify it against itself.
    context = client_context(ca_data=ssl.DER_cert_to_PEM_cert(found))
    context.check_hostname = False
    try:
        with socket.create_connection(address, STEP_S) as sock, context.wrap_socket(sock) as tls:
            said = tls.getpeercert() or {}
    except ssl.SSLCertVerificationError as exc:
        return 0.0 if exc.verify_code == _EXPIRED else None
    except OSError:
        return None
    until = said.get("notAfter")
    return float(ssl.cert_time_to_seconds(until)) if isinstance(until, str) else None
