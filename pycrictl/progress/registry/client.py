"""A manifest from the registry in an image's name (OCI distribution specification), by urllib3.

Anonymous, or with the credentials of the pull. A registry that wants a token says where to get one
(Docker's token authentication). Certificates are verified against the system's store. Registries on
this machine's loopback are asked over plain HTTP first, as Docker and containerd do.
"""

from __future__ import annotations

import base64
import json
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies

from pycrictl.containerd.store import DOCUMENT_LIMIT_BYTES
from pycrictl.progress.reference import DEFAULT_TAG, parse
from pycrictl.tls import client_context

if TYPE_CHECKING:
    from pycrictl.progress.registry.question import Question

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


def fetch(question: Question, reference: str, *, timeout_s: float) -> bytes | None:
    """Return the manifest or index that a reference names, as the registry has it.

    Returns:
        None if the registry refuses or has not answered after ``timeout_s``.
    """
    import urllib3  # noqa: PLC0415 - on CRI-O alone

    host, path, tag, digest = parse(reference)
    site = "registry-1.docker.io" if host == "docker.io" else host
    schemes = ("http", "https") if _LOOPBACK.fullmatch(site) else ("https",)
    until = time.monotonic() + timeout_s
    for scheme in schemes:
        url = f"{scheme}://{site}/v2/{path}/manifests/{digest or tag or DEFAULT_TAG}"
        with suppress(urllib3.exceptions.HTTPError, OSError, ValueError, RecursionError):
            return _Exchange(question, until).manifest(url)
    return None


class _Refused(ValueError):
    """An answer that is no help."""


class _Exchange:
    """The requests that one manifest takes."""

    def __init__(self, question: Question, until: float) -> None:
        self._credentials = question.credentials
        self._environ = question.environ
        self._verifies_tls = question.verifies_tls
        self._until = until

    def manifest(self, url: str) -> bytes:
        known = self._credentials
        first = ""
        if known is not None and known.registry_token:
            first = f"Bearer {known.registry_token}"
        status, challenge, body = self._get(url, first)
        if status == 401 and (second := self._authorization(url, challenge)):
            status, _, body = self._get(url, second)
        if status != 200:
            raise _Refused(status)
        return body

    def _authorization(self, url: str, challenge: str) -> str:
        """Return the header that a registry wants; empty without credentials that it takes."""
        kind, _, rest = challenge.partition(" ")
        terms = dict(_PARAMETER.findall(rest))
        known = self._credentials
        basic = ""
        if known is not None and known.username:
            pair = f"{known.username}:{known.password}".encode()
            basic = f"Basic {base64.b64encode(pair).decode()}"
        if kind.lower() == "basic":
            return basic
        realm = terms.get("realm", "")
        # Credentials are not sent in clear, except to where the registry itself is.
        is_safe = realm.startswith("https://") or urlsplit(realm).hostname == urlsplit(url).hostname
        if kind.lower() != "bearer" or not is_safe:
            return ""
        query = {key: terms[key] for key in ("service", "scope") if key in terms}
        if known is not None and known.identity_token and not basic:
            query |= {"grant_type": "refresh_token", "refresh_token": known.identity_token}
            status, _, body = self._get(realm, "", form=query)
        else:
            status, _, body = self._get(f"{realm}?{urlencode(query)}", basic)
        if status != 200:
            raise _Refused(status)
        answer: dict[str, Any] = json.loads(body)
        token = answer.get("token") or answer.get("access_token")
        return f"Bearer {token}" if isinstance(token, str) and token.isascii() else ""

    def _get(
        self, url: str, authorization: str, form: dict[str, str] | None = None
    ) -> tuple[int, str, bytes]:
        """Return status, challenge and body; redirections lose the header on another host."""
        import urllib3  # noqa: PLC0415

        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise _Refused("too late")
        options: dict[str, Any] = {
            "timeout": urllib3.Timeout(total=left_s),
            "retries": urllib3.Retry(0, redirect=3),
            "ssl_context": client_context(verifies=self._verifies_tls),
        }
        proxy = self._proxy(url)
        headers = {"Accept": _ACCEPT}
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        if authorization:
            headers["Authorization"] = authorization
        with (
            urllib3.ProxyManager(proxy, **options)
            if proxy
            else urllib3.PoolManager(**options) as pool
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
                if len(body) > DOCUMENT_LIMIT_BYTES or time.monotonic() > self._until:
                    raise _Refused("too long")
            return answer.status, answer.headers.get("WWW-Authenticate", ""), bytes(body)

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


def _is_direct(netloc: str, exceptions: str) -> bool:
    """Return whether ``NO_PROXY`` names a host: itself, a domain that it is in, or all."""
    host = netloc.rpartition("@")[2].partition(":")[0].lower()
    names = [name.strip().lower() for name in exceptions.split(",")]
    domains = [name.lstrip("*").lstrip(".") for name in names]
    return "*" in names or any(
        name and (host == name or host.endswith(f".{name}")) for name in domains
    )
