"""What is called while a copy goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from pycrictl.copy.tree.content import OnBytes
from pycrictl.copy.tree.walk import OnSkip

OnTotal = Callable[[int], None]
"""Called before the first ``OnBytes`` with the sum of all bytes that it will be given; once more
if it turns out to be another."""

_ABSOLUTE: Final = 'names in the archive begin with "/", which was left out'


class Watch(NamedTuple):
    """What is called while a copy goes on.

    Attributes:
        on_bytes: with how many more bytes have been copied: of content or of an archive, as for
            ``on_total``.
        on_skip: with what is left out.
        on_total: with the size of the whole, where it is known beforehand. None: the size is not
            wanted, and nothing is measured.
        on_note: with what else the user should know.
        on_archive: with the size of the archive that is made, where it is known beforehand.
    """

    on_bytes: OnBytes
    on_skip: OnSkip
    on_total: OnTotal | None = None
    on_note: Callable[[str], None] | None = None
    on_archive: OnTotal | None = None

    def note(self, text: str) -> None:
        """Tell the user something else."""
        if self.on_note is not None:
            self.on_note(text)

    def note_names(self, *, has_absolute: bool) -> None:
        """Say that slashes were left out of names, if they were."""
        if has_absolute:
            self.note(_ABSOLUTE)
