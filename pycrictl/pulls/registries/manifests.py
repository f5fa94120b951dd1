"""The manifest of an image, from the servers that the runtime asks.

CRI-O shows the bytes received but not the total; the manifest has it. It is requested once per
pull, in a thread of its own and for two seconds at most; the pull itself never waits for it.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Generic, TypeVar

from pycrictl.base.errors import ConfigError
from pycrictl.pulls.reference import Reference, tag_of
from pycrictl.pulls.registries.credentials import Credentials, Keyring, Login
from pycrictl.pulls.registries.endpoint import Endpoint, RegistryAccess, Scheme
from pycrictl.pulls.registries.registry_client import RegistryAnswer, RegistryClient, reason_of
from pycrictl.runtime.containerd.store import (
    DOCUMENT_LIMIT_BYTES,
    Index,
    Manifest,
    own_platform,
    parse_document,
)

TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ManifestRequest:
    """A request for a manifest.

    Attributes:
        reference: as the pull spells it.
        credentials: those of the pull; None if they are not known.
        access: the way to the registry.
        keyring: the credentials where those of the pull are not known.
    """

    reference: str
    credentials: Credentials | None = None
    access: RegistryAccess = field(default_factory=RegistryAccess)
    keyring: Keyring | None = None


KeyT = TypeVar("KeyT")
AnswerT = TypeVar("AnswerT")


class Answers(Generic[KeyT, AnswerT]):
    """Answers being fetched in the background, all within ``TIMEOUT_S``; late ones are dropped.

    Attributes:
        known: the answers so far, by question.
    """

    def __init__(self, questions: Iterable[KeyT], ask: Callable[[KeyT], AnswerT]) -> None:
        self.known: dict[KeyT, AnswerT] = {}
        self._until = time.monotonic() + TIMEOUT_S

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
    until = time.monotonic() + TIMEOUT_S
    for reference in question.access.meanings(question.reference):
        document = parse_document(_body(question, reference, until) or b"")
        if isinstance(document, Index) and (digest := document.digest_for(own_platform())):
            by_digest = reference._replace(tag="", digest=digest)
            document = parse_document(_body(question, by_digest, until) or b"")
        if isinstance(document, Manifest):
            return document
    return None


def find_digest(question: ManifestRequest) -> str | None:
    """Return the digest that an image has in its registry; empty if it is not there, or None."""
    until = time.monotonic() + TIMEOUT_S
    found = [_body(question, one, until) for one in question.access.meanings(question.reference)]
    if body := next(filter(None, found), b""):
        return f"sha256:{hashlib.sha256(body).hexdigest()}"
    return "" if b"" in found else None


def _body(question: ManifestRequest, reference: Reference, until: float) -> bytes | None:
    """Return the manifest or index of a reference; empty if a server lacks it, None if unknown."""
    found = None
    for endpoint in question.access.endpoints(reference):
        with suppress(OSError):
            _, answer = _fetch(question, reference, endpoint, until)
            if answer.status == HTTPStatus.OK and len(answer.body) <= DOCUMENT_LIMIT_BYTES:
                return answer.body
            if answer.status == HTTPStatus.NOT_FOUND:
                found = b""
    return found


def _fetch(
    question: ManifestRequest, reference: Reference, endpoint: Endpoint, until: float
) -> tuple[Scheme, RegistryAnswer]:
    """Ask one server; return its answer, and by which scheme it came."""
    given = None
    if question.credentials is not None:
        given = Login(question.credentials, "")
    elif question.keyring is not None:
        with suppress(ConfigError):
            given = question.keyring.find(reference)
    login = question.access.login_for(endpoint, reference, given)
    client = RegistryClient(endpoint, question.access, login.credentials if login else None)
    version = reference.digest or tag_of(reference)
    answer = client.fetch(f"manifests/{version}", until=until)
    return client.scheme, answer


# Why no server has it

_STATUS_WORDS: Final = {
    HTTPStatus.OK: "has it",
    HTTPStatus.UNAUTHORIZED: "refuses access",
    HTTPStatus.FORBIDDEN: "refuses access",
    HTTPStatus.NOT_FOUND: "does not have it",
    HTTPStatus.TOO_MANY_REQUESTS: "limits requests",
}


def answers(question: ManifestRequest) -> list[str]:
    """Ask all servers for an image at once; return each with its answer, in the runtime's order.

    Empty if there is only one, as the runtime's own error says it all then.
    """
    until = time.monotonic() + TIMEOUT_S

    def ask_one(reference: Reference, endpoint: Endpoint) -> str:
        try:
            scheme, answer = _fetch(question, reference, endpoint, until)
        except OSError as exc:
            return f"{endpoint.url()}: {reason_of(exc)}"
        words = _STATUS_WORDS.get(HTTPStatus(answer.status), "fails")
        return f"{endpoint.url(scheme)}: {words} ({answer.status})"

    pairs = [
        (reference, endpoint)
        for reference in question.access.meanings(question.reference)
        for endpoint in question.access.endpoints(reference)
    ]
    if len(pairs) < 2:
        return []
    with ThreadPoolExecutor(len(pairs)) as pool:
        return list(pool.map(ask_one, *zip(*pairs, strict=True)))
