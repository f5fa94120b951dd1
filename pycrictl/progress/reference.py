"""Image references: parsing, canonical form and comparison. Pure.

A reference is ``[HOST[:PORT]/]PATH[:TAG][@DIGEST]``. Docker's defaults apply where a part is
missing (``docker.io``, ``library/``, ``:latest``), as containerd and CRI-O apply them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

DEFAULT_HOST: Final = "docker.io"
DEFAULT_TAG: Final = "latest"
_SHORT_DIGEST_CHARS: Final = 12


class Reference(NamedTuple):
    """A parsed reference; ``tag`` and ``digest`` are empty if there is none."""

    host: str
    path: str
    tag: str
    digest: str


@lru_cache(maxsize=256)  # each pull of a node is compared with each image of its pods
def parse(text: str) -> Reference:
    """Split a reference. Any text is accepted; nothing is verified."""
    rest, _, digest = text.partition("@")
    slash = rest.rfind("/")
    colon = rest.find(":", slash + 1)
    name, tag = (rest, "") if colon < 0 else (rest[:colon], rest[colon + 1 :])
    head, has_slash, tail = name.partition("/")
    if has_slash and ("." in head or ":" in head or head == "localhost"):
        host, path = head, tail
    else:
        host, path = DEFAULT_HOST, name
    if host == DEFAULT_HOST and "/" not in path:
        path = f"library/{path}"
    return Reference(host, path, tag, digest)


def canonical(text: str) -> str:
    """Return the canonical form: ``docker.io/library/busybox:latest`` for ``busybox``.

    A tag beside a digest is left out, as the digest alone decides.
    """
    host, path, tag, digest = parse(text)
    return f"{host}/{path}@{digest}" if digest else f"{host}/{path}:{tag or DEFAULT_TAG}"


def repository(text: str) -> str:
    """Return the repository as containerd's labels name it: without the registry's port."""
    host, path, _, _ = parse(text)
    return f"{_host(host)}/{path}"


def short_digest(digest: str) -> str:
    return digest[: digest.index(":") + 1 + _SHORT_DIGEST_CHARS]


def is_same_image(wanted: str, known: str) -> bool:
    """Return whether ``known``, a runtime's name for an image, may mean the same as ``wanted``.

    Parts missing from ``known`` match anything: containerd names a running pull without the
    registry's port and the tag, by the manifest's digest alone.
    """
    if wanted == known:
        return True
    want, have = parse(wanted), parse(known)
    if want.path != have.path or _host(want.host) != _host(have.host):
        return False
    if ":" in want.host and ":" in have.host and want.host != have.host:
        return False
    if want.digest and have.digest:
        return have.digest.startswith(want.digest) or want.digest.startswith(have.digest)
    if have.tag or not have.digest:
        return (want.tag or DEFAULT_TAG) == (have.tag or DEFAULT_TAG) or bool(want.digest)
    return True


def is_among(wanted: str, names: Iterable[str]) -> bool:
    return any(is_same_image(wanted, name) for name in names)


def _host(host: str) -> str:
    return host.partition(":")[0]
