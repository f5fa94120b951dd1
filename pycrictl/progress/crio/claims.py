"""For which image a pull is that shows itself only by a directory with files.

What is known of pulls comes from elsewhere: the caller who asks for one, CRI-O's log, the pods that
wait for an image. Each of these goes to the first directory that appears from then on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final, NamedTuple

from pycrictl.progress.crio.log import LoggedPull, LoggedPulls
from pycrictl.progress.pull_names import Expected
from pycrictl.progress.reference import is_same_image

if TYPE_CHECKING:
    from pycrictl.progress.owners import ImageOwners
    from pycrictl.progress.registry.requests import Credentials

_SOON_S: Final = 2.0
"""How long after its line in the log a pull usually makes its directory."""

PATIENCE_S: Final = 1.0
"""How long a directory may wait for its name: a line takes a while to be in the journal."""


class Claim(NamedTuple):
    """What is known of a pull.

    Attributes:
        reference: its image.
        credentials: those of the request, if the caller has made it.
        began_s: when it was asked for, in wall time; None if unknown.
        logged: what the log says of it.
    """

    reference: str
    credentials: Credentials | None = None
    began_s: float | None = None
    logged: LoggedPull | None = None


class Claims:
    """What is known of pulls, and which of it has been given to a directory.

    Args:
        owners: knows what the node's pods need; None if nobody knows.
    """

    def __init__(self, owners: ImageOwners | None = None) -> None:
        self._owners = owners
        self._expected: list[Expected] = []
        self.logged = LoggedPulls()

    def expect(self, expected: Expected) -> None:
        self._expected.append(expected)

    def forget(self, expected: Expected) -> None:
        self._expected = [one for one in self._expected if one is not expected]

    def claim(self, folder: str, started_s: float, known: Collection[str]) -> Claim | None:
        """Return what a directory is for; None if nothing is known of it (yet).

        Args:
            folder: the directory.
            started_s: wall time at which it was made, or else was first seen.
            known: the images that are being pulled, or are on the node.
        """
        open_ = (one for one in self._expected if one.lease_id is None)
        found = next((one for one in open_ if one.since_s <= started_s), None)
        logged = self._find_in_log(found.reference if found is not None else "", started_s)
        if found is not None:
            found.lease_id = folder
            return Claim(found.reference, found.credentials, found.since_s, logged)
        if logged is not None:
            return Claim(logged.reference, None, logged.started_s or None, logged)
        wanted = self._wanted_by_a_pod(known)
        return Claim(wanted) if wanted else None

    def pods_of(self, image: str) -> str:
        return self._owners.pods_of(image) if self._owners is not None else ""

    def _find_in_log(self, reference: str, started_s: float) -> LoggedPull | None:
        """Return the pull in the log that a directory is likeliest to be of, and take it.

        That is the first of those that began just before, else the last one before these: what is
        older may have failed, of which there is no line.
        """
        open_ = [
            logged
            for logged in self.logged.running()
            if not logged.is_claimed
            and logged.started_s <= started_s
            and (not reference or is_same_image(reference, logged.reference))
        ]
        if not open_:
            return None
        young = [logged for logged in open_ if started_s - logged.started_s < _SOON_S]
        found = young[0] if young else open_[-1]
        found.is_claimed = True
        return found

    def _wanted_by_a_pod(self, known: Collection[str]) -> str:
        open_ = [
            wanted
            for wanted in (self._owners.wanted() if self._owners is not None else ())
            if not any(is_same_image(wanted, name) for name in known)
        ]
        return open_[0] if len(open_) == 1 else ""
