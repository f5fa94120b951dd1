"""Why a copy cannot be, as a status of HTTP and a line for people."""

from __future__ import annotations

import json
import logging
from typing import Final

from pycrictl.agent.api.names import COPIES, Refusal
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

_CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
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


RETRY_S: Final = 10
"""When it is worth asking again after a quota was reached."""


class Refused(Refusal):
    """A request about a copy is refused; the handler adds the pod's name."""

    def __init__(self, code: int, message: str) -> None:
        retry_after_s = RETRY_S if code == 429 else 0
        super().__init__(code, message, kind=COPIES, retry_after_s=retry_after_s)


def refused(exc: Exception) -> Refused:
    """Turn any exception into an HTTP error: even a bug ends only its own request."""
    if isinstance(exc, Refused):
        return exc
    code = next((code for kind, code in _CODES if isinstance(exc, kind)), 500)
    if isinstance(exc, PycrictlError):
        # Advice for somebody on the node is of no use to a client in the cluster.
        hint = "" if isinstance(exc, ConnectError) else exc.hint
        return Refused(code, f"{exc.message} ({hint})" if hint else exc.message)
    log.error("a copy failed", exc_info=exc)
    return Refused(code, f"the agent failed: {type(exc).__name__}: {exc}")


def lasting(why: Refused) -> Refused:
    """Return why a copy has failed for those who would try again: later is no better."""
    return Refused(422, why.message) if why.code == 429 else why


def encode_refusal(exc: Exception) -> bytes:
    return json.dumps(refused(exc).document).encode()
