"""What a copy did, or would do."""

from __future__ import annotations

from dataclasses import dataclass

from pycrictl.copy.rules.policy import Item, Make


@dataclass(slots=True)
class Summary:
    """What a copy did.

    Attributes:
        files: how many were copied, hard links included.
        directories: how many were made or merged.
        links: how many symbolic links were made.
        size_bytes: content of the files that were copied.
        kept: how many files were there already and stayed (``--no-clobber``).
        skipped: how many entries were left out.
    """

    files: int = 0
    directories: int = 0
    links: int = 0
    size_bytes: int = 0
    kept: int = 0
    skipped: int = 0

    def count(self, item: Item) -> None:
        """Count something that has been made."""
        if item.make is Make.DIRECTORY:
            self.directories += 1
        elif item.make is Make.SYMLINK:
            self.links += 1
        else:
            self.files += 1
            self.size_bytes += item.size_bytes

    def discount(self, item: Item) -> None:
        """Take something back that has been removed again."""
        if item.make is Make.DIRECTORY:
            self.directories -= 1
        elif item.make is Make.SYMLINK:
            self.links -= 1
        else:
            self.files -= 1
            self.size_bytes -= item.size_bytes
