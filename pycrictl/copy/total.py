"""How much there is to copy, for whoever watches that."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from pycrictl.copy.method import Watch
from pycrictl.copy.tree.places import Source
from pycrictl.copy.tree.walk import walk
from pycrictl.errors import CopyError

MAX_ENTRIES: Final = 50_000
"""A larger tree is not looked through twice, only to know how far a copy is."""


def tell_total(source: Source, watch: Watch) -> None:
    """Tell who watches a copy how much there is to copy, if that is to be had in short time."""
    if watch.on_total is not None and (size_bytes := _measure(source)) is not None:
        watch.on_total(size_bytes)


def _measure(source: Source) -> int | None:
    """The content of all files in a tree, in bytes; None if that is not to be had in short time.

    What cannot be read is not told here: the copy itself will meet it.
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
