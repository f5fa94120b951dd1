"""How much there is to copy, for those who watch it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Final

from pycrictl.copy.tree.places import Source
from pycrictl.copy.tree.walk import walk
from pycrictl.copy.tree.watch import Watch
from pycrictl.errors import CopyError
from pycrictl.wire.tar.header import Entry
from pycrictl.wire.tar.writer import END_OF_ARCHIVE, encode_entry, padding_after

MAX_ENTRIES: Final = 50_000
"""A larger tree is not walked twice only to show how far a copy is."""


def report_total(source: Source, watch: Watch) -> None:
    """Report how much there is to copy, if that is wanted and can be found out quickly."""
    if watch.on_total is not None and (size_bytes := _measure(source, _content_bytes)) is not None:
        watch.on_total(size_bytes)
    if watch.on_archive is not None and (size_bytes := _measure(source, _tar_bytes)) is not None:
        watch.on_archive(size_bytes + len(END_OF_ARCHIVE))


def _measure(source: Source, bytes_of: Callable[[Entry], int]) -> int | None:
    """Return the sum over all entries of a tree, in bytes; None if that would take too long.

    What cannot be read is not reported here: the copy itself will meet it.
    """
    size_bytes = 0
    try:
        with closing(walk(source, on_skip=lambda _: None)) as found:
            for count, (entry, _) in enumerate(found):
                if count >= MAX_ENTRIES:
                    return None
                size_bytes += bytes_of(entry)
    except (OSError, CopyError):
        return None
    return size_bytes


def _content_bytes(entry: Entry) -> int:
    return entry.size_bytes


def _tar_bytes(entry: Entry) -> int:
    size_bytes = entry.size_bytes
    return len(encode_entry(entry)) + size_bytes + len(padding_after(size_bytes))
