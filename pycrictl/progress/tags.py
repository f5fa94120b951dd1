"""Which digest a tag stands for, asked of its registry without credentials. Bounded, and optional.

OCI distribution specification: HEAD of a manifest answers with ``Docker-Content-Digest``. A
registry that wants a token is asked for one that anybody gets. Mirrors are not asked.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pycrictl.containerd.store import is_digest
from pycrictl.progress.reference import DEFAULT_HOST, DEFAULT_TAG, parse

if TYPE_CHECKING:
    from http.client import HTTPResponse

TIMEOUT_S: Final = 1.0
MOST: Final = 8
"""Most tags that are asked for at once."""

_DOCKER_HUB: Final = "registry-1.docker.io"
_LOOPBACK: Final = r"(?:localhost|127(?:\.\d+){3})(?::\d+)?"
_MANIFESTS: Final = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_MAX_TOKEN_BYTES: Final = 64 * 1024


def resolve(references: Iterable[str], *, timeout_s: float = TIMEOUT_S) -> dict[str, str]:
    """Return the digests that tags stand for now, as far as their registries say so in time.

    Args:
        references: images by tag.
        timeout_s: limit for all together.
    """
    found: dict[str, str] = {}

    def ask(reference: str) -> None:
        with suppress(Exception):  # whatever a registry does, the tag is not known then
            if digest := _digest(reference, timeout_s):
                found[reference] = digest

    threads = [
        threading.Thread(target=ask, args=(one,), daemon=True) for one in [*references][:MOST]
    ]
    for thread in threads:
        thread.start()
    give_up_at = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(give_up_at - time.monotonic(), 0.0))
    return dict(found)


def _digest(reference: str, timeout_s: float) -> str:
    host, path, tag, _ = parse(reference)
    host = _DOCKER_HUB if host == DEFAULT_HOST else host
    scheme = "http" if re.fullmatch(_LOOPBACK, host) else "https"
    url = f"{scheme}://{host}/v2/{path}/manifests/{tag or DEFAULT_TAG}"
    answer, _ = _ask("HEAD", url, "", timeout_s)
    challenge = answer.getheader("WWW-Authenticate") or ""
    if answer.status == 401 and challenge.lower().startswith("bearer "):
        fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        if not fields["realm"].startswith((f"{scheme}://", "https://")):
            return ""  # a registry out there must not have something on this node asked
        answer, _ = _ask("HEAD", url, _token(fields, timeout_s), timeout_s)
    digest = answer.getheader("Docker-Content-Digest")
    return digest if answer.status == 200 and is_digest(digest) else ""


def _token(fields: dict[str, str], timeout_s: float) -> str:
    """Return the token that anybody gets (Docker's token authentication)."""
    from urllib.parse import urlencode

    terms: dict[str, str] = {key: fields[key] for key in ("service", "scope") if key in fields}
    query = urlencode(terms)
    _, content = _ask("GET", f"{fields['realm']}?{query}", "", timeout_s)
    document = json.loads(content)
    return str(document.get("token") or document["access_token"])


def _ask(method: str, url: str, token: str, timeout_s: float) -> tuple[HTTPResponse, bytes]:
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    is_open = parts.scheme == "http" and re.fullmatch(_LOOPBACK, parts.netloc)
    kind = HTTPConnection if is_open else HTTPSConnection
    headers = {"Accept": _MANIFESTS, "User-Agent": "pycrictl", "Connection": "close"}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request(method, f"{parts.path}?{parts.query}".rstrip("?"), headers=headers)
        answer = connection.getresponse()
        return answer, answer.read(_MAX_TOKEN_BYTES)
    finally:
        connection.close()
