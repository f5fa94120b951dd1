"""Colours for people: a few SGR codes (ECMA-48), and whether they are wanted at all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

from pycrictl.environ import is_dumb

Tone = Literal["", "bad", "warning", "quiet", "busy"]
"""What a colour means; empty for nothing special."""

_CODES: Final[Mapping[Tone, str]] = {
    "bad": "31",
    "warning": "33",
    "quiet": "2",
    "busy": "36",
}
_SGR: Final = r"\x1b\[[0-9;]*m"


def are_wanted(environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """See https://no-color.org."""
    return is_terminal and not environ.get("NO_COLOR") and not is_dumb(environ)


def painted(text: str, tone: Tone) -> str:
    return f"\x1b[{_CODES[tone]}m{text}\x1b[0m" if tone and text else text


def plain(text: str) -> str:
    return re.sub(_SGR, "", text)
