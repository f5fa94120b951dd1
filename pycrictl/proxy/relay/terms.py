"""What one end announces to the other in SETTINGS, held to what the relay puts up with. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pycrictl.wire import http2, limits

_BOTH: Final = {
    http2.HEADER_TABLE_SIZE: limits.TABLE_BYTES,
    http2.MAX_FRAME_SIZE: limits.FRAME_BYTES,
}
_ANNOUNCED: Final = {
    http2.MAX_CONCURRENT_STREAMS: limits.STREAMS,
    http2.MAX_HEADER_LIST_SIZE: limits.HEADER_LIST_BYTES,
}
_OF_RUNTIME: Final = {**_BOTH, **_ANNOUNCED}

FIRST: Final = http2.settings(_ANNOUNCED)
"""The SETTINGS of a runtime that says nothing of its own."""


def of_client(settings: Iterable[tuple[int, int]]) -> bytes | None:
    """Return the frame that goes to the runtime for a client's settings; None for the same."""
    return _held(settings, _BOTH)


def of_runtime(settings: Iterable[tuple[int, int]], *, is_first: bool) -> bytes | None:
    """Return the frame that goes to the client for the runtime's; None for the same.

    Args:
        settings: names and values.
        is_first: they begin the connection, so what holds without them is added.
    """
    settings = list(settings)
    if is_first:
        named = {name for name, _ in settings}
        added = [(name, most) for name, most in _ANNOUNCED.items() if name not in named]
        return http2.settings_frame(_least([*settings, *added], _OF_RUNTIME))
    return _held(settings, _OF_RUNTIME)


def _held(settings: Iterable[tuple[int, int]], most: Mapping[int, int]) -> bytes | None:
    settings = list(settings)
    held = _least(settings, most)
    return None if held == settings else http2.settings_frame(held)


def _least(settings: Iterable[tuple[int, int]], most: Mapping[int, int]) -> list[tuple[int, int]]:
    return [(name, min(value, most.get(name, value))) for name, value in settings]
