"""How much there is to copy, for those who watch it."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from pycrictl.copy.method import Watch
from pycrictl.copy.tree.places import Source
from pycrictl.copy.tree.walk import walk
from pycrictl.errors import CopyError

MAX_ENTRIES: Final = 50_000
"""A larger tree is not walked twice only to show how far a copy is."""


def report_total(source: Source, watch: Watch) -> None:
    """Report how much there is to copy, if that is wanted and can be found out quickly."""
    if watch.on_total is not None and (size_bytes := _measure(source)) is not None:
        watch.on_total(size_bytes)


def _measure(source: Source) -> int | None:
    """Return the content of all files in a tree, in bytes; None if that would take too long.

    What cannot be read is not reported here: the copy itself will meet it.
    """
    size_bytes = 0
    try:
        with closing(walk(source, on_skip=lambda _: None)) as found:
            for count, (entry, _) in enumerate(found):
                if count >= MAX_ENTRIES:
                    return None
                size_bytes += entry.size_bytes
    except (OSError, CopyError):
        return None
    return size_bytes
