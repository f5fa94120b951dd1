"""One-time tokens in the URLs of the streaming server. Pure: no IO, no clock.

A token alone gives permission to open its URL, so it is random (192 bits), works once and soon
expires. Only its hash is kept: neither a dump of this object nor the duration of a lookup reveals
anything about a valid token.

The number of unused tokens is limited, and a pod gets another one only while it holds fewer than
are still free. So a single pod can hold half of them, ``n`` greedy pods can each hold one in
``n + 1``, and some are left for a pod that has none.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pycrictl.base.errors import Exhausted
from pycrictl.base.units import format_duration, quote

PROGRESS_PATH: Final = "/progress/"
COPY_PATH: Final = "/copy/"

TOKEN_BYTES: Final = 24
LIFETIME_S: Final = 60.0
MAX_OUTSTANDING: Final = 1_000


class _Grant(NamedTuple):
    pod: str
    payload: Any
    expires_at: float


class Tokens:
    """The valid tokens. Not thread-safe; ``now`` must never decrease.

    ``authority`` is the address in URLs, ``IP:PORT``, once the streaming server listens.
    """

    def __init__(
        self,
        *,
        lifetime_s: float = LIFETIME_S,
        max_outstanding: int = MAX_OUTSTANDING,
        source: Callable[[int], str] = secrets.token_urlsafe,
    ) -> None:
        self._lifetime_s = lifetime_s
        self._max_outstanding = max_outstanding
        self._source = source
        self._grants: dict[bytes, _Grant] = {}  # the oldest first
        self._held = Counter[str]()
        self.refused = 0
        self.authority = ""

    def outstanding(self, now: float) -> int:
        """Forget expired tokens, which are the oldest; return how many are left."""
        for digest, oldest in list(self._grants.items()):
            if oldest.expires_at > now:
                break
            self._take(digest)
        return len(self._grants)

    def issue(self, path: str, pod: str, payload: object, *, now: float) -> str:
        """Return a URL below ``path`` from a pod's share; ``redeem`` takes it for ``payload``."""
        free = self._max_outstanding - self.outstanding(now)
        if free <= 0:
            raise self._exhausted(f"{self._max_outstanding} stream URLs are waiting to be opened")
        if self._held[pod] >= free:
            raise self._exhausted(
                f"{self._held[pod]} stream URLs of pod {quote(pod)} are waiting to be opened, "
                "its share of all"
            )
        target = path + self._source(TOKEN_BYTES)
        self._grants[_digest(target)] = _Grant(pod, payload, now + self._lifetime_s)
        self._held[pod] += 1
        return f"http://{self.authority}{target}"

    def is_valid(self, target: str, *, now: float) -> bool:
        """Return whether ``redeem`` would take the token in a URL's path."""
        self.outstanding(now)
        return _digest(target) in self._grants

    def redeem(self, target: str, *, now: float) -> Any:
        """Use up the token in a URL's path, and return its payload; None if it is not valid."""
        return self._take(_digest(target)).payload if self.is_valid(target, now=now) else None

    def _take(self, digest: bytes) -> _Grant:
        grant = self._grants.pop(digest)
        self._held -= Counter((grant.pod,))  # removes a pod that holds none
        return grant

    def _exhausted(self, quota: str) -> Exhausted:
        self.refused += 1
        message = f"{quota}; try again later"
        return Exhausted(
            message,
            code="ResourceExhausted",
            details=message,
            hint=f"a URL that nobody opens expires after {format_duration(self._lifetime_s)}",
        )


def _digest(target: str) -> bytes:
    # A target from a request may contain lone surrogates.
    return hashlib.sha256(target.encode("utf-8", "surrogatepass")).digest()
