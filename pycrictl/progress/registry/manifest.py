"""Which layers an image has, asked of its registry while it is being pulled.

CRI-O and podman show the bytes that have come and never how many will. The manifest does. It is
asked for once a pull, in a thread of its own and for two seconds at most; a pull never waits for
it. First ``skopeo`` is tried, which reads the node's ``registries.conf``, mirrors, certificates and
auth files as CRI-O does; without it the registry in the image's name is asked (``registry``).
"""

from __future__ import annotations

import json
import platform
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from pycrictl.containerd.store import DOCUMENT_LIMIT_BYTES, Index, Manifest, parse_document
from pycrictl.progress.reference import parse
from pycrictl.progress.registry import client, skopeo
from pycrictl.progress.registry.client import Question

TIMEOUT_S: Final = 2.0

_ARCHITECTURES: Final = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "armv6l": "arm",
    "i686": "386",
    "i386": "386",
}


class Inquiry:
    """One question, asked in the background."""

    def __init__(self, question: Question, ask: Callable[[Question], Manifest | None]) -> None:
        self._until = time.monotonic() + TIMEOUT_S
        self._answer: Manifest | None = None
        self._thread = threading.Thread(
            target=self._run, args=(question, ask), name="manifest", daemon=True
        )
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether there is an answer, or will be none."""
        return not self._thread.is_alive() or time.monotonic() >= self._until

    @property
    def manifest(self) -> Manifest | None:
        """What was answered."""
        return self._answer

    def _run(self, question: Question, ask: Callable[[Question], Manifest | None]) -> None:
        self._answer = ask(question)


def ask(question: Question) -> Manifest | None:
    """Return an image's manifest for this machine's platform; None if that cannot be had."""
    until = time.monotonic() + TIMEOUT_S
    token = question.credentials is not None and question.credentials.registry_token
    by_skopeo = "" if token else skopeo.program()

    def fetch(reference: str) -> bytes | None:
        left_s = until - time.monotonic()
        if left_s <= 0:
            return None
        if by_skopeo:
            return skopeo.fetch(by_skopeo, question, reference, timeout_s=left_s)
        return client.fetch(question, reference, timeout_s=left_s)

    data = fetch(question.reference)
    document = None if data is None else parse_document(data)
    if data is not None and isinstance(document, Index):
        digest = platform_digest(data)
        host, path, _, _ = parse(question.reference)
        data = fetch(f"{host}/{path}@{digest}") if digest else None
        document = None if data is None else parse_document(data)
    return document if isinstance(document, Manifest) else None


def platform_digest(index: bytes, machine: str = "") -> str:
    """Return the digest of the manifest for a machine (``uname -m``, by default this one's).

    Args:
        index: an OCI image index or Docker's manifest list.

    Returns:
        An empty text if there is none for Linux on it.
    """
    machine = machine or platform.machine()
    architecture = _ARCHITECTURES.get(machine, machine)
    entries: list[Any] = json.loads(index[:DOCUMENT_LIMIT_BYTES]).get("manifests", [])
    fitting = []
    for entry in entries:
        known = entry.get("platform")
        if isinstance(known, dict) and known.get("os") == "linux":
            if known.get("architecture") == architecture:
                fitting.append((known.get("variant", ""), entry["digest"]))
    wanted = {"armv7l": "v7", "armv6l": "v6", "aarch64": "v8"}.get(machine, "")
    fitting.sort(key=lambda found: found[0] != wanted)
    return fitting[0][1] if fitting else ""
