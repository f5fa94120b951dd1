"""Registries (OCI distribution specification), by urllib3; a manifest of one in an image's name.

With the credentials of the pull, those of the node's files or none. A registry that wants a token
says where to get one (Docker's token authentication). Registries on this machine's loopback are
asked over plain HTTP first, as Docker and containerd do.

CRI-O shows the bytes that have come and never how many will. The manifest does. It is asked for
once a pull, in a thread of its own and for two seconds at most; a pull never waits for it.
"""

from __future__ import annotations

import base64
import platform
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit
from urllib.request import proxy_bypass

from pycrictl.containerd.store import DOCUMENT_LIMIT_BYTES, Index, Manifest, parse_document
from pycrictl.foreign import mapping, mappings, parsed, text
from pycrictl.progress.reference import DEFAULT_TAG, parse
from pycrictl.progress.registry.nodefiles import context_for, locations, login

if TYPE_CHECKING:
    import ssl

    from pycrictl._proto import cri_pb2

TIMEOUT_S: Final = 2.0

_ARCHITECTURES: Final = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "armv6l": "arm",
    "i686": "386",
    "i386": "386",
}

_ACCEPT: Final = ", ".join(
    (
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    )
)
_PARAMETER: Final = re.compile(r'([a-zA-Z]+)="([^"]*)"')
_LOOPBACK: Final = re.compile(r"(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?")


class Credentials(NamedTuple):
    """Who asks a registry; never shown."""

    username: str = ""
    password: str = ""
    identity_token: str = ""
    registry_token: str = ""

    def __repr__(self) -> str:
        return "Credentials(…)"


def credentials_of(auth: cri_pb2.AuthConfig) -> Credentials | None:
    username, password = auth.username, auth.password
    if auth.auth and not username:
        with suppress(ValueError):
            text = base64.b64decode(auth.auth).decode()
            username, _, password = text.rstrip("\0").partition(":")
    found = Credentials(username, password, auth.identity_token, auth.registry_token)
    return found if any(found) else None


@dataclass(frozen=True, slots=True)
class ManifestRequest:
    """What a registry is asked, and how the process that pulls reaches it.

    ``root`` leads to the files of that process, which name mirrors, logins and authorities;
    ``environ`` has its variables.
    """

    reference: str
    credentials: Credentials | None = None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    root: str = ""


def fetch(question: ManifestRequest, reference: str, *, timeout_s: float) -> bytes | None:
    """Return the manifest or index of a reference; None if all places refuse, or are too late."""
    import urllib3  # noqa: PLC0415 - on CRI-O alone

    root, environ = question.root, question.environ
    until = time.monotonic() + timeout_s
    for place in locations(reference, root, environ):
        host, path, tag, digest = parse(place.reference)
        site = "registry-1.docker.io" if host == "docker.io" else host
        # What a pull knows is for the registry that it names, and not for a mirror.
        known = None if place.is_mirror else question.credentials
        if known is None and (found := login(place.reference, root, environ)):
            known = Credentials(*found)
        schemes = ["https", "http"] if place.is_insecure else ["https"]
        if _LOOPBACK.fullmatch(site):
            schemes = ["http", "https"]
        context = context_for(host, root, verifies=not place.is_insecure)
        ask = partial(_ask, until=until, context=context, environ=environ)
        for scheme in schemes:
            url = f"{scheme}://{site}/v2/{path}/manifests/{digest or tag or DEFAULT_TAG}"
            with suppress(urllib3.exceptions.HTTPError, OSError, ValueError, RecursionError):
                return _manifest(ask, url, known or Credentials())
    return None


class RegistryAnswer(NamedTuple):
    """What a registry answers; its body as far as it was asked for, or came in time."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Challenge:
    """A ``WWW-Authenticate`` header (RFC 7235, and Docker's tokens)."""

    def __init__(self, header: str) -> None:
        kind, _, rest = header.partition(" ")
        self.kind = kind.lower()
        self._terms = dict(_PARAMETER.findall(rest))

    @property
    def realm(self) -> str:
        return text(self._terms.get("realm"))

    def query(self, scope: str = "") -> dict[str, str]:
        terms = self._terms | ({"scope": scope} if scope else {})
        return {key: terms[key] for key in ("service", "scope") if key in terms}

    @staticmethod
    def authorization(body: bytes) -> str:
        answer = parsed(body)
        tokens = (text(answer.get(key), DOCUMENT_LIMIT_BYTES) for key in ("token", "access_token"))
        token = next(filter(None, tokens), "")
        return f"Bearer {token}" if token and token.isascii() and token.isprintable() else ""


_Ask = Callable[..., "RegistryAnswer"]


def _manifest(ask: _Ask, url: str, known: Credentials) -> bytes:
    answer = ask(url, f"Bearer {known.registry_token}" if known.registry_token else "")
    challenge = Challenge(answer.headers.get("WWW-Authenticate", ""))
    if answer.status == 401 and (authorization := _authorization(ask, url, challenge, known)):
        answer = ask(url, authorization)
    return _granted(answer)


def _authorization(ask: _Ask, url: str, challenge: Challenge, known: Credentials) -> str:
    """Return the header that a registry wants; empty without credentials that it takes."""
    pair = base64.b64encode(f"{known.username}:{known.password}".encode()).decode()
    basic = f"Basic {pair}" if known.username else ""
    if challenge.kind == "basic":
        return basic
    realm = challenge.realm
    # Credentials are not sent in clear, except to where the registry itself is.
    is_safe = realm.startswith("https://") or urlsplit(realm).hostname == urlsplit(url).hostname
    if challenge.kind != "bearer" or not is_safe:
        return ""
    query = challenge.query()
    if known.identity_token and not basic:
        query |= {"grant_type": "refresh_token", "refresh_token": known.identity_token}
        return challenge.authorization(_granted(ask(realm, form=query)))
    return challenge.authorization(_granted(ask(f"{realm}?{urlencode(query)}", basic)))


def _granted(answer: RegistryAnswer) -> bytes:
    if answer.status != 200 or len(answer.body) > DOCUMENT_LIMIT_BYTES:
        raise ValueError(answer.status)
    return answer.body


def _ask(
    url: str,
    authorization: str = "",
    *,
    until: float,
    context: ssl.SSLContext,
    environ: Mapping[str, str],
    form: dict[str, str] | None = None,
) -> RegistryAnswer:
    proxies = {
        key.lower().removesuffix("_proxy"): value
        for key, value in environ.items()
        if key.lower().endswith("_proxy")
    }
    parts = urlsplit(url)
    is_direct = proxy_bypass(parts.netloc, proxies)
    answer = request(
        url,
        until=until,
        context=context,
        authorization=authorization,
        form=form,
        proxy="" if is_direct else proxies.get(parts.scheme, ""),
    )
    if time.monotonic() > until:
        raise TimeoutError
    return answer


def request(
    url: str,
    *,
    until: float,
    context: ssl.SSLContext,
    authorization: str = "",
    form: dict[str, str] | None = None,
    proxy: str = "",
    most: int = DOCUMENT_LIMIT_BYTES + 1,
    is_range: bool = False,
) -> RegistryAnswer:
    """Ask a registry, or where it has redirected to, which loses the header on another host.

    The body is what has come by ``until`` (monotonic), at most ``most`` bytes; ``form`` is posted.
    No answer at all is urllib3's ``HTTPError``.
    """
    import urllib3  # noqa: PLC0415 - a twentieth of a second

    # Whoever has switched verification off knows it.
    urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    options: dict[str, Any] = {
        "timeout": urllib3.Timeout(total=max(until - time.monotonic(), 0.001)),
        "retries": urllib3.Retry(0, redirect=3),
        "ssl_context": context,
    }
    headers = {"Accept": _ACCEPT}
    if form is not None:
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    if authorization:
        headers["Authorization"] = authorization
    if is_range:
        headers["Range"] = f"bytes=0-{most - 1}"
    with (
        urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options) as pool
    ):
        answer = pool.request(
            "GET" if form is None else "POST",
            url,
            headers=headers,
            body=None if form is None else urlencode(form),
            preload_content=False,
        )
        body = bytearray()
        for piece in answer.stream(65536):
            body += piece
            if len(body) >= most or time.monotonic() > until:
                break
        return RegistryAnswer(answer.status, answer.headers, bytes(body[:most]))


# The manifest of a pull


class Inquiry:
    def __init__(
        self, question: ManifestRequest, ask: Callable[[ManifestRequest], Manifest | None]
    ) -> None:
        self._until = time.monotonic() + TIMEOUT_S
        self._answer: Manifest | None = None
        self._thread = threading.Thread(
            target=self._run, args=(question, ask), name="manifest", daemon=True
        )
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive() or time.monotonic() >= self._until

    @property
    def manifest(self) -> Manifest | None:
        return self._answer

    def _run(
        self, question: ManifestRequest, ask: Callable[[ManifestRequest], Manifest | None]
    ) -> None:
        self._answer = ask(question)


def ask(question: ManifestRequest) -> Manifest | None:
    """Return an image's manifest for this machine's platform; None if that cannot be had."""
    until = time.monotonic() + TIMEOUT_S

    def fetched(reference: str) -> bytes | None:
        left_s = until - time.monotonic()
        return fetch(question, reference, timeout_s=left_s) if left_s > 0 else None

    data = fetched(question.reference)
    document = None if data is None else parse_document(data)
    if data is not None and isinstance(document, Index):
        digest = platform_digest(data)
        host, path, _, _ = parse(question.reference)
        data = fetched(f"{host}/{path}@{digest}") if digest else None
        document = None if data is None else parse_document(data)
    return document if isinstance(document, Manifest) else None


def platform_digest(index: bytes, machine: str = "") -> str:
    """Return the digest of the manifest for a machine (``uname -m``); empty if there is none."""
    machine = machine or platform.machine()
    architecture = _ARCHITECTURES.get(machine, machine)
    fitting = []
    for entry in mappings(parsed(index[:DOCUMENT_LIMIT_BYTES]).get("manifests")):
        known = mapping(entry.get("platform"))
        if known.get("os") == "linux" and known.get("architecture") == architecture:
            fitting.append((text(known.get("variant")), text(entry.get("digest"))))
    wanted = {"armv7l": "v7", "armv6l": "v6", "aarch64": "v8"}.get(machine, "")
    fitting.sort(key=lambda found: found[0] != wanted)
    return fitting[0][1] if fitting else ""
