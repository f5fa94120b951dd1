"""Which layers an image has, asked of its registry while it is being pulled.

CRI-O shows the bytes that have come and never how many will. The manifest does. It is asked for
once a pull, in a thread of its own and for two seconds at most; a pull never waits for it.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable
from typing import Final

from pycrictl.containerd.store import DOCUMENT_LIMIT_BYTES, Index, Manifest, parse_document
from pycrictl.foreign import mapping, mappings, parsed, text
from pycrictl.progress.reference import parse
from pycrictl.progress.registry import requests
from pycrictl.progress.registry.requests import ManifestRequest

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

    def fetch(reference: str) -> bytes | None:
        left_s = until - time.monotonic()
        if left_s <= 0:
            return None
        return requests.fetch(question, reference, timeout_s=left_s)

    data = fetch(question.reference)
    document = None if data is None else parse_document(data)
    if data is not None and isinstance(document, Index):
        digest = platform_digest(data)
        host, path, _, _ = parse(question.reference)
        data = fetch(f"{host}/{path}@{digest}") if digest else None
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
