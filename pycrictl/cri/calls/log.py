"""The log of calls, which ``--debug`` shows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger


def call_log() -> Logger | None:
    """Return the logger of calls, or None while nobody wants their lines.

    Importing ``logging`` takes 5 ms; where nobody has imported it, nobody has set up a handler.
    """
    if "logging" not in sys.modules:
        return None
    import logging

    log = logging.getLogger("pycrictl.cri")
    return log if log.isEnabledFor(logging.DEBUG) else None
