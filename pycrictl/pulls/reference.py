"""Image references: parsing, validity, canonical form, and which pull is for an image. Pure.

A reference is ``[HOST[:PORT]/]PATH[:TAG][@DIGEST]``. Docker's defaults apply where a part is
missing (``docker.io``, ``library/``, ``:latest``), as containerd and CRI-O apply them. Both refuse
what the grammar of ``github.com/distribution/reference`` does not allow.

Only this module decides whether a pull is for an image: yes, no, or maybe. For a running pull,
containerd shows neither the registry's port nor the tag, only the manifest's digest. The pull's
source then lists the images that it may be for, its candidates. The kubelet's reports count, too:
an image whose pull has failed since a running pull began is not the image of that pull.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum, auto
from functools import lru_cache
from typing import Final, NamedTuple

from pycrictl.base.units import quote
from pycrictl.pulls.state import PullState

DEFAULT_HOST: Final = "docker.io"
DEFAULT_TAG: Final = "latest"
MAX_PATH_CHARS: Final = 255
_SHORT_DIGEST_CHARS: Final = 12
_OTHER_DEFAULT_HOST: Final = "index.docker.io"
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://")
_LABEL: Final = "[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST: Final = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?")
_COMPONENT: Final = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*")
_TAG: Final = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST: Final = re.compile(r"([a-z0-9]+(?:[+._-][a-z0-9]+)*):([0-9a-fA-F]+)")
_ID: Final = re.compile(r"[0-9a-f]{64}")
_DIGEST_CHARS: Final = {"sha256": 64, "sha384": 96, "sha512": 128}


class Reference(NamedTuple):
    """A parsed reference; ``tag`` and ``digest`` are empty if there is none."""

    host: str
    path: str
    tag: str
    digest: str

    @property
    def name(self) -> str:
        """The registry and the repository: ``docker.io/library/busybox``."""
        return f"{self.host}/{self.path}"


@lru_cache(maxsize=256)  # each pull of a node is compared with each image of its pods
def parse(text: str) -> Reference:
    """Split a reference. Any text is accepted; ``flaw`` verifies it."""
    rest, _, digest = text.partition("@")
    slash = rest.rfind("/")
    colon = rest.find(":", slash + 1)
    name, tag = (rest, "") if colon < 0 else (rest[:colon], rest[colon + 1 :])
    head, has_slash, tail = name.partition("/")
    if has_slash and ("." in head or ":" in head or head == "localhost"):
        host, path = head, tail
    else:
        host, path = DEFAULT_HOST, name
    host = DEFAULT_HOST if host == _OTHER_DEFAULT_HOST else host
    if host == DEFAULT_HOST and "/" not in path:
        path = f"library/{path}"
    return Reference(host, path, tag, digest)


class Flaw(NamedTuple):
    """Why a text is no reference: the part that is wrong, and what to do."""

    text: str
    advice: str


def flaw(text: str) -> Flaw | None:
    """Return what is wrong with a reference; None if runtimes accept it."""
    if (scheme := _SCHEME.match(text)) is not None:
        advice = f"leave that out: {text[scheme.end() :]}"
        return Flaw(f"it begins with {quote(scheme[0])}", advice)
    name, has_digest, digest = text.partition("@")
    if has_digest:
        parts = _DIGEST.fullmatch(digest)
        algorithm, digits = parts.groups() if parts else ("", "")
        if len(digits) != _DIGEST_CHARS.get(algorithm, max(len(digits), 32)):
            advice = "give it in full: sha256: and 64 hexadecimal digits"
            return Flaw(f"its digest {quote(digest)} is invalid", advice)
    _, has_tag, tag = name[name.rfind("/") + 1 :].partition(":")
    if has_tag and not _TAG.fullmatch(tag):
        advice = "a tag has up to 128 letters, digits, '_', '.' and '-', first a letter or digit"
        return Flaw(f"its tag {quote(tag)} is invalid", advice)
    host, path, _, _ = parse(text)
    if not _HOST.fullmatch(host):
        return Flaw(f"its registry {quote(host)} is invalid", "a registry is HOST or HOST:PORT")
    name = path if path in text else path.removeprefix("library/")
    wrong = next((part for part in path.split("/") if not _COMPONENT.fullmatch(part)), None)
    if wrong is not None and _COMPONENT.fullmatch(wrong.lower()):
        advice = f"use lower case: {text.replace(name, name.lower(), 1)}"
        return Flaw(f"{quote(wrong)} has upper-case letters", advice)
    if wrong is not None or _ID.fullmatch(text) or len(path) > MAX_PATH_CHARS:
        advice = (
            f"it may have at most {MAX_PATH_CHARS} characters, lower-case letters and digits, with"
            " single '.', '_' and '-' between them, and must not be an ID"
        )
        return Flaw(f"its repository {quote(name)} is invalid", advice)
    return None


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
    """Cut a digest to its algorithm and its first digits."""
    return digest[: digest.index(":") + 1 + _SHORT_DIGEST_CHARS]


def _is_same_repository(reference: Reference, other: Reference) -> bool:
    """Return whether two references name one repository; a registry's port may be missing."""
    if reference.path != other.path or _host(reference.host) != _host(other.host):
        return False
    return reference.host == other.host or ":" not in reference.host or ":" not in other.host


def _host(host: str) -> str:
    return host.partition(":")[0]


# Whether a pull is that of an image


class Match(Enum):
    """Whether a pull is that of an image; ``MAYBE``: it may also be that of another image."""

    NO = auto()
    MAYBE = auto()
    YES = auto()


def match(wanted: str, pull: PullState, *, failed_s: float = 0.0) -> Match:
    """Return whether a pull is for the image with the reference ``wanted``.

    Args:
        failed_s: when the kubelet reported that its pull of the image had failed (Unix time); 0 if
            it has not.
    """
    verdict = _by_names(wanted, pull)
    is_older = pull.is_running and 0.0 < pull.began_s < failed_s
    return Match.NO if verdict is Match.MAYBE and is_older else verdict


def may_be(wanted: str, name: str) -> bool:
    """Return whether a pull of this name may be that of the image ``wanted``."""
    return match(wanted, PullState(image=name)) is not Match.NO


def is_among(wanted: str, names: Iterable[str]) -> bool:
    """Return whether a pull of one of these names may be that of the image ``wanted``."""
    return any(may_be(wanted, name) for name in names)


def _by_names(wanted: str, pull: PullState) -> Match:
    if wanted == pull.image or canonical(wanted) == canonical(pull.image):
        return Match.YES
    want, have = parse(wanted), parse(pull.image)
    if not _is_same_repository(want, have):
        return Match.NO
    if pull.candidates:
        if canonical(wanted) not in map(canonical, pull.candidates):
            return Match.NO
        return Match.MAYBE if len(pull.candidates) > 1 else Match.YES
    digest = have.digest or pull.digest
    if want.digest and digest:
        is_same = digest.startswith(want.digest) or want.digest.startswith(digest)
        return Match.YES if is_same else Match.NO
    if have.tag or not have.digest:
        if (want.tag or DEFAULT_TAG) == (have.tag or DEFAULT_TAG) and not want.digest:
            return Match.YES
        return Match.MAYBE if want.digest else Match.NO
    return Match.MAYBE
