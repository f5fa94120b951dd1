"""Registries (OCI distribution specification), by urllib3; a manifest of one in an image's name.

With the credentials of the pull, those of the node's files or none. A registry that wants a token
says where to get one (Docker's token authentication). Registries on this machine's loopback are
asked over plain HTTP first, as Docker and containerd do.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies

from pycrictl.containerd.store import DOCUMENT_LIMIT_BYTES
from pycrictl.foreign import parsed, text
from pycrictl.progress.reference import DEFAULT_TAG, parse
from pycrictl.progress.registry.nodefiles import Location, context_for, locations, login

if TYPE_CHECKING:
    import ssl

    from pycrictl._proto import cri_pb2

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

    Attributes:
        reference: the image; a tag is missing where it is ``latest``.
        credentials: those of the pull.
        environ: variables that decide how the registry is reached.
        root: leads to the files of the process that pulls, which name mirrors, logins and
            authorities; None to read none.
    """

    reference: str
    credentials: Credentials | None = None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    root: str | None = None


def fetch(question: ManifestRequest, reference: str, *, timeout_s: float) -> bytes | None:
    """Return the manifest or index that a reference names, as the registry or a mirror has it.

    Returns:
        None if all refuse or have not answered after ``timeout_s``.
    """
    import urllib3  # noqa: PLC0415 - on CRI-O alone

    root, environ = question.root, question.environ
    until = time.monotonic() + timeout_s
    places = [Location(reference)] if root is None else locations(reference, root, environ)
    for place in places:
        host, path, tag, digest = parse(place.reference)
        site = "registry-1.docker.io" if host == "docker.io" else host
        # What a pull knows is for the registry that it names, and not for a mirror.
        known = None if place.is_mirror else question.credentials
        if known is None and root is not None and (found := login(place.reference, root, environ)):
            known = Credentials(*found)
        schemes = ["https", "http"] if place.is_insecure else ["https"]
        if _LOOPBACK.fullmatch(site):
            schemes = ["http", "https"]
        context = context_for(host, root, verifies=not place.is_insecure)
        for scheme in schemes:
            url = f"{scheme}://{site}/v2/{path}/manifests/{digest or tag or DEFAULT_TAG}"
            with suppress(urllib3.exceptions.HTTPError, OSError, ValueError, RecursionError):
                return _Exchange(known, environ, context, until).manifest(url)
    return None


class RegistryAnswer(NamedTuple):
    """What a registry answers; its body as far as it was asked for, or came in time."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Challenge:
    """What a registry wants of who is not known to it (RFC 7235, and Docker's tokens).

    Args:
        header: ``WWW-Authenticate``.
    """

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


class _Refused(ValueError):
    pass


class _Exchange:
    def __init__(
        self,
        credentials: Credentials | None,
        environ: Mapping[str, str],
        context: ssl.SSLContext,
        until: float,
    ) -> None:
        self._credentials = credentials
        self._environ = environ
        self._context = context
        self._until = until

    def manifest(self, url: str) -> bytes:
        known = self._credentials
        first = ""
        if known is not None and known.registry_token:
            first = f"Bearer {known.registry_token}"
        status, headers, body = self._get(url, first)
        challenge = Challenge(headers.get("WWW-Authenticate", ""))
        if status == 401 and (second := self._authorization(url, challenge)):
            status, _, body = self._get(url, second)
        if status != 200:
            raise _Refused(status)
        return body

    def _authorization(self, url: str, challenge: Challenge) -> str:
        """Return the header that a registry wants; empty without credentials that it takes."""
        known = self._credentials
        basic = ""
        if known is not None and known.username:
            pair = f"{known.username}:{known.password}".encode()
            basic = f"Basic {base64.b64encode(pair).decode()}"
        if challenge.kind == "basic":
            return basic
        realm = challenge.realm
        # Credentials are not sent in clear, except to where the registry itself is.
        is_safe = realm.startswith("https://") or urlsplit(realm).hostname == urlsplit(url).hostname
        if challenge.kind != "bearer" or not is_safe:
            return ""
        query = challenge.query()
        if known is not None and known.identity_token and not basic:
            query |= {"grant_type": "refresh_token", "refresh_token": known.identity_token}
            status, _, body = self._get(realm, "", form=query)
        else:
            status, _, body = self._get(f"{realm}?{urlencode(query)}", basic)
        if status != 200:
            raise _Refused(status)
        return challenge.authorization(body)

    def _get(
        self, url: str, authorization: str, form: dict[str, str] | None = None
    ) -> RegistryAnswer:
        if time.monotonic() >= self._until:
            raise _Refused("too late")
        answer = request(
            url,
            until=self._until,
            context=self._context,
            authorization=authorization,
            form=form,
            proxy=self._proxy(url),
        )
        if len(answer.body) > DOCUMENT_LIMIT_BYTES or time.monotonic() > self._until:
            raise _Refused("too long")
        return answer

    def _proxy(self, url: str) -> str:
        parts = urlsplit(url)
        named = {
            key.lower().removesuffix("_proxy"): value
            for key, value in self._environ.items()
            if key.lower().endswith("_proxy")
        } or getproxies()
        if _is_direct(parts.netloc, named.get("no", "")):
            return ""
        return named.get(parts.scheme, "")


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

    Args:
        url: what is asked for.
        until: monotonic seconds; the body is what has come by then.
        context: of TLS.
        authorization: a header.
        form: what is posted; None to get.
        proxy: URL of one; empty for none.
        most: bytes of the body that are read.
        is_range: only so many are asked for.

    Raises:
        urllib3.exceptions.HTTPError: no answer.
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


def _is_direct(netloc: str, exceptions: str) -> bool:
    """Return whether ``NO_PROXY`` names a host: itself, a domain that it is in, or all."""
    host = netloc.rpartition("@")[2].partition(":")[0].lower()
    names = [name.strip().lower() for name in exceptions.split(",")]
    domains = [name.lstrip("*").lstrip(".") for name in names]
    return "*" in names or any(
        name and (host == name or host.endswith(f".{name}")) for name in domains
    )
