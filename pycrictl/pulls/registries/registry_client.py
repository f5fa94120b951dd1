"""Requests to registries (OCI distribution specification) with urllib3.

They go to the endpoints that the runtime would ask, its mirrors first, and through its HTTP
proxies, with given credentials or none. A registry that requires a token names the server that
issues it (Docker's token authentication).

CRI-O shows the bytes received but not the total; the manifest of an image has it. It is requested
once per pull, in a thread of its own and for two seconds at most; the pull itself never waits for
it.
"""

from __future__ import annotations

import hashlib
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import unquote, urlencode, urlsplit

from pycrictl.base import noderoot
from pycrictl.base.errors import ConfigError
from pycrictl.base.foreign import parsed, text
from pycrictl.base.tls import client_context, os_error_of
from pycrictl.pulls.reference import DEFAULT_TAG, Reference, parse
from pycrictl.pulls.registries.credentials import Credentials, Keyring
from pycrictl.pulls.registries.mirrors import Endpoint, RegistryAccess, Scheme
from pycrictl.runtime.containerd.store import (
    DOCUMENT_LIMIT_BYTES,
    Index,
    Manifest,
    own_platform,
    parse_document,
)

NO_ANSWER: Final = "no answer in time"
_ACCEPT: Final = ", ".join(
    (
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    )
)
_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
_PARAMETER: Final = re.compile(r'([a-zA-Z]+)="([^"]*)"')


class RegistryAnswer(NamedTuple):
    """A registry's response; the body is cut off at the requested size or at the deadline."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Challenge(NamedTuple):
    """A ``WWW-Authenticate`` header (RFC 7235, and Docker's tokens).

    ``realm`` is the URL of the server that issues tokens, empty if there is none; ``query`` has
    the parameters of a request to it.
    """

    kind: str
    realm: str
    query: dict[str, str]


def challenge_of(answer: RegistryAnswer) -> Challenge:
    """Return the challenge of a response; its kind is empty if there is none."""
    kind, _, rest = answer.headers.get("WWW-Authenticate", "").partition(" ")
    terms = dict(_PARAMETER.findall(rest))
    query = {key: terms[key] for key in ("service", "scope") if key in terms}
    return Challenge(kind.lower(), text(terms.get("realm")), query)


class RegistryClient:
    """Requests to one endpoint, through the proxies of the runtime.

    A request without a response raises OSError: ``ssl.SSLError`` for TLS, TimeoutError after
    ``until`` (monotonic).
    """

    def __init__(
        self, endpoint: Endpoint, access: RegistryAccess, credentials: Credentials | None = None
    ) -> None:
        self.endpoint = endpoint
        self._access = access
        self._credentials = credentials or Credentials()
        token = self._credentials.registry_token
        self._authorization = f"Bearer {token}" if token else ""
        self._scheme: Scheme | None = endpoint.schemes[0] if len(endpoint.schemes) == 1 else None

    @property
    def scheme(self) -> Scheme:
        """The scheme by which the server has answered; until then, the first to be tried."""
        return self._scheme or self.endpoint.schemes[0]

    @property
    def proxy(self) -> str:
        """The URL of the proxy for this endpoint, perhaps with a password; empty if none."""
        return self._access.proxy_of(f"{self.scheme}://{self.endpoint.host}")

    @cached_property
    def context(self) -> ssl.SSLContext:
        """How the server's certificate is verified; OSError if a file cannot be read."""
        endpoint = self.endpoint
        bundle = self._access.bundle if endpoint.verifies else ""
        context = client_context(verifies=endpoint.verifies, ca_file=bundle or None)
        for file in endpoint.authorities:
            context.load_verify_locations(cadata=noderoot.read_named(file).decode("latin-1"))
        for certificate, key in endpoint.identities:
            context.load_cert_chain(certificate, key or None, password=lambda: "")
        return context

    def fetch(self, target: str, *, until: float) -> RegistryAnswer:
        """Get a path below the repository, such as ``manifests/1``; log in if required."""
        answer = self.get(target, until=until)
        if answer.status == 401 and self.log_in(answer, until=until):
            answer = self.get(target, until=until)
        return answer

    def get(self, target: str, *, until: float) -> RegistryAnswer:
        """Get a path below the repository, or below the root if it begins with a slash.

        At most ``DOCUMENT_LIMIT_BYTES + 1`` of the body are read.
        """
        endpoint = self.endpoint
        where = target if target.startswith("/") else f"/{endpoint.repository}/{target}"
        query = f"?{urlencode({'ns': endpoint.namespace})}" if endpoint.namespace else ""
        headers = _authorized(self._authorization)
        schemes = endpoint.schemes if self._scheme is None else (self._scheme,)
        for scheme in schemes:
            url = f"{scheme}://{endpoint.host}{endpoint.path}{where}{query}"
            try:
                answer = self._send(url, headers, until=until)
            except OSError:
                if scheme == schemes[-1]:
                    raise
                continue
            # A TLS server answers plain HTTP with 400.
            if answer.status != 400 or scheme == schemes[-1]:
                break
        self._scheme = scheme
        return answer

    def log_in(self, answer: RegistryAnswer, *, until: float, scope: str = "") -> bool:
        """Satisfy the challenge of a response, for later requests; return whether that worked."""
        kind, realm, query = challenge_of(answer)
        basic, token = self._credentials.basic, self._credentials.identity_token
        self._authorization = basic if kind == "basic" else ""
        # Credentials are sent in clear only to the registry's own host.
        host = urlsplit(f"//{self.endpoint.host}").hostname
        is_safe = realm.startswith("https://") or urlsplit(realm).hostname == host
        if kind == "bearer" and is_safe:
            query |= {"scope": scope} if scope else {}
            if token and not basic:
                form = query | {"grant_type": "refresh_token", "refresh_token": token}
                given = self._send(realm, {}, until=until, form=form)
            else:
                url = f"{realm}?{urlencode(query)}"
                given = self._send(url, _authorized(basic), until=until)
            self._authorization = _bearer(given)
        return bool(self._authorization)

    def _send(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        until: float,
        form: dict[str, str] | None = None,
    ) -> RegistryAnswer:
        """Send a request; a GET follows redirects, but another host gets no authorization."""
        import urllib3  # noqa: PLC0415 - the import takes 50 ms

        # Verification is off only if so configured, so there is no need to warn.
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        options: dict[str, Any] = {
            "timeout": urllib3.Timeout(total=max(until - time.monotonic(), 0.001)),
            "ssl_context": self.context,
        }
        # A form may hold a token, which a redirect would send elsewhere.
        redirects = 3 if form is None else 0
        retries = urllib3.Retry(None, connect=0, read=0, status=0, other=0, redirect=redirects)
        pool = urllib3.PoolManager(**options)
        if proxy := self._access.proxy_of(url):
            pool = urllib3.ProxyManager(proxy, proxy_headers=proxy_headers(proxy), **options)
        try:
            with pool:
                answer = pool.request(
                    "GET" if form is None else "POST",
                    url,
                    headers={"Accept": _ACCEPT, **headers, **(_FORM if form else {})},
                    body=None if form is None else urlencode(form),
                    preload_content=False,
                    retries=retries,  # urllib3 before 2.5 ignores those of a pool
                )
                body = bytearray()
                for piece in answer.stream(65536):
                    body += piece
                    if len(body) > DOCUMENT_LIMIT_BYTES or time.monotonic() > until:
                        break
                return RegistryAnswer(
                    answer.status, answer.headers, bytes(body[: DOCUMENT_LIMIT_BYTES + 1])
                )
        except urllib3.exceptions.HTTPError as exc:
            raise os_error_of(exc) from None


def _authorized(authorization: str) -> dict[str, str]:
    return {"Authorization": authorization} if authorization else {}


def proxy_headers(proxy: str) -> dict[str, str]:
    """Return the headers that log in to a proxy whose URL has a user and a password."""
    parts = urlsplit(proxy)
    basic = Credentials(unquote(parts.username or ""), unquote(parts.password or "")).basic
    return {"Proxy-Authorization": basic} if basic else {}


def reason_of(exc: Exception) -> str:
    """Return why there was no response, in the words of the system or of TLS."""
    if isinstance(exc, TimeoutError):
        return NO_ANSWER
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"x509: {exc.verify_message}"
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror.lower()
    return str(exc)


def _bearer(answer: RegistryAnswer) -> str:
    if answer.status != 200 or len(answer.body) > DOCUMENT_LIMIT_BYTES:
        return ""
    document = parsed(answer.body)
    tokens = (text(document.get(key), DOCUMENT_LIMIT_BYTES) for key in ("token", "access_token"))
    token = next(filter(None, tokens), "")
    return f"Bearer {token}" if token and token.isascii() and token.isprintable() else ""


# Manifests


@dataclass(frozen=True, slots=True)
class ManifestRequest:
    """A request for a manifest.

    Attributes:
        reference: the image's name as the pull spells it.
        credentials: those of the pull; None if they are not known.
        access: how the registry is reached.
        keyring: the credentials to use if those of the pull are not known.
        timeout_s: the time limit of all requests together.
    """

    reference: str
    credentials: Credentials | None = None
    access: RegistryAccess = field(default_factory=RegistryAccess)
    keyring: Keyring | None = None
    timeout_s: float = 2.0


KeyT = TypeVar("KeyT")
AnswerT = TypeVar("AnswerT")


class Answers(Generic[KeyT, AnswerT]):
    """Answers being fetched in the background, all within ``timeout_s``; late ones are dropped.

    Attributes:
        known: the answers so far, by question.
    """

    def __init__(
        self,
        questions: Iterable[KeyT],
        ask: Callable[[KeyT], AnswerT],
        *,
        timeout_s: float = 2.0,
    ) -> None:
        self.known: dict[KeyT, AnswerT] = {}
        self._until = time.monotonic() + timeout_s

        def run() -> None:
            for question in questions:
                answer = ask(question)
                if not self.are_complete:
                    self.known[question] = answer

        self._thread = threading.Thread(target=run, name="manifest", daemon=True)
        self._thread.start()

    @property
    def are_complete(self) -> bool:
        """Whether no more answers will come."""
        return not self._thread.is_alive() or time.monotonic() >= self._until


def ask(question: ManifestRequest) -> Manifest | None:
    """Return an image's manifest for this machine's platform; None if it cannot be fetched."""
    until = time.monotonic() + question.timeout_s
    reference = parse(question.reference)
    document = parse_document(_body(question, reference, until) or b"")
    if isinstance(document, Index) and (own := document.manifest_for(own_platform())):
        by_digest = reference._replace(tag="", digest=own.digest)
        document = parse_document(_body(question, by_digest, until) or b"")
    return document if isinstance(document, Manifest) else None


def find_digest(question: ManifestRequest) -> str | None:
    """Return an image's digest in its registry; empty if it is not there, None if unknown."""
    until = time.monotonic() + question.timeout_s
    body = _body(question, parse(question.reference), until)
    if body:
        return f"sha256:{hashlib.sha256(body).hexdigest()}"
    return None if body is None else ""


def _body(question: ManifestRequest, reference: Reference, until: float) -> bytes | None:
    """Return the manifest or index of a reference; empty if a server lacks it, None if unknown."""
    absent = None
    for endpoint in question.access.endpoints(reference):
        with suppress(OSError):
            answer = _fetch(question, reference, endpoint, until)
            if answer.status == HTTPStatus.OK and len(answer.body) <= DOCUMENT_LIMIT_BYTES:
                return answer.body
            if answer.status == HTTPStatus.NOT_FOUND:
                absent = b""
    return absent


def _fetch(
    question: ManifestRequest, reference: Reference, endpoint: Endpoint, until: float
) -> RegistryAnswer:
    given = question.credentials
    if given is None and question.keyring is not None:
        with suppress(ConfigError):
            given = question.keyring.find(reference)
    credentials = question.access.credentials_for(endpoint, reference, given)
    client = RegistryClient(endpoint, question.access, credentials)
    version = reference.digest or reference.tag or DEFAULT_TAG
    return client.fetch(f"manifests/{version}", until=until)
