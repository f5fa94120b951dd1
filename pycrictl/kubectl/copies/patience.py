"""How long what breaks is tried again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from pycrictl.errors import (
    ConfigError,
    CopyError,
    Denied,
    Exhausted,
    Interrupted,
    NotFound,
    PycrictlError,
    UsageError,
)

GIVE_UP_S: Final = 15 * 60.0
"""After so long without progress the session is gone."""

DENIED_S: Final = 30.0
"""How long an API server that has just started may refuse what it will allow."""

_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0
_LASTING: Final = (UsageError, ConfigError, CopyError, NotFound, Interrupted)

T = TypeVar("T")


@dataclass
class Patience:
    """Tries again what a connection broke off, with growing pauses, until there is progress.

    Attributes:
        note: is told when something broke, once for each time that it had worked.
        retries: how often in a row without progress; None: for as long as the session lasts.
    """

    note: Callable[[str], None]
    retries: int | None = None
    sleep: Callable[[float], None] = time.sleep
    _failures: int = 0
    _since_s: float = 0.0

    def renew(self) -> None:
        self._failures = 0

    def insist(self, act: Callable[[], T]) -> T:
        while True:
            try:
                return act()
            except PycrictlError as exc:
                self.bear(exc)

    def bear(self, exc: PycrictlError) -> None:
        """Wait a while after a failure; raise it if it is not worth trying again."""
        now = time.monotonic()
        if not self._failures:
            self._since_s = now
        self._failures += 1
        limit_s = DENIED_S if isinstance(exc, Denied) else GIVE_UP_S
        is_too_often = self.retries is not None and self._failures > self.retries
        if isinstance(exc, _LASTING) or is_too_often or now - self._since_s > limit_s:
            raise exc
        if self._failures == 1:
            reason = "not now" if isinstance(exc, Exhausted) else "the copy was interrupted"
            self.note(f"{reason}: {exc.message}; it goes on as soon as it can")
        self.sleep(min(_FIRST_PAUSE_S * 2 ** (self._failures - 1), _LONGEST_PAUSE_S))
