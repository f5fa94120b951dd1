"""Why a copy cannot be, as a status of HTTP and a line for people."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pycrictl.agent.copies.engine import Gone
from pycrictl.errors import (
    ConnectError,
    CopyError,
    Denied,
    Exhausted,
    FailedPrecondition,
    NoSpace,
    NotFound,
    PycrictlError,
    StreamError,
    Unimplemented,
    UsageError,
)

log = logging.getLogger("pycrictl.agent")

RETRY_S: Final = 10
"""When it is worth asking again after a quota was reached."""

_ALONE: Final = "--in-place"

_CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (Gone, 410),
    (UsageError, 422),
    (NotFound, 404),
    (FailedPrecondition, 410),
    (Exhausted, 429),
    (NoSpace, 429),
    (Unimplemented, 501),
    (Denied, 403),
    (CopyError, 422),
    (StreamError, 422),
    (ConnectError, 503),
)


class Refused(Exception):
    """What a client asks for cannot be.

    Args:
        code: the HTTP status.
        message: one line for people.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Unspecified(Refused):
    """A request to begin a copy does not say what to copy, or not in a way that can be read."""


def refused(exc: Exception) -> Refused:
    """Return any error as a refusal: a bug, too, ends one request and nothing else."""
    if isinstance(exc, Refused):
        return exc
    code = next((code for kind, code in _CODES if isinstance(exc, kind)), 500)
    if isinstance(exc, PycrictlError):
        # What options of a program on the node can do, who copies through the cluster cannot.
        is_for_node = isinstance(exc, ConnectError) or _ALONE in (exc.hint or "")
        hint = "" if is_for_node else exc.hint
        return Refused(code, f"{exc.message} ({hint})" if hint else exc.message)
    log.error("a copy failed", exc_info=exc)
    return Refused(code, f"the agent failed: {type(exc).__name__}: {exc}")


@contextmanager
def refusing() -> Iterator[None]:
    """Raise any error as a refusal; see ``refused``."""
    try:
        yield
    except Refused:
        raise
    except Exception as exc:
        raise refused(exc) from exc
