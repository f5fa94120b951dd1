"""The size and checksum of an archive, before it is made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from pycrictl.copy.archive.census import Census
from pycrictl.copy.archive.checksum import Checksum
from pycrictl.copy.archive.pack import FilePart, pack_unread
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.summary import Summary
from pycrictl.copy.tree.places import Source
from pycrictl.copy.tree.walk import OnSkip


class Measured(NamedTuple):
    """An archive that has not been made yet.

    Attributes:
        size_bytes: of the archive.
        crc32: its checksum.
        summary: what will be in it.
    """

    size_bytes: int
    crc32: int
    summary: Summary


def measure(
    source: Source,
    *,
    on_skip: OnSkip,
    check: Callable[[int], None] | None = None,
    rules: Rules | None = None,
) -> Measured:
    """Measure what ``pack`` would yield.

    Args:
        source: what would be packed; closed by the caller.
        on_skip: called with what is left out.
        check: called with the size of the archive as it grows; raises an error if it is too much.
        rules: what the user allows; None: whatever there is.

    Raises:
        CopyError: something cannot be read, or a file became shorter in the meantime, or an entry
            breaks a rule.
    """
    census = Census(rules)
    size_bytes = 0
    with (
        Checksum() as checksum,
        closing(pack_unread(source, on_skip=on_skip, on_entry=census.count)) as pieces,
    ):
        for piece in pieces:
            size_bytes += piece.size_bytes if isinstance(piece, FilePart) else len(piece)
            if check is not None:
                check(size_bytes)
            if isinstance(piece, FilePart):
                checksum.add_file(piece.fd, piece.offset, piece.size_bytes)
            else:
                checksum.add(piece)
        return Measured(size_bytes, checksum.value, census.summary)
