"""The log of calls, which ``--debug`` shows."""

from __future__ import annotations

import logging


def call_log() -> logging.Logger | None:
    """Return the logger of calls, or None while nobody wants their lines."""
    log = logging.getLogger("pycrictl.cri")
    return log if log.isEnabledFor(logging.DEBUG) else None
