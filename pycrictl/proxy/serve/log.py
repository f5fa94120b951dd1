"""Log lines of ``key=value`` pairs, one for each pull and each stream."""

from __future__ import annotations

import json
import logging
from typing import Final

MAX_VALUE_CHARS: Final = 500


def pairs(event: str, fields: dict[str, object]) -> str:
    """Return one line: the event's name, then each field that is not empty.

    A value that is more than one plain word is written as a JSON string, so that nothing from
    outside can begin a line or a field of its own.
    """
    words = [event]
    for key, value in fields.items():
        text = str(value)
        if text:
            words.append(f"{key}={_word(text)}")
    return " ".join(words)


def _word(text: str) -> str:
    if len(text) > MAX_VALUE_CHARS:
        text = text[:MAX_VALUE_CHARS] + "…"
    is_plain = text.isascii() and text.isprintable() and not any(c in text for c in ' "=\\')
    return text if is_plain else json.dumps(text)


class Log:
    """Writes to a logger.

    Args:
        name: of the logger.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def info(self, event: str, **fields: object) -> None:
        """Report what happened as it should."""
        self._logger.info("%s", pairs(event, fields))

    def warning(self, event: str, **fields: object) -> None:
        """Report what needs attention."""
        self._logger.warning("%s", pairs(event, fields))
