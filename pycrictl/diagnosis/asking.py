"""What collectors have in common: a source that fails is named, and the others are asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pycrictl._proto import cri_pb2
from pycrictl.diagnosis.findings import Missing
from pycrictl.errors import PycrictlError
from pycrictl.units import format_duration


class Asking:
    """A collector, which remembers the sources that could not be asked."""

    def __init__(self) -> None:
        self._missing: list[Missing] = []
        self._jobs: list[tuple[str, threading.Thread]] = []

    @contextmanager
    def _optional(self, source: str) -> Iterator[None]:
        """Name a source that fails, and go on."""
        try:
            yield
        except (PycrictlError, OSError) as exc:
            reason = exc.message if isinstance(exc, PycrictlError) else (exc.strerror or str(exc))
            self._missing.append(Missing(source, reason))

    def _begin(self, source: str, ask: Callable[[], object]) -> None:
        """Ask a source in a thread of its own, which nobody has to wait for."""

        def run() -> None:
            with self._optional(source):
                ask()

        thread = threading.Thread(target=run, daemon=True)
        self._jobs.append((source, thread))
        thread.start()

    def _end(self, within_s: float) -> None:
        """Wait for all that has begun, and for what that begins; name what takes longer."""
        until = time.monotonic() + within_s
        for source, thread in self._jobs:  # which grows
            thread.join(max(until - time.monotonic(), 0.0))
            if thread.is_alive():
                reason = f"no answer within {format_duration(within_s)}"
                self._missing.append(Missing(source, reason))


def unmet(status: cri_pb2.RuntimeStatus) -> tuple[tuple[str, str], ...]:
    """Return the conditions of a runtime that do not hold, and why."""
    return tuple(
        (one.type, one.message or one.reason) for one in status.conditions if not one.status
    )
