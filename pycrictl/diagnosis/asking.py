"""What collectors have in common: a source that fails is named, and the others are asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pycrictl._proto import cri_pb2
from pycrictl.diagnosis.findings import Missing
from pycrictl.errors import PycrictlError


class Asking:
    """A collector, which remembers the sources that could not be asked."""

    def __init__(self) -> None:
        self._missing: list[Missing] = []

    @contextmanager
    def _optional(self, source: str) -> Iterator[None]:
        """Name a source that fails, and go on."""
        try:
            yield
        except (PycrictlError, OSError) as exc:
            reason = exc.message if isinstance(exc, PycrictlError) else (exc.strerror or str(exc))
            self._missing.append(Missing(source, reason))


def unmet(status: cri_pb2.RuntimeStatus) -> tuple[tuple[str, str], ...]:
    """Return the conditions of a runtime that do not hold, and why."""
    return tuple(
        (one.type, one.message or one.reason) for one in status.conditions if not one.status
    )
